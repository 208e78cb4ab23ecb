"""Constraint programming (OR-Tools CP-SAT), for problems with a usage limit; proves its bound.

Models: see `search.cpsat.lazy_rows`, on the core that `search.presolve.reduction` leaves. Accepts
any problem whose model stays within a stated number of pairs; refuses all others.
"""

from __future__ import annotations

import numpy as np

from search.core.core import Core
from search.core.dives import Dive, dive, first_fit
from search.core.fixing import best_prices
from search.core.messages import Messages
from search.cpsat.lazy_rows import solve_core
from search.cpsat.peak import least_peak
from search.elimination.infeasible import find_shortage, shortage_note, why_forbidden
from search.presolve.reduction import presolve
from search.problem import Assignment, Problem, interrupts
from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.deadline import Deadline
from search.problem.local_moves import cheap_start
from search.solvers.elimination import stopped

NAME = "cp-sat"
# By what to multiply good prices for a dive.
LEVELS = (0.7, 0.9, 1.0)


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
) -> Assignment:
    """Find a cheapest assignment within the usage limit.

    Parameters
    ----------
    problem
        The problem.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Seed of CP-SAT's random choices.
    work
        Limit of CP-SAT's work, see `Deadline`.
    """
    deadline = Deadline(time_limit, work)
    try:
        return _solve(problem, deadline, seed)
    except (KeyboardInterrupt, ImportError) as stop:
        if not interrupts.is_interrupt(stop):
            raise
        # Before or after CP-SAT, which hands in what it has.
        return stopped(problem, solver=NAME, stop=KeyboardInterrupt())


def _solve(problem: Problem, deadline: Deadline, seed: int) -> Assignment:
    reduction = presolve(problem, deadline=deadline)
    if reduction is None:
        return nothing_fits(problem, solver="presolve", deadline=deadline)
    core = reduction.core
    prices, hint = _start(core, deadline, seed) if core.num_nodes else (None, None)
    answer = solve_core(core, hint=hint, deadline=deadline, seed=seed, prices=prices)
    solver = f"presolve > {NAME}"
    if answer.infeasible:
        return nothing_fits(problem, solver=solver, deadline=deadline)
    bound = max(answer.bound, trivial_bound(problem))
    start = None if answer.choices is not None else cheap_start(problem, deadline)
    choices = start if answer.choices is None else reduction.restore(answer.choices)
    if choices is None:
        return no_assignment(solver=solver, lower_bound=bound, stopped_by=answer.stopped_by)
    return make_assignment(
        problem, choices, lower_bound=bound, solver=solver, stopped_by=answer.stopped_by
    )


def _start(core: Core, deadline: Deadline, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Good prices, and the best of a few assignments near them: CP-SAT proves better than it
    finds, and the cheaper the best one known, the less it has to look at."""

    def stop() -> bool:
        return deadline.passed

    best = first_fit(core, seed, stop)
    prices = best_prices(core, best.cost, deadline)
    for level in LEVELS:
        what = Dive(level=level, heat=1.0, longest=core.num_nodes, seed=seed)
        found = dive(core, Messages(core), prices, what, stop)
        best = min(best, found, key=lambda finding: finding.cost)
    return prices, best.choices


def nothing_fits(problem: Problem, *, solver: str, deadline: Deadline) -> Assignment:
    """Say why nothing fits, for a problem of which that is proven."""
    shortage = None
    if not problem.limit_is_slack:
        shortage = find_shortage(problem) or least_peak(problem, deadline)
    if shortage is None:
        return no_assignment(solver=solver, notes=why_forbidden(problem))
    return no_assignment(solver=solver, notes=(shortage_note(shortage),), shortage=shortage)
