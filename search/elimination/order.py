"""In which order to eliminate nodes, decided on the graph alone.

Models: eliminating a node joins its remaining neighbours in one table with an entry for every
combination of their candidates (Bertele and Brioschi 1972; Dechter 1999, bucket elimination).
Nodes of degree 0, 1 and 2 - all there are in a series-parallel graph - give tables of at most two
dimensions. Two greedy orders are tried, the cheaper is kept: least work next (min-weight), and
fewest new neighbours next (min-fill). Of equals the one with the fewest neighbours in the whole
graph goes first: the inside of a block before the joints between blocks, so that repeated blocks
fold to the same table before anything outside reaches into them.
Assumes: nodes with one candidate were cut out of the graph, as they never widen a table.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from search.errors import ProblemError

# Below this much work a better order would not pay for the time to find it.
CHEAP_WORK = 2.0e7
# Min-fill takes long on huge graphs, and does not rescue them.
MAX_FILL_NODES = 10_000
# No table of this many entries is ever made.
HOPELESS = 1e30


class EliminationOrder(Struct, frozen=True, kw_only=True):
    """An order, and what it costs to follow it.

    Parameters
    ----------
    nodes
        The nodes, first eliminated first.
    scopes
        For each of them the neighbours it joins, first eliminated first.
    elements
        Entries of all the tables that are made.
    width
        The most nodes joined in one step.
    work
        Entries visited.
    """

    nodes: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    elements: float
    width: int
    work: float


def plan_elimination(
    sizes: Sequence[int], pairs: Iterable[tuple[int, int]], *, max_elements: float
) -> EliminationOrder:
    """Plan the cheaper of two greedy orders, or refuse where its tables would be too large.

    Parameters
    ----------
    sizes
        Candidates per node.
    pairs
        Pairs of nodes that share an edge.
    max_elements
        The most entries that all tables together may have.
    """
    neighbours: list[set[int]] = [set() for _ in sizes]
    for a, b in pairs:
        if sizes[a] > 1 and sizes[b] > 1:
            neighbours[a].add(b)
            neighbours[b].add(a)
    order = _greedy(sizes, neighbours, _weight, max_elements)
    if order.work > CHEAP_WORK and len(sizes) <= MAX_FILL_NODES:
        other = _greedy(sizes, neighbours, _fill, min(order.elements, max_elements))
        # an order that was given up on is not shorter but cut short
        if len(other.nodes) == len(sizes):
            order = min(order, other, key=lambda o: (o.elements > max_elements, o.work))
    if order.elements > max_elements:
        raise ProblemError(
            f"elimination must keep its tables within {max_elements:.3g} entries, but would join"
            f" {order.width} nodes in one table and reach {order.elements:.3g} entries; use the"
            " solver auto, which falls back on a heuristic with a bound"
        )
    return order


Score = Callable[[Sequence[int], list[set[int]], int], float]


def _weight(sizes: Sequence[int], neighbours: list[set[int]], node: int) -> float:
    weight = float(sizes[node])
    for u in neighbours[node]:
        weight *= sizes[u]
        if weight > HOPELESS:
            # Hubs of huge graphs: what their tables would take beyond this makes no difference.
            return HOPELESS
    return weight


def _fill(sizes: Sequence[int], neighbours: list[set[int]], node: int) -> float:
    around = neighbours[node]
    present = sum(len(around & neighbours[u]) for u in around)
    missing = len(around) * (len(around) - 1) - present
    return float(missing)


def _greedy(
    sizes: Sequence[int], start: list[set[int]], score: Score, max_elements: float
) -> EliminationOrder:
    """Eliminate the node of least score until none is left or the tables grow too large."""
    neighbours = [set(s) for s in start]
    current = {v: score(sizes, neighbours, v) for v in range(len(sizes))}
    heap = [(value, len(start[v]), v) for v, value in current.items()]
    heapq.heapify(heap)
    nodes: list[int] = []
    joined: list[set[int]] = []
    elements = work = 0.0
    width = 0
    while heap and elements <= max_elements:
        value, _, node = heapq.heappop(heap)
        if current.get(node) != value:
            continue  # An outdated entry; the fresh one is elsewhere in the heap.
        del current[node]
        around = neighbours[node]
        table = math.prod(float(sizes[u]) for u in around)
        elements += table
        work += table * sizes[node]
        width = max(width, len(around) + 1)
        nodes.append(node)
        joined.append(around)
        touched = set(around)
        for u in around:
            neighbours[u].discard(node)
            if len(around) > 1:
                neighbours[u] |= around
                neighbours[u].discard(u)
        # Without a leaf, nothing changes beyond its one neighbour.
        if score is _fill and len(around) > 1:
            touched.update(*(neighbours[u] for u in around))
        for u in sorted(touched):
            fresh = score(sizes, neighbours, u)
            if fresh != current[u]:
                current[u] = fresh
                heapq.heappush(heap, (fresh, len(start[u]), u))
    rank = {v: i for i, v in enumerate(nodes)}
    return EliminationOrder(
        nodes=tuple(nodes),
        scopes=tuple(
            tuple(sorted(around, key=lambda u: rank.get(u, len(sizes)))) for around in joined
        ),
        elements=elements,
        width=width,
        work=work,
    )
