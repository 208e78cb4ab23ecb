"""Cores that elimination accepts: exact prices, exact reduced costs, and CP-SAT on the rest.

Models: see `search.elimination.dual` for the prices. Elimination gives the min-marginals at the
best prices; a candidate whose min-marginal exceeds the cost of the best assignment known is dropped
(reduced-cost fixing), and CP-SAT closes the gap on the core that is left.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from search.core.core import Core, Found
from search.elimination.dual import NOISE, Dual, tighten
from search.elimination.marginals import min_marginals
from search.elimination.order import EliminationOrder
from search.presolve.reduction import shrink
from search.problem import CostEdge, Problem
from search.problem.answers import RELATIVE_TOLERANCE
from search.problem.deadline import Deadline, OutOfTime
from search.problem.local_moves import cheap_start

# Share of the time limit after which prices must leave the rest to CP-SAT.
PRICING_SHARE = 0.4


def as_problem(core: Core) -> Problem:
    """The same problem with one holding per node: further ones go to nodes that are tied to it.

    The core's nodes come first, in their order.
    """
    graph, held = core.graph, core.holdings
    offsets = graph.offsets.tolist()
    costs = [core.costs[a:b] for a, b in pairwise(offsets)]
    usages: list[np.ndarray] = [np.zeros(c.size) for c in costs]
    intervals: list[tuple[int, int] | None] = [None] * core.num_nodes
    edges: list[CostEdge] = []
    matrices: dict[tuple[int, int, int], np.ndarray] = {}
    for v in range(core.num_nodes):
        size = int(graph.sizes[v])
        for e in range(int(graph.starts[v]), int(graph.starts[v + 1])):
            u = int(graph.neighbours[e])
            if u > v:
                key = (int(graph.places[e]), size, int(graph.sizes[u]))
                if key not in matrices:
                    values = graph.matrices[key[0] : key[0] + key[1] * key[2]].reshape(key[1:])
                    matrices[key] = np.where(values >= core.penalty, np.inf, values)
                edges.append(CostEdge(source=v, target=u, matrix=matrices[key]))
        for h in range(int(held.starts[v]), int(held.starts[v + 1])):
            used = held.usages[held.places[h] : held.places[h] + size]
            interval = (int(held.first[h]), int(held.last[h]))
            if intervals[v] is None:
                usages[v], intervals[v] = used, interval
                continue
            tie = matrices.setdefault((-1, size, size), np.where(np.eye(size) > 0, 0.0, np.inf))
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
    core: Core, problem: Problem, order: EliminationOrder, *, deadline: Deadline, seed: int
) -> Found:
    """Search until optimality is proven, or time or work is up.

    Parameters
    ----------
    core
        What presolve left.
    problem
        The same as a problem, see `as_problem`.
    order
        How to eliminate its nodes.
    deadline
        When to stop.
    seed
        Seed of what is random.
    """
    dual = Dual(problem=problem, order=order)
    tighten(dual, deadline=Deadline(deadline.remaining * PRICING_SHARE))
    if dual.closed or dual.bound == math.inf or dual.stopped_by == "interrupt":
        priced = dual.prices.any() or not dual.closed
        return _found(core, dual, "lagrangian" if priced else "elimination")
    if dual.choices is None and (start := cheap_start(problem, deadline)):
        dual.offer(start)
    try:
        return _close_gap(core, dual, deadline, seed)
    except KeyboardInterrupt:
        dual.stopped_by = "interrupt"
        return _found(core, dual, "lagrangian")


def _close_gap(core: Core, dual: Dual, deadline: Deadline, seed: int) -> Found:
    """Let CP-SAT finish on the candidates that could still be part of a cheaper assignment."""
    from search.cpsat.lazy_rows import solve_core

    rest = shrink(core, _alive(core, dual, deadline))
    if rest is None:
        # Nothing is cheaper than the best assignment known.
        dual.bound = max(dual.bound, dual.cost)
        return _found(core, dual, "lagrangian > fixing")
    hint = None if dual.choices is None else rest.reduce(dual.choices[: core.num_nodes])
    answer = solve_core(rest.core, hint=hint, deadline=deadline, seed=seed, known_bound=dual.bound)
    note = f"Prices left {rest.core.costs.size} of {core.costs.size} candidates to CP-SAT."
    # Outside the rest nothing is cheaper than the assignment that prices found.
    dual.bound = max(dual.bound, min(answer.bound, max(dual.cost, dual.bound)))
    dual.stopped_by = answer.stopped_by
    if answer.choices is not None and answer.cost < dual.cost:
        dual.cost = answer.cost
        dual.choices = rest.restore(answer.choices)
    return _found(core, dual, "lagrangian > fixing > cp-sat", (note,))


def _alive(core: Core, dual: Dual, deadline: Deadline) -> np.ndarray:
    """Mark the candidates that an assignment cheaper than the best one known can contain."""
    everything = np.ones(core.costs.size, dtype=bool)
    if dual.choices is None or dual.eliminated is None:
        return everything
    try:
        marginals = min_marginals(dual.eliminated, deadline)
    except OutOfTime:
        return everything
    if marginals is None:
        return everything
    worst = dual.cost + RELATIVE_TOLERANCE * abs(dual.cost) + dual.offset * (1 + NOISE)
    alive = np.concatenate([m <= worst for m in marginals[: core.num_nodes]])
    alive[core.graph.offsets[:-1] + np.array(dual.choices[: core.num_nodes])] = True
    return alive


def _found(core: Core, dual: Dual, path: str, notes: tuple[str, ...] = ()) -> Found:
    """What is known, as an answer to the core."""
    choices = None if dual.choices is None else np.array(dual.choices[: core.num_nodes])
    short = dual.shortage is not None and choices is None
    return Found(
        choices=choices,
        cost=dual.cost,
        bound=math.inf if short else dual.bound,
        path=path,
        stopped_by=dual.stopped_by,
        notes=notes,
    )
