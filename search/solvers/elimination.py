"""Exact solution by bucket elimination, for any graph whose tables stay small.

Models: see `search.elimination.buckets`. Accepts problems whose usage limit cannot be exceeded, and
whose tables stay within a stated number of entries; refuses all others.
"""

from __future__ import annotations

from search.elimination.buckets import MAX_ELEMENTS, eliminate, plan
from search.elimination.infeasible import why_forbidden
from search.problem import Assignment, Problem, ProblemError
from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.deadline import Deadline, OutOfTime
from search.problem.local_moves import cheap_start

NAME = "elimination"


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    max_elements: float = MAX_ELEMENTS,
) -> Assignment:
    """Find a cheapest assignment by eliminating nodes.

    Parameters
    ----------
    problem
        The problem; its usage limit, if any, must be slack.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Not used: nothing is random here.
    max_elements
        The most entries that all tables together may have.
    """
    require_slack(problem, NAME)
    order = plan(problem, max_elements=max_elements)
    try:
        eliminated = eliminate(problem, order, deadline=Deadline(time_limit))
    except (OutOfTime, KeyboardInterrupt) as stop:
        return stopped(problem, solver=NAME, stop=stop)
    if eliminated.is_forbidden:
        return no_assignment(solver=NAME, notes=why_forbidden(problem))
    return make_assignment(
        problem, eliminated.decode(), lower_bound=float("inf"), solver=NAME, notes=()
    )


def require_slack(problem: Problem, name: str) -> None:
    """Refuse a problem whose usage limit could be exceeded."""
    if not problem.limit_is_slack:
        raise ProblemError(
            f"The solver {name} takes problems whose usage limit cannot be exceeded, but"
            f" assignments may exceed the limit of {problem.usage_limit:.0f} bytes here; use the"
            " solver auto, cp-sat or lagrangian."
        )


def stopped(problem: Problem, *, solver: str, stop: BaseException) -> Assignment:
    """What an exact solver without intermediate answers hands in when it is cut short."""
    reason = "interrupt" if isinstance(stop, KeyboardInterrupt) else "time limit"
    note = f"The solver {solver} was stopped by the {reason}; this is a local optimum."
    found = cheap_start(problem)
    if found is None:
        return no_assignment(
            solver=solver, lower_bound=trivial_bound(problem), notes=(note,), stopped_by=reason
        )
    return make_assignment(
        problem,
        found,
        lower_bound=trivial_bound(problem),
        solver=f"{solver} > descent",
        notes=(note,),
        stopped_by=reason,
    )
