"""Cores that elimination accepts: exact prices, exact reduced costs, and CP-SAT on the rest.

Models: see `search.elimination.dual` for the prices. Elimination gives the min-marginals at the
best prices; a candidate whose min-marginal exceeds the cost of the best assignment known is dropped
(reduced-cost fixing), and CP-SAT closes the gap on the core that is left.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from search.core.core import Core
from search.core.pairwise_costs import PairwiseCosts
from search.elimination.dual import NOISE, Dual, tighten
from search.elimination.marginals import min_marginals
from search.elimination.order import EliminationOrder
from search.presolve.reduction import shrink
from search.problem import CostEdge, Problem
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import RELATIVE_TOLERANCE, Incumbent
from search.problem.local_moves import cheap_start
from search.problem.notes import Note

# Share of the time limit after which prices must leave the rest to CP-SAT.
PRICING_SHARE = 0.4


def as_problem(core: Core, pairs: PairwiseCosts) -> Problem:
    """The same problem with one holding per node: further ones go to nodes that are tied to it.

    The core's nodes come first, in their order.

    Parameters
    ----------
    core
        The core.
    pairs
        Its nodes and edges.
    """
    held = core.holdings
    costs = list(pairs.costs)
    usages = [np.zeros(c.size) for c in costs]
    intervals: list[tuple[int, int] | None] = [None] * core.num_nodes
    edges = [CostEdge(source=e.source, target=e.target, matrix=e.matrix) for e in pairs.edges]
    ties: dict[int, np.ndarray] = {}
    for h, v in enumerate(held.owners.tolist()):
        size = costs[v].size
        used = held.usages[held.places[h] : held.places[h] + size]
        interval = (int(held.first[h]), int(held.last[h]))
        if intervals[v] is None:
            usages[v], intervals[v] = used, interval
            continue
        tie = ties.setdefault(size, np.where(np.eye(size) > 0, 0.0, np.inf))
        edges.append(CostEdge(source=v, target=len(costs), matrix=tie))
        costs.append(np.zeros(size))
        usages.append(used)
        intervals.append(interval)
    # What is used and paid whatever is chosen.
    costs.append(np.array([core.constant]))
    usages.append(np.zeros(1))
    intervals.append(None)
    changes = np.flatnonzero(np.diff(core.base, prepend=np.nan)).tolist()
    for first, last in pairwise([*changes, core.num_rows]):
        costs.append(np.zeros(1))
        usages.append(core.base[first : first + 1])
        intervals.append((first, last))
    return Problem(
        costs=tuple(costs),
        edges=tuple(edges),
        usages=tuple(usages),
        intervals=tuple(intervals),
        usage_limit=None if core.limit == math.inf else core.limit,
    )


def search_narrow(
    core: Core,
    known: Incumbent[np.ndarray],
    problem: Problem,
    order: EliminationOrder,
    *,
    deadline: Deadline,
    seed: int,
) -> None:
    """Search until optimality is proven, or time or work is up.

    Parameters
    ----------
    core
        What presolve left.
    known
        What is known already; it takes over what is found.
    problem
        The same as a problem, see `as_problem`.
    order
        How to eliminate its nodes.
    deadline
        When to stop.
    seed
        Seed of what is random.
    """
    dual = Dual(problem=problem, order=order, known=Incumbent(watch=known.watch))
    tighten(dual, deadline=Deadline(deadline.remaining * PRICING_SHARE))
    priced = dual.known
    if priced.closed or priced.stopped_by == "interrupt":
        decided = priced.choices is not None or dual.shortage is not None
        exact = priced.closed and decided and not dual.prices.any()
        _take_over(core, known, dual, "elimination" if exact else "lagrangian")
        return
    try:
        if priced.choices is None and (start := cheap_start(problem, deadline)):
            dual.offer(start)
        path = _close_gap(core, known, dual, deadline, seed)
    except KeyboardInterrupt:
        priced.stopped_by = "interrupt"
        path = "lagrangian"
    _take_over(core, known, dual, path)


def _close_gap(
    core: Core, known: Incumbent[np.ndarray], dual: Dual, deadline: Deadline, seed: int
) -> str:
    """Let CP-SAT finish on the candidates that could still be part of a cheaper assignment;
    returns the path taken."""
    from search.cpsat.lazy_rows import solve_core

    priced = dual.known
    rest = shrink(core, _alive(core, dual, deadline))
    if rest is None:
        # Nothing is cheaper than the best assignment known.
        priced.raise_bound(priced.cost)
        return "lagrangian > fixing"
    answer: Incumbent[np.ndarray] = Incumbent(bound=priced.bound)
    if priced.choices is not None:
        hint = rest.reduce(priced.choices[: core.num_nodes])
        if hint is not None and rest.core.fits(hint):
            answer.offer(hint, rest.core.cost(hint))
    solve_core(rest.core, known=answer, deadline=deadline, seed=seed)
    # Outside the rest nothing is cheaper than the assignment that prices found.
    bound = min(answer.bound, answer.cost, max(priced.cost, priced.bound))
    priced.stopped_by = answer.stopped_by
    if answer.choices is not None:
        priced.offer(rest.restore(answer.choices), answer.cost)
    priced.raise_bound(bound)
    known.add_note(Note.of("left-to-cp-sat", left=rest.core.costs.size, candidates=core.costs.size))
    return "lagrangian > fixing > cp-sat"


def _alive(core: Core, dual: Dual, deadline: Deadline) -> np.ndarray:
    """Mark the candidates that an assignment cheaper than the best one known can contain."""
    everything = np.ones(core.costs.size, dtype=bool)
    cost, choices = dual.known.cost, dual.known.choices
    if choices is None or dual.eliminated is None:
        return everything
    try:
        marginals = min_marginals(dual.eliminated, deadline)
    except OutOfTime:
        return everything
    if marginals is None:
        return everything
    worst = cost + RELATIVE_TOLERANCE * abs(cost) + dual.offset * (1 + NOISE)
    alive = np.concatenate([m <= worst for m in marginals[: core.num_nodes]])
    alive[core.graph.offsets[:-1] + np.array(choices[: core.num_nodes])] = True
    return alive


def _take_over(core: Core, known: Incumbent[np.ndarray], dual: Dual, path: str) -> None:
    """Hand what prices have shown to the core's search."""
    priced = dual.known
    known.watch = None  # Prices have told of it already, and the end is told by whoever asked.
    known.path, known.stopped_by = path, priced.stopped_by
    if priced.choices is not None:
        known.offer(np.array(priced.choices[: core.num_nodes]), priced.cost)
    known.raise_bound(priced.bound)
