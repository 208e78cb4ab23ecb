"""How solvers wrap up what they found.

Assumes: no solver's own arithmetic is trusted; costs and peaks are recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from search.errors import ProblemError
from search.problem.incumbent import tolerated
from search.problem.notes import Note
from search.problem.problem import Assignment, Problem, Shortage, Status, cost_and_peak


def make_assignment(
    problem: Problem,
    choices: Iterable[int],
    *,
    lower_bound: float,
    solver: str,
    notes: Iterable[Note] = (),
    stopped_by: str = "",
) -> Assignment:
    """Wrap choices that fit; the cost is recomputed and the status follows from the bound.

    Parameters
    ----------
    problem
        The problem.
    choices
        The candidate of each node.
    lower_bound
        A proven bound; +inf where the solver is exact and finished.
    solver
        The path taken.
    notes
        What is worth knowing of the answer.
    stopped_by
        What cut the search short, if anything.
    """
    chosen = tuple(int(c) for c in choices)
    cost, peak = cost_and_peak(problem, chosen)
    assert cost < math.inf, "a solver returned a forbidden assignment"
    assert problem.usage_limit is None or peak <= problem.usage_limit, "over the usage limit"
    proven = lower_bound >= tolerated(cost)
    return Assignment(
        choices=chosen,
        cost=cost,
        lower_bound=cost if proven else lower_bound,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        peak_usage=peak,
        solver=solver,
        notes=tuple(notes),
        stopped_by="" if proven else stopped_by,
    )


def no_assignment(
    *,
    solver: str,
    lower_bound: float = math.inf,
    notes: Iterable[Note] = (),
    shortage: Shortage | None = None,
    stopped_by: str = "",
) -> Assignment:
    """Wrap the finding that nothing fits (a bound of +inf), or that nothing was found.

    Parameters
    ----------
    solver
        The path taken.
    lower_bound
        A proven bound; +inf where it is proven that nothing fits.
    notes
        What is worth knowing of the answer.
    shortage
        Where and by how much the usage limit is missed, where that is why.
    stopped_by
        What cut the search short, if anything.
    """
    proven = lower_bound == math.inf
    return Assignment(
        choices=(),
        cost=math.inf,
        lower_bound=lower_bound,
        status=Status.INFEASIBLE if proven else Status.UNKNOWN,
        peak_usage=shortage.peak_bound if shortage else math.nan,
        solver=solver,
        notes=tuple(notes),
        shortage=shortage,
        stopped_by="" if proven else stopped_by,
    )


def require_slack(problem: Problem, solver: str) -> None:
    """Refuse a problem whose usage limit could be exceeded."""
    if not problem.limit_is_slack:
        raise ProblemError(
            f"the solver {solver} takes problems whose usage limit cannot be exceeded, but"
            f" assignments may exceed the limit of {problem.usage_limit:.0f} bytes here; use the"
            " solver auto, cp-sat or lagrangian"
        )


def trivial_bound(problem: Problem) -> float:
    """The sum of the least cost of every node and of every edge."""
    least = {id(e.matrix): float(e.matrix.min()) for e in problem.edges}
    nodes = math.fsum(float(c.min()) for c in problem.costs)
    return nodes + math.fsum(least[id(e.matrix)] for e in problem.edges)
