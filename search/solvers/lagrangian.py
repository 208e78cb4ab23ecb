"""Bound and answer under a usage limit by pricing usage.

Models: see `search.elimination.dual`. Proves optimality only where the gap closes; else the answer
is feasible with a proven bound. Accepts problems whose graph elimination accepts; refuses all
others.
"""

from __future__ import annotations

import math

from search.elimination.buckets import MAX_ELEMENTS, plan
from search.elimination.dual import Dual, tighten
from search.elimination.infeasible import shortage_note, why_forbidden
from search.problem import Assignment, Problem
from search.problem.answers import make_assignment, no_assignment
from search.problem.deadline import Deadline
from search.solvers.elimination import solve as solve_without_limit

NAME = "lagrangian"


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    max_elements: float = MAX_ELEMENTS,
) -> Assignment:
    """Find an assignment within the usage limit, and a bound on the cost of any other.

    Parameters
    ----------
    problem
        The problem.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Not used: nothing is random here.
    max_elements
        The most entries that all tables of one elimination may have.
    """
    if problem.limit_is_slack:
        return solve_without_limit(problem, time_limit=time_limit, max_elements=max_elements)
    dual = Dual(problem=problem, order=plan(problem, max_elements=max_elements))
    tighten(dual, deadline=Deadline(time_limit))
    return answer_of(dual, solver=NAME)


def answer_of(dual: Dual, *, solver: str, notes: tuple[str, ...] = ()) -> Assignment:
    """Wrap what prices have shown."""
    if dual.choices is not None:
        return make_assignment(
            dual.problem,
            dual.choices,
            lower_bound=dual.bound,
            solver=solver,
            notes=notes,
            stopped_by=dual.stopped_by,
        )
    if dual.shortage is not None:
        return no_assignment(
            solver=solver, notes=(*notes, shortage_note(dual.shortage)), shortage=dual.shortage
        )
    if dual.bound == math.inf:
        return no_assignment(solver=solver, notes=(*notes, *why_forbidden(dual.problem)))
    return no_assignment(
        solver=solver,
        lower_bound=dual.bound,
        notes=(*notes, "No assignment within the usage limit was found."),
        stopped_by=dual.stopped_by,
    )
