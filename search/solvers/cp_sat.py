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
from search.cpsat.peak import nothing_fits
from search.presolve.reduction import presolve
from search.problem import Assignment, Problem, interrupts
from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.cut_short import stopped_answer
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent, Watch
from search.problem.local_moves import cheap_start

NAME = "cp-sat"
# By what to multiply good prices for a dive, as found by trial.
LEVELS = (0.7, 0.9, 1.0)


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
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
    watch
        Called with the best cost and the bound whenever either is better.
    """
    deadline = Deadline(time_limit, work)
    try:
        return _solved_by_cp_sat(problem, Incumbent(watch=watch), deadline, seed)
    except (KeyboardInterrupt, ImportError) as stop:
        if not interrupts.is_interrupt(stop):
            raise
        # Before or after CP-SAT, which hands in what it has.
        return stopped_answer(problem, solver=NAME, stop=KeyboardInterrupt())


def _solved_by_cp_sat(
    problem: Problem, known: Incumbent[np.ndarray], deadline: Deadline, seed: int
) -> Assignment:
    reduction = presolve(problem, deadline=deadline)
    if reduction is None:
        return nothing_fits(problem, solver="presolve", deadline=deadline)
    core = reduction.core
    prices = _good_start(core, known, deadline, seed) if core.num_nodes else None
    solve_core(core, known=known, deadline=deadline, seed=seed, prices=prices)
    solver = f"presolve > {NAME}"
    if known.infeasible:
        return nothing_fits(problem, solver=solver, deadline=deadline)
    bound = max(known.bound, trivial_bound(problem))
    if known.choices is not None:
        choices = reduction.restore(known.choices)
    elif (start := cheap_start(problem, deadline)) is not None:
        choices = start
    else:
        return no_assignment(solver=solver, lower_bound=bound, stopped_by=known.stopped_by)
    return make_assignment(
        problem, choices, lower_bound=bound, solver=solver, stopped_by=known.stopped_by
    )


def _good_start(
    core: Core, known: Incumbent[np.ndarray], deadline: Deadline, seed: int
) -> np.ndarray:
    """Good prices; the best of a few assignments near them is taken over. CP-SAT proves better
    than it finds, and the cheaper the best assignment known, the less it has to look at."""

    def stop() -> bool:
        return deadline.passed

    def offer(choices: np.ndarray | None) -> None:
        if choices is not None:
            known.offer(choices, core.cost(choices))

    offer(first_fit(core, seed, stop))
    prices = best_prices(core, known.cost, deadline)
    for level in LEVELS:
        what = Dive(level=level, heat=1.0, longest=core.num_nodes, seed=seed)
        offer(dive(core, Messages(core), prices, what, stop)[0])
    return prices
