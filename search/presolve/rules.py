"""What lets candidates and nodes go without changing the optimum.

Models: a node is decided where one of its candidates is best whatever else is chosen, or where the
candidates of one or two neighbours say which of its own is best: cheapest, and never using more. A
candidate goes where another one of its node is never worse: c[r] + sum over edges of
max_j (E[r, j] - E[d, j]) <= c[d] and usage[r] <= usage[d] (dead-end elimination, Goldstein 1994).
Assumes: one cheapest assignment is enough; assignments that tie may go.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from search.presolve.state import State
from search.presolve.tables import Pool, PooledArray, matrix_facts, turn

# A node with two neighbours is looked into where the three have no more triples of candidates.
MAX_TRIPLES = 400_000
# Dominance compares all pairs of candidates along every edge; beyond this many it is not tried.
MAX_COMPARED = 256
# Stands for +inf where infinities would be subtracted.
_HUGE = 1e300


def reduce_edge(state: State, a: int, b: int) -> None:
    """Do what can be done about one edge.

    Parameters
    ----------
    state
        The problem; changed.
    a, b
        The nodes that it joins.
    """
    if b not in state.edges[a]:
        return
    ahead = state.pool.once(matrix_facts, state.edges[a][b])
    back = state.pool.once(matrix_facts, state.edges[b][a])
    if ahead is not None and ahead.supported is not None:
        state.restrict(a, ahead.supported)
    elif back is not None and back.supported is not None:
        state.restrict(b, back.supported)
    elif ahead is not None and ahead.terms is not None:
        state.drop_edge(a, b)
        state.add_costs(a, ahead.terms[0])
        state.add_costs(b, ahead.terms[1])
    else:
        _reduce_tie(state, a, b, ahead and ahead.partner, back and back.partner)


def _reduce_tie(
    state: State, a: int, b: int, of_a: PooledArray | None, of_b: PooledArray | None
) -> None:
    """Let one of two nodes go if the candidate of the other says which is its own."""
    if of_a is not None and of_b is not None:
        # Fewer edges move, so that nodes with very many stay where they are.
        lighter = len(state.edges[b]) <= len(state.edges[a])
        of_a, of_b = (of_a, None) if lighter else (None, of_b)
    if of_a is not None:
        state.absorb(a, b, of_a)
    elif of_b is not None:
        state.absorb(b, a, of_b)


def reduce_node(state: State, node: int) -> None:
    """Let a node with at most two neighbours go if they decide it."""
    edges = state.edges[node]
    once, costs = state.pool.once, state.costs[node]
    if not edges:
        best = once(_best, costs, *state.usages(node))
        if best is not None:
            state.fix(node, best)
    elif len(edges) == 1:
        (other,) = edges
        partner = once(_best_partner, state.edges[other][node], costs, *state.usages(node))
        if partner is not None:
            state.absorb(other, node, partner)
    elif len(edges) == 2:
        _reduce_between(state, node)


def _best(pool: Pool, costs: PooledArray, *usages: PooledArray) -> int | None:
    found = _responses(costs.array[None, :], usages)
    return None if found is None else int(found[0])


def _best_partner(
    pool: Pool, matrix: PooledArray, costs: PooledArray, *usages: PooledArray
) -> PooledArray | None:
    found = _responses(matrix.array + costs.array, usages)
    return None if found is None else pool.table(found)


def _responses(totals: np.ndarray, usages: tuple[PooledArray, ...]) -> np.ndarray | None:
    """The column of every row that costs least and never uses more than another that is allowed;
    None where some row has none."""
    chosen: np.ndarray = totals.argmin(axis=1)
    if not usages:
        return chosen
    held = np.array([u.array for u in usages])
    cheapest = totals == totals.min(axis=1, keepdims=True)
    if cheapest.sum() > len(chosen):
        chosen = np.where(cheapest, held.sum(axis=0), np.inf).argmin(axis=1)
    allowed = np.isfinite(totals)
    for usage in held:
        if ((usage < usage[chosen][:, None]) & allowed).any():
            return None
    return chosen


def _reduce_between(state: State, node: int) -> None:
    a, b = state.edges[node]
    ahead, back = state.edges[node][a], state.edges[node][b]
    if ahead.array.size * back.array.shape[1] > MAX_TRIPLES:
        return
    usages = state.usages(node)
    found = state.pool.once(_best_between, ahead, back, state.costs[node], *usages)
    if found is None:
        return
    chosen, matrix, parts = found
    holdings = state.holdings[node]
    part_of = dict(zip(usages, parts, strict=True))
    state.bridge(node, a, b, chosen, matrix)
    for first, last, usage in holdings:
        for end, part in zip((a, b), part_of[usage], strict=True):
            state.hold(end, first, last, part)


def _best_between(
    pool: Pool, ahead: PooledArray, back: PooledArray, costs: PooledArray, *usages: PooledArray
) -> tuple[np.ndarray, PooledArray, list[tuple[PooledArray, PooledArray]]] | None:
    """The best candidate per pair of the neighbours' candidates, what it costs, and per usage how
    it is the sum of a part per neighbour; None where it is none or no candidate is best."""
    sums = back.array.T + costs.array
    if usages and _responses(sums + ahead.array[:, 0], usages) is None:
        return None
    totals = ahead.array.T[:, None, :] + sums
    size = totals.shape[:2]
    totals = totals.reshape(-1, costs.array.size)
    found = _responses(totals, usages)
    if found is None:
        return None
    least = totals[np.arange(len(found)), found].reshape(size)
    chosen = found.reshape(size)
    parts = []
    for usage in usages:
        part = _row_and_column_parts(usage.array[chosen], np.isfinite(least))
        if part is None:
            return None
        parts.append((pool.table(part[0]), pool.table(part[1])))
    return chosen, pool.table(least), parts


def _row_and_column_parts(
    usage: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Write a usage per pair as a sum of one per row and one per column, if it is one."""
    if allowed.all():
        rows, columns = usage[:, 0] - usage[0, 0], usage[0]
        if np.array_equal(usage, rows[:, None] + columns):
            return rows, columns
        return None
    low, high = np.where(allowed, usage, np.inf), np.where(allowed, usage, -np.inf)
    for axis in (1, 0):
        values = high.max(axis=axis)
        if (low.min(axis=axis) >= values).all():
            zeros = np.zeros(usage.shape[axis])
            values = np.where(np.isfinite(values), values, 0.0)
            return (values, zeros) if axis == 1 else (zeros, values)
    return None


