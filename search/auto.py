"""The solver to use when the shape of a problem is not known: it picks what is exact and fits.

Models: the order in which the other solvers are worth trying. Where the usage limit cannot bind, a
chain goes to shortest-path and anything else to elimination. Else the problem is solved without
its limit, then with prices on usage; candidates whose min-marginal at the best prices exceeds the
cost of the best assignment known are dropped (reduced-cost fixing), and CP-SAT closes the gap on
the core that is left. Where elimination refuses, edges are priced out until it does not, and CP-SAT
goes on from there.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from search import cp_sat, elimination, shortest_path
from search.answers import (
    RELATIVE_TOLERANCE,
    make_assignment,
    no_assignment,
    reached_by,
    trivial_bound,
)
from search.buckets import MAX_ELEMENTS, plan
from search.deadline import Deadline, OutOfTime
from search.dual import NOISE, Dual, tighten
from search.improve import cheap_start
from search.lagrangian import answer_of
from search.marginals import min_marginals
from search.presolve import Reduction, presolve
from search.problem import Assignment, Problem, ProblemError
from search.thinning import THINNED_ELEMENTS, thin

NAME = "auto"
# Share of the time limit after which prices must leave the rest to CP-SAT.
PRICING_SHARE = 0.4


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    max_elements: float = MAX_ELEMENTS,
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
        Limit of CP-SAT's work, see `Deadline`; without a time limit, answers are then the same on
        every run.
    max_elements
        The most entries that all tables of one elimination may have.
    """
    deadline = Deadline(time_limit, work)
    try:
        return _solve(problem, deadline, seed, max_elements)
    except KeyboardInterrupt as stop:
        # Between two steps; the steps themselves hand in what they have.
        return elimination.stopped(problem, solver=NAME, stop=stop)


def _solve(problem: Problem, deadline: Deadline, seed: int, max_elements: float) -> Assignment:
    """Pick the step that fits."""
    if problem.limit_is_slack:
        left = _limit(deadline.remaining)
        if shortest_path.is_chain(problem):
            return shortest_path.solve(problem, time_limit=left)
        try:
            return elimination.solve(problem, time_limit=left, max_elements=max_elements)
        except ProblemError:
            pass  # Too wide as it stands; presolve may help.
    reduction = presolve(problem)
    if reduction is None:
        return cp_sat.nothing_fits(problem, solver="presolve", deadline=deadline)
    answer = _solve_reduced(reduction.problem, deadline, seed, max_elements)
    return cp_sat.restored(problem, answer, reduction.restore, deadline)


def _solve_reduced(
    problem: Problem, deadline: Deadline, seed: int, max_elements: float
) -> Assignment:
    """Solve what presolve left."""
    try:
        order = plan(problem, max_elements=max_elements)
    except ProblemError as refusal:
        return _without_elimination(problem, refusal, deadline, seed, max_elements)
    if problem.limit_is_slack:
        return elimination.solve(
            problem, time_limit=_limit(deadline.remaining), max_elements=max_elements
        )
    dual = Dual(problem=problem, order=order)
    tighten(dual, deadline=Deadline(_limit(deadline.remaining * PRICING_SHARE)))
    if dual.closed or dual.bound == math.inf or dual.stopped_by == "interrupt":
        path = "elimination" if not dual.prices.any() and dual.closed else "lagrangian"
        return answer_of(dual, solver=path)
    return _close_gap(dual, deadline, seed)


def _close_gap(dual: Dual, deadline: Deadline, seed: int) -> Assignment:
    """Let CP-SAT finish on the candidates that could still be part of a cheaper assignment."""
    if dual.choices is None and (start := cheap_start(dual.problem, deadline)):
        dual.offer(start)
    try:
        core = _core(dual, deadline)
    except KeyboardInterrupt:
        dual.stopped_by = "interrupt"
        return answer_of(dual, solver="lagrangian")
    left = sum(core.problem.sizes)
    note = f"Prices left {left} of {sum(dual.problem.sizes)} candidates to CP-SAT."
    hint = None if dual.choices is None else core.reduce(dual.choices)
    try:
        answer = cp_sat.solve_core(
            core.problem, hint=hint, deadline=deadline, seed=seed, known_bound=dual.bound
        )
    except ProblemError as refusal:
        found = answer_of(dual, solver="lagrangian", notes=(str(refusal),))
        return replace(found, stopped_by="")
    path = "lagrangian > fixing > cp-sat"
    if answer.choices:
        return make_assignment(
            dual.problem,
            core.restore(answer.choices),
            # Outside the core nothing is cheaper than the assignment that prices found.
            lower_bound=min(answer.lower_bound, max(dual.cost, dual.bound)),
            solver=path,
            notes=(*answer.notes, note),
            stopped_by=answer.stopped_by,
        )
    if dual.choices is not None:
        # The core holds every cheaper assignment; if it holds none, prices had the optimum.
        dual.bound = max(dual.bound, min(answer.lower_bound, dual.cost))
        dual.stopped_by = answer.stopped_by
        return answer_of(dual, solver=path, notes=(note,))
    return replace(answer, solver=path)


def _core(dual: Dual, deadline: Deadline) -> Reduction:
    """Drop candidates that no assignment cheaper than the best one known can contain."""
    everything = Reduction(
        problem=dual.problem, kept=tuple(np.arange(s) for s in dual.problem.sizes)
    )
    if dual.choices is None or dual.eliminated is None:
        return everything
    try:
        marginals = min_marginals(dual.eliminated, deadline)
    except OutOfTime:
        return everything
    if marginals is None:
        return everything
    worst = dual.cost + RELATIVE_TOLERANCE * abs(dual.cost) + dual.offset * (1 + NOISE)
    alive = [m <= worst for m in marginals]
    for mask, choice in zip(alive, dual.choices, strict=True):
        mask[choice] = True
    return everything.restrict(alive)


def _without_elimination(
    problem: Problem, refusal: ProblemError, deadline: Deadline, seed: int, max_elements: float
) -> Assignment:
    """Thin the graph for a bound and an assignment, then let CP-SAT try to close the gap."""
    thinned = thin(
        problem,
        deadline=Deadline(_limit(deadline.remaining * PRICING_SHARE)),
        max_elements=min(max_elements, THINNED_ELEMENTS),
    )
    notes: tuple[str, ...] = (
        str(refusal),
        f"The bound was found with {thinned.edges_out} edges priced instead.",
    )
    bound, found, stopped_by = thinned.bound, thinned.choices, thinned.stopped_by
    solver = "thinning"
    if thinned.bound < thinned.cost and stopped_by != "interrupt":
        try:
            answer = cp_sat.solve_core(
                problem, hint=found, deadline=deadline, seed=seed, known_bound=bound
            )
            return replace(reached_by(answer, solver), notes=(*notes, *answer.notes))
        except ProblemError as also:
            notes, stopped_by = (*notes, str(also)), ""
    bound = max(bound, trivial_bound(problem))
    if found is None:
        return no_assignment(solver=solver, lower_bound=bound, notes=notes, stopped_by=stopped_by)
    return make_assignment(
        problem, found, lower_bound=bound, solver=solver, notes=notes, stopped_by=stopped_by
    )


def _limit(remaining: float) -> float | None:
    return None if remaining == math.inf else remaining
