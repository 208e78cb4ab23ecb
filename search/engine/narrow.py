"""Cores that elimination accepts: exact prices, exact reduced costs, and CP-SAT on the rest.

Models: see `search.elimination.dual` for the prices. Elimination gives the min-marginals at the
best prices; a candidate whose min-marginal exceeds the cost of the best assignment known is dropped
(reduced-cost fixing), and CP-SAT closes the gap on the core that is left.
"""

from __future__ import annotations

import numpy as np

from search.core.core import Core
from search.core.pairwise_costs import PairwiseCosts
from search.elimination.dual import Dual, tighten
from search.elimination.marginals import min_marginals
from search.elimination.order import EliminationOrder
from search.presolve.reduction import shrink
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import RELATIVE_TOLERANCE, Incumbent
from search.problem.local_moves import cheap_start
from search.problem.notes import Note

# Share of the time limit after which prices must leave the rest to CP-SAT.
PRICING_SHARE = 0.4


def search_narrow(
    core: Core,
    known: Incumbent[np.ndarray],
    pairs: PairwiseCosts,
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
    pairs
        Its nodes and edges.
    order
        How to eliminate its nodes.
    deadline
        When to stop.
    seed
        Seed of what is random.
    """
    dual = Dual(problem=pairs, order=order, known=Incumbent(watch=known.watch))
    tighten(dual, deadline=Deadline(deadline.remaining * PRICING_SHARE))
    priced = dual.known
    if priced.closed or priced.stopped_by == "interrupt":
        decided = priced.choices is not None or dual.shortage is not None
        exact = priced.closed and decided and not dual.prices.any()
        _take_over(core, known, dual, "elimination" if exact else "lagrangian")
        return
    try:
        if priced.choices is None and (start := cheap_start(pairs, deadline)):
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
        hint = rest.reduce(priced.choices)
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
    worst = cost + RELATIVE_TOLERANCE * abs(cost) + sum(dual.worth(dual.prices))
    alive = np.concatenate([m <= worst for m in marginals])
    alive[core.graph.offsets[:-1] + np.array(choices)] = True
    return alive


def _take_over(core: Core, known: Incumbent[np.ndarray], dual: Dual, path: str) -> None:
    """Hand what prices have shown to the core's search."""
    priced = dual.known
    known.watch = None  # Prices have told of it already, and the end is told by whoever asked.
    known.path, known.stopped_by = path, priced.stopped_by
    if priced.choices is not None:
        known.offer(np.array(priced.choices), priced.cost)
    known.raise_bound(priced.bound)