def drop_dominated(state: State, node: int) -> bool:
    """Let candidates go that another one of the node makes superfluous."""
    if not 1 < state.costs[node].array.size <= MAX_COMPARED:
        return False
    usages = state.usages(node)
    may = state.pool.once(_use_no_more, *usages) if usages else None
    if usages and may is None:
        return False
    counts = Counter(state.edges[node].values())
    matrices = sorted(counts.items(), key=lambda item: item[0].number)
    kept = state.pool.once(_undominated, state.costs[node], may, tuple(matrices))
    if kept is not None:
        state.restrict(node, kept)
    return kept is not None


def _use_no_more(pool: Pool, *usages: PooledArray) -> PooledArray | None:
    """Which candidate (row) never uses more than another one (column); None for no two."""
    found = np.ones((usages[0].array.size,) * 2, dtype=bool)
    for usage in usages:
        found &= usage.array[:, None] <= usage.array
    np.fill_diagonal(found, False)
    return pool.table(found) if found.any() else None


def _undominated(
    pool: Pool,
    costs: PooledArray,
    may: PooledArray | None,
    matrices: tuple[tuple[PooledArray, int], ...],
) -> PooledArray | None:
    """The candidates to keep, or None for all."""
    # worse[r, d]: by how much r in place of d can raise the cost at most.
    worse = costs.array[:, None] - costs.array
    for matrix, count in matrices:
        excess = pool.once(_excess, matrix)
        worse += excess if count == 1 else count * excess
    dominates = worse <= 0
    if may is None:
        np.fill_diagonal(dominates, False)
    else:
        dominates &= may.array
    if not dominates.any():
        return None
    alive = np.ones(len(worse), dtype=bool)
    # One after the other, so that no two can remove each other.
    for candidate in np.flatnonzero(dominates.any(axis=0))[::-1]:
        alive[candidate] = not (dominates[:, candidate] & alive).any()
    return pool.table(np.flatnonzero(alive))


def _excess(pool: Pool, matrix: PooledArray) -> np.ndarray:
    """max_j (E[r, j] - E[d, j]) for all pairs of rows; a pair that d forbids counts for nothing."""
    low = pool.once(turn, matrix).array
    high = np.minimum(low, _HUGE)
    if low.size * low.shape[1] <= MAX_TRIPLES:
        found: np.ndarray = np.maximum.reduce(high[:, :, None] - low[:, None, :], axis=0)
        return found
    found = np.full((low.shape[1],) * 2, -np.inf)
    for column, lower in zip(high, low, strict=True):
        np.maximum(found, column[:, None] - lower, out=found)
    return found
