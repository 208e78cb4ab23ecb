"""What presolve leaves of a problem, in flat arrays that compiled loops can walk.

Models: nodes with candidates, edges stored at both of their ends, and any number of holdings per
node: a holding is used during one run of rows (time steps), by an amount that depends on the
node's candidate. What is used whatever is chosen is the base of a row. A constant is what the
nodes that are gone cost.
Assumes: node costs are finite; no two edges join the same nodes; +inf in a matrix forbids a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from search.problem.flat import offsets_of
from search.problem.timeline import UsageTimeline

# (source, target, matrix)
CoreEdge = tuple[int, int, np.ndarray]
# (node, first row, row after the last, usage per candidate)
CoreHolding = tuple[int, int, int, np.ndarray]


class CoreGraph(NamedTuple):
    """Nodes and edges as compiled loops take them.

    Node v's candidate i is at `offsets[v] + i`. The edges of v are at `starts[v]` to
    `starts[v + 1]`; edge e belongs to `owners[e]`, leads to `neighbours[e]` and is seen from there
    as `mirrors[e]`. Its matrix starts at `places[e]` with a row per candidate of v, and at
    `places[mirrors[e]]` with a row per candidate of the neighbour. Forbidden pairs cost `penalty`.
    """

    sizes: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    owners: np.ndarray
    neighbours: np.ndarray
    mirrors: np.ndarray
    places: np.ndarray
    matrices: np.ndarray


class Holdings(NamedTuple):
    """Holdings as compiled loops take them.

    Those of node v are at `starts[v]` to `starts[v + 1]`; holding h belongs to `owners[h]`, covers
    the rows `first[h]` to just before `last[h]`, and candidate i uses `usages[places[h] + i]`.
    """

    starts: np.ndarray
    owners: np.ndarray
    first: np.ndarray
    last: np.ndarray
    places: np.ndarray
    usages: np.ndarray


class Core(Struct, frozen=True, kw_only=True, eq=False):
    """A problem in flat arrays.

    Parameters
    ----------
    graph
        Nodes and edges; forbidden pairs cost `penalty`.
    costs
        Cost per candidate, node after node; finite.
    holdings
        What is used when; the least of every holding is 0.
    base
        Usage per row whatever is chosen. [B]
    limit
        The most that may be used in any row; +inf where there is no limit. [B]
    constant
        What is paid whatever is chosen.
    penalty
        What a forbidden pair costs in `graph`: more than any two assignments differ by.
    """

    graph: CoreGraph
    costs: np.ndarray
    holdings: Holdings
    base: np.ndarray
    limit: float
    constant: float
    penalty: float

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return int(self.graph.sizes.size)

    @property
    def num_rows(self) -> int:
        """In how many rows usage can exceed the limit."""
        return int(self.base.size)

    @property
    def num_pairs(self) -> int:
        """How many pairs of candidates all edges have together."""
        graph = self.graph
        return int((graph.sizes[graph.owners] * graph.sizes[graph.neighbours]).sum()) // 2

    def cost(self, choices: np.ndarray) -> float:
        """Cost of an assignment; with a forbidden pair, more than any that is allowed."""
        graph = self.graph
        once = np.flatnonzero(graph.owners < graph.neighbours)
        pairs = self._pairs(choices)[once]
        nodes = self.costs[graph.offsets[:-1] + choices].sum()
        return float(nodes + graph.matrices[pairs].sum()) + self.constant

    def profile(self, choices: np.ndarray) -> np.ndarray:
        """Usage per row. [B]"""
        held = self.holdings
        return self.timeline.profile(held.usages[held.places + choices[held.owners]])

    @property
    def timeline(self) -> UsageTimeline:
        """The rows, and which of them each holding covers."""
        rows, held = np.arange(self.num_rows), self.holdings
        return UsageTimeline(steps=rows, first=held.first, last=held.last, base=self.base)

    @property
    def limit_is_slack(self) -> bool:
        """Whether no assignment at all can exceed the limit."""
        held = self.holdings
        ends = held.places + self.graph.sizes[held.owners]
        most = [float(held.usages[a:b].max()) for a, b in zip(held.places, ends, strict=True)]
        return not (self.timeline.profile(np.array(most)) > self.limit).any()

    def is_over(self, choices: np.ndarray) -> bool:
        """Whether an assignment uses more than the limit in some row."""
        return bool((self.profile(choices) > self.limit).any())

    def forbids(self, choices: np.ndarray) -> bool:
        """Whether an assignment contains a forbidden pair."""
        return bool((self.graph.matrices[self._pairs(choices)] >= self.penalty).any())

    def fits(self, choices: np.ndarray) -> bool:
        """Whether an assignment is neither over the limit nor forbidden."""
        return not self.is_over(choices) and not self.forbids(choices)

    def _pairs(self, choices: np.ndarray) -> np.ndarray:
        """Where the matrices hold the pair that an assignment takes along every edge."""
        graph = self.graph
        ends = graph.neighbours
        columns = graph.sizes[ends]
        return np.asarray(graph.places + choices[graph.owners] * columns + choices[ends])


def make_core(
    costs: Sequence[np.ndarray],
    edges: Sequence[CoreEdge],
    holdings: Sequence[CoreHolding],
    *,
    base: np.ndarray,
    limit: float,
    constant: float = 0.0,
) -> Core:
    """Lay a problem out in flat arrays; matrices and usages that are one object are stored once.

    Parameters
    ----------
    costs
        Finite costs per candidate, one array per node.
    edges
        At most one per pair of nodes; +inf forbids a pair.
    holdings
        Any number per node.
    base
        Usage per row whatever is chosen. [B]
    limit
        The most that may be used in any row. [B]
    constant
        What is paid whatever is chosen.
    """
    sizes = np.array([c.size for c in costs], dtype=np.int64)
    flat = np.concatenate(list(costs)) if costs else np.zeros(0)
    starts = offsets_of(sizes)[:-1]
    spread = (
        np.maximum.reduceat(flat, starts) - np.minimum.reduceat(flat, starts) if costs else flat
    )
    penalty = float(spread.sum()) + _room([matrix for _, _, matrix in edges])
    # A copy: it takes over what holdings always use.
    base = base.astype(np.float64)
    return Core(
        graph=_graph(sizes, edges, penalty),
        costs=flat,
        holdings=_holdings(sizes.size, holdings, base),
        base=base,
        limit=limit,
        constant=constant,
        penalty=penalty,
    )


def _graph(sizes: np.ndarray, edges: Sequence[CoreEdge], penalty: float) -> CoreGraph:
    """Store every edge at both of its ends, in the order of its nodes."""
    store = _Store()
    ends = np.array([(s, t, store.add(m), store.add(m, turned=True)) for s, t, m in edges])
    sources, targets, ahead, back = ends.astype(np.int64).reshape(-1, 4).T
    owners = np.concatenate([sources, targets])
    neighbours = np.concatenate([targets, sources])
    order = np.lexsort((neighbours, owners))
    position = np.empty(order.size, dtype=np.int64)
    position[order] = np.arange(order.size)
    matrices = store.joined()
    matrices[np.isinf(matrices)] = penalty
    return CoreGraph(
        sizes=sizes,
        offsets=offsets_of(sizes),
        starts=offsets_of(np.bincount(owners, minlength=sizes.size)),
        owners=owners[order],
        neighbours=neighbours[order],
        mirrors=np.roll(position, sources.size)[order],
        places=np.concatenate([ahead, back])[order],
        matrices=matrices,
    )


def _holdings(num_nodes: int, holdings: Sequence[CoreHolding], base: np.ndarray) -> Holdings:
    """Sort holdings by node; what is always used is moved to `base`."""
    store = _Store()
    kept: list[tuple[int, int, int, int]] = []
    for node, first, last, usages in sorted(holdings, key=itemgetter(0, 1, 2)):
        least = usages.min()
        if least:
            base[first:last] += least
            usages = usages - least
        if usages.any():
            kept.append((node, first, last, store.add(usages)))
    nodes, starts, ends, places = np.array(kept, dtype=np.int64).reshape(-1, 4).T.copy()
    return Holdings(
        starts=offsets_of(np.bincount(nodes, minlength=num_nodes)),
        owners=nodes,
        first=starts,
        last=ends,
        places=places,
        usages=store.joined(),
    )


class _Store:
    """Arrays end to end, each object once."""

    def __init__(self) -> None:
        # The arrays are kept along with their places, so that no id is taken twice.
        self._places: dict[tuple[int, bool], tuple[int, np.ndarray]] = {}
        self._flat: list[np.ndarray] = []
        self._size = 0

    def add(self, array: np.ndarray, *, turned: bool = False) -> int:
        """Where the array, or its transpose, begins."""
        key = (id(array), turned)
        if key not in self._places:
            self._places[key] = (self._size, array)
            self._flat.append((array.T if turned else array).ravel())
            self._size += array.size
        return self._places[key][0]

    def joined(self) -> np.ndarray:
        """All arrays end to end, a copy."""
        return np.concatenate([np.zeros(0), *self._flat])


def _room(matrices: Sequence[np.ndarray]) -> float:
    """More than the allowed entries of all matrices can add up to above their least sum, and more
    than any of them."""
    known: dict[int, tuple[float, float]] = {}
    for matrix in matrices:
        if id(matrix) not in known:
            allowed = matrix[np.isfinite(matrix)]
            least, most = float(allowed.min(initial=np.inf)), float(allowed.max(initial=-np.inf))
            known[id(matrix)] = (most - least, most) if allowed.size else (0.0, 0.0)
    spread = sum(known[id(matrix)][0] for matrix in matrices)
    return 1.0 + spread + max([0.0, *(most for _, most in known.values())])
