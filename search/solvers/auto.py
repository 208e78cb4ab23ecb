"""The solver to use when the shape of a problem is not known: it picks what is exact and fits.

Models: where the usage limit cannot bind, a chain goes to shortest-path and anything else to
elimination, if its tables stay small. Else presolve shrinks the problem to a core. A narrow core
goes to exact prices (see `search.engine.narrow`), any other one to the anytime engine: prices by
message passing, dives, tree moves (see `search.engine.wide`). CP-SAT closes the gap where little is
left.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from search.core.core import Core
from search.core.pairwise_costs import pairwise_costs
from search.cpsat.peak import nothing_fits
from search.elimination import buckets
from search.elimination.chains import is_chain
from search.elimination.order import EliminationOrder
from search.engine.narrow import search_narrow
from search.presolve.reduction import Reduction, presolve
from search.problem import Assignment, Problem, ProblemError, interrupts
from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.cut_short import LAST_RESORT, stopped_answer
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import Incumbent, Watch
from search.problem.local_moves import cheap_start
from search.problem.notes import Note
from search.problem.pairwise import Pairwise
from search.solvers import elimination, shortest_path

NAME = "auto"
# Share of the time limit that presolve may take; what it has reached by then is taken.
PRESOLVE_SHARE = 0.25


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
) -> Assignment:
    """Find a cheapest assignment, or the best one that time allows, with a bound.

    Parameters
    ----------
    problem
        The problem.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Seed of what is random.
    work
        Limit of the work, see `Deadline`; without a time limit, answers are then the same on
        every run.
    watch
        Called with the best cost and the bound whenever either is better.
    """
    deadline = Deadline(time_limit, work)
    try:
        return _pick(problem, deadline, seed, watch)
    except (KeyboardInterrupt, ImportError) as stop:
        if not interrupts.is_interrupt(stop):
            raise
        # Between two steps; the steps themselves hand in what they have.
        return stopped_answer(problem, solver=NAME, stop=KeyboardInterrupt())


def _pick(problem: Problem, deadline: Deadline, seed: int, watch: Watch | None) -> Assignment:
    """Take the step that fits."""
    if problem.limit_is_slack:
        if is_chain(problem):
            left = None if deadline.remaining == math.inf else deadline.remaining
            return shortest_path.solve(problem, time_limit=left)
        if (order := _elimination_order(problem)) is not None:
            return elimination.solve_in_order(problem, order, deadline)
        # Too wide as it stands; presolve may help.
    allowed = Deadline(deadline.remaining * PRESOLVE_SHARE)
    reduction = presolve(problem, deadline=allowed)
    cut = [Note.of("presolve-cut-short")] if allowed.passed else []
    if reduction is None:
        return nothing_fits(problem, solver="presolve", deadline=deadline)
    core, whole = reduction.core, all_whole(problem)
    if not core.num_nodes:
        choices = reduction.restore(np.zeros(0, dtype=np.int64))
        return make_assignment(problem, choices, lower_bound=math.inf, solver="presolve", notes=cut)

    def tell(cost: float, bound: float) -> None:
        assert watch is not None
        watch(cost, min(rounded_up(bound, whole), cost))

    known: Incumbent[np.ndarray] = Incumbent(watch=tell if watch else None, notes=cut)
    _search(core, known, deadline, seed)
    known.path = f"presolve > {known.path}"
    if known.infeasible:
        answer = nothing_fits(problem, solver=known.path, deadline=deadline)
        return replace(answer, notes=(*cut, *answer.notes))
    bound = max(rounded_up(known.bound, whole), trivial_bound(problem))
    return _restored(problem, reduction, known, bound)


def _restored(
    problem: Problem, reduction: Reduction, known: Incumbent[np.ndarray], bound: float
) -> Assignment:
    """Wrap what is known of the core as an answer to the problem."""
    choices, solver = None, known.path
    if known.choices is not None:
        choices = reduction.restore(known.choices)
    else:
        # Cut short before anything else came of it.
        choices = cheap_start(problem, Deadline(LAST_RESORT))
        solver = known.path if choices is None else f"{known.path} > descent"
    if choices is None:
        return no_assignment(
            solver=solver,
            lower_bound=bound,
            notes=[*known.notes, Note.of("none-found")],
            stopped_by=known.stopped_by,
        )
    return make_assignment(
        problem,
        choices,
        lower_bound=bound,
        solver=solver,
        notes=known.notes,
        stopped_by=known.stopped_by,
    )


def _search(core: Core, known: Incumbent[np.ndarray], deadline: Deadline, seed: int) -> None:
    """By exact elimination at prices where that is possible, by messages where it is not."""
    pairwise = pairwise_costs(core)
    order = _elimination_order(pairwise)
    if order is None:
        # Its loops are compiled when they are first used, and small problems never need it.
        from search.engine.wide import search_core

        known.add_note(Note.of("too-wide", elements=buckets.MAX_ELEMENTS))
        search_core(core, known, deadline=deadline, seed=seed)
        return
    if not core.limit_is_slack:
        search_narrow(core, known, pairwise, order, deadline=deadline, seed=seed)
        return
    known.path = "elimination"
    try:
        eliminated = buckets.eliminate(pairwise, order, deadline=deadline)
    except OutOfTime:
        known.stopped_by = "time limit"
        return
    if not eliminated.is_forbidden:
        choices = np.array(eliminated.decode(), dtype=np.int64)
        known.offer(choices, core.constant + eliminated.minimum)
    known.raise_bound(core.constant + eliminated.minimum)


def _elimination_order(problem: Pairwise) -> EliminationOrder | None:
    """How to eliminate a problem, or None where that takes too large tables or too long."""
    try:
        return buckets.plan(problem, max_work=buckets.MOST_WORK)
    except ProblemError:
        return None


def all_whole(problem: Problem) -> bool:
    """Whether every cost is a whole number, so that the cost of every assignment is."""
    arrays = {id(a): a for a in (*problem.costs, *(e.matrix for e in problem.edges))}
    return all(bool((a == np.floor(a)).all()) for a in arrays.values())


def rounded_up(bound: float, whole: bool) -> float:
    """A bound on whole numbers, rounded to the next one."""
    return float(math.ceil(bound)) if whole and math.isfinite(bound) else bound
