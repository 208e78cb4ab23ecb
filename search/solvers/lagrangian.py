"""Bound and answer under a usage limit by pricing usage.

Models: see `search.elimination.dual`. Proves optimality only where the gap closes; else the answer
is feasible with a proven bound. Accepts problems whose graph elimination accepts; refuses all
others.
"""

from __future__ import annotations

from search.elimination.buckets import plan
from search.elimination.dual import Dual, tighten
from search.elimination.infeasible import shortage_at, shortage_note, why_forbidden
from search.problem import Assignment, Problem
from search.problem.answers import make_assignment, no_assignment
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent, Watch
from search.problem.notes import Note
from search.solvers import elimination

NAME = "lagrangian"


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
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
    work
        Not used: no work is counted here.
    watch
        Called with the best cost and the bound whenever either is better.
    """
    if problem.limit_is_slack:
        return elimination.solve(problem, time_limit=time_limit)
    dual = Dual(problem=problem, order=plan(problem), known=Incumbent(watch=watch))
    tighten(dual, deadline=Deadline(time_limit))
    known = dual.known
    if known.choices is not None:
        return make_assignment(
            problem,
            known.choices,
            lower_bound=known.bound,
            solver=NAME,
            stopped_by=known.stopped_by,
        )
    if dual.shortage is not None:
        shortage = shortage_at(problem, dual.shortage)
        return no_assignment(solver=NAME, notes=[shortage_note(shortage)], shortage=shortage)
    if known.infeasible:
        return no_assignment(solver=NAME, notes=[why_forbidden(problem)])
    return no_assignment(
        solver=NAME,
        lower_bound=known.bound,
        notes=[Note.of("none-found")],
        stopped_by=known.stopped_by,
    )
