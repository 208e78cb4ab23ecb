"""The solver to use when the shape of a problem is not known: it picks what is exact and fits.

Models: where the usage limit cannot bind, a chain goes to shortest-path and anything else to
elimination, if its tables stay small. Else presolve shrinks the problem to a core. A narrow core
goes to exact prices (see `search.engine.narrow`), any other one to the anytime engine: prices by
message passing, dives, tree moves (see `search.engine.wide`). CP-SAT closes the gap where little is
left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from search.core.core import Core, Found
from search.elimination.buckets import MAX_ELEMENTS, eliminate, plan
from search.elimination.order import plan_elimination
from search.engine.narrow import as_problem, search_narrow
from search.presolve.reduction import Reduction, presolve
from search.problem import Assignment, Problem, ProblemError, interrupts
from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.deadline import Deadline, OutOfTime
from search.problem.local_moves import cheap_start
from search.solvers import elimination, shortest_path

NAME = "auto"
# Share of the time limit that presolve may take; what it has reached by then is taken.
PRESOLVE_SHARE = 0.25
# How long to look for any assignment once time is up. [s]
LAST_RESORT = 0.5
Watch = Callable[[float, float], None]


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    max_elements: float = MAX_ELEMENTS,
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
    max_elements
        The most entries that all tables of one elimination may have.
    watch
        Called with the cost of the best assignment and the bound whenever either is better.
    """
    deadline = Deadline(time_limit, work)
    try:
        answer = _solve(problem, deadline, seed, max_elements, watch or (lambda cost, bound: None))
    except (KeyboardInterrupt, ImportError) as stop:
        if not interrupts.is_interrupt(stop):
            raise
        # Between two steps; the steps themselves hand in what they have.
        answer = elimination.stopped(problem, solver=NAME, stop=KeyboardInterrupt())
    if watch is not None:
        watch(answer.cost, answer.lower_bound)
    return answer


def _solve(
    problem: Problem, deadline: Deadline, seed: int, max_elements: float, watch: Watch
) -> Assignment:
    """Pick the step that fits."""
    if problem.limit_is_slack:
        left = None if deadline.remaining == math.inf else deadline.remaining
        if shortest_path.is_chain(problem):
            return shortest_path.solve(problem, time_limit=left)
        try:
            return elimination.solve(problem, time_limit=left, max_elements=max_elements)
        except ProblemError:
            pass  # Too wide as it stands; presolve may help.
    allowed = Deadline(deadline.remaining * PRESOLVE_SHARE)
    reduction = presolve(problem, deadline=allowed)
    cut = ("Presolve was cut short by the time limit.",) if allowed.passed else ()
    if reduction is None:
        return _nothing_fits(problem, "presolve", deadline)
    answer = _solve_core(problem, reduction, deadline, seed, max_elements, watch)
    return replace(answer, notes=(*cut, *answer.notes))


def _solve_core(
    problem: Problem,
    reduction: Reduction,
    deadline: Deadline,
    seed: int,
    max_elements: float,
    watch: Watch,
) -> Assignment:
    """Hand what presolve left to the engine, and its answer back."""
    core = reduction.core
    if not core.num_nodes:
        choices = reduction.restore(np.zeros(0, dtype=np.int64))
        return make_assignment(problem, choices, lower_bound=math.inf, solver="presolve")
    whole = all_whole(problem)
    found = _search(
        core,
        deadline,
        seed,
        max_elements,
        lambda cost, bound: watch(cost, rounded_up(bound, whole)),
    )
    solver = f"presolve > {found.path}"
    bound = max(rounded_up(found.bound, whole), trivial_bound(problem))
    if found.choices is None:
        if found.bound == math.inf:
            return _nothing_fits(problem, solver, deadline)
        # Cut short before anything else came of it.
        last_resort = cheap_start(problem, Deadline(LAST_RESORT))
        if last_resort is not None:
            return make_assignment(
                problem,
                last_resort,
                lower_bound=bound,
                solver=f"{solver} > descent",
                notes=found.notes,
                stopped_by=found.stopped_by,
            )
        return no_assignment(
            solver=solver,
            lower_bound=bound,
            notes=(*found.notes, "No assignment within the usage limit was found."),
            stopped_by=found.stopped_by,
        )
    return make_assignment(
        problem,
        reduction.restore(found.choices),
        lower_bound=bound,
        solver=solver,
        notes=found.notes,
        stopped_by=found.stopped_by,
    )


def _search(core: Core, deadline: Deadline, seed: int, max_elements: float, watch: Watch) -> Found:
    """By exact elimination at prices where that is possible, by messages where it is not."""
    graph = core.graph
    owners = np.repeat(np.arange(core.num_nodes), np.diff(graph.starts))
    pairs = zip(owners.tolist(), graph.neighbours.tolist(), strict=True)
    try:
        plan_elimination(graph.sizes.tolist(), pairs, max_elements=max_elements)
        as_it_was = as_problem(core)
        order = plan(as_it_was, max_elements=max_elements)
    except ProblemError:
        # Its loops are compiled when they are first used, and small problems never need it.
        from search.engine.wide import search_core

        found = search_core(core, deadline=deadline, seed=seed, watch=watch)
        note = (
            f"Elimination would need tables of more than {max_elements:.3g} entries; the bound"
            " rests on message passing."
        )
        return replace(found, notes=(note, *found.notes))
    if as_it_was.limit_is_slack:
        try:
            eliminated = eliminate(as_it_was, order, deadline=deadline)
        except OutOfTime:
            return Found(path="elimination", stopped_by="time limit")
        choices = np.array(eliminated.decode()[: core.num_nodes], dtype=np.int64)
        bound = eliminated.minimum
        return Found(
            choices=None if eliminated.is_forbidden else choices,
            cost=bound,
            bound=bound,
            path="elimination",
            stopped_by="",
        )
    return search_narrow(core, as_it_was, order, deadline=deadline, seed=seed)


def _nothing_fits(problem: Problem, solver: str, deadline: Deadline) -> Assignment:
    from search.solvers.cp_sat import nothing_fits

    return nothing_fits(problem, solver=solver, deadline=deadline)


def all_whole(problem: Problem) -> bool:
    """Whether every cost is a whole number, so that the cost of every assignment is."""
    arrays = {id(a): a for a in (*problem.costs, *(e.matrix for e in problem.edges))}
    return all(bool((a == np.floor(a)).all()) for a in arrays.values())


def rounded_up(bound: float, whole: bool) -> float:
    """A bound on whole numbers, rounded to the next one."""
    return float(math.ceil(bound)) if whole and math.isfinite(bound) else bound
