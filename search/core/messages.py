"""Message passing: a proven bound on a core's cost at given prices, and assignments close to it.

Models: sequential tree-reweighted message passing (TRW-S, Kolmogorov 2006). The graph is covered by
chains that follow the order of the nodes; a node passes on an equal share of what it has gathered
to each chain through it. The minima of all nodes and messages of one pass add up to a bound that
never falls from pass to pass, and that is exact on trees. Per candidate, what the node has gathered
above its least says how much the bound rises if that candidate is imposed (a reduced cost).
An assignment is read off on the way: every node takes the candidate that is best for the choices
made before it and the messages from what follows (conditional decoding).
Assumes: prices on rows are folded into the node costs by whoever calls.
"""

from __future__ import annotations

import numpy as np

from search.core.core import Core, CoreGraph, Holdings
from search.core.jit import compiled

# Sums of many numbers of either sign: how much of their size may be rounding.
NOISE = 2.0**-42


class Messages:
    """The messages along all edges of a core; they improve with every pass.

    Parameters
    ----------
    core
        The core.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        graph = core.graph
        owners = np.repeat(np.arange(core.num_nodes), np.diff(graph.starts))
        # Message e goes to the owner of edge e, one number per candidate of the owner.
        lengths = graph.sizes[owners]
        self.places = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.values = np.zeros(int(self.places[-1]))
        later = np.bincount(owners, weights=graph.neighbours > owners, minlength=core.num_nodes)
        earlier = np.bincount(owners, weights=graph.neighbours < owners, minlength=core.num_nodes)
        self.shares = 1.0 / np.maximum(1.0, np.maximum(later, earlier))
        self.reduced = np.zeros(core.costs.size)
        self.choices = np.zeros(core.num_nodes, dtype=np.int64)
        self.work = 4.0 * core.num_pairs + 4.0 * self.values.size + core.costs.size

    def passes(self, costs: np.ndarray, count: int = 1) -> float:
        """Pass messages forth and back; returns the bound, without the core's constant.

        Parameters
        ----------
        costs
            Cost per candidate at the prices of the day.
        count
            How often to pass.
        """
        bound = -np.inf
        for _ in range(count):
            _sweep(self.core.graph, costs, self.shares, self.places, self.values,
                   self.reduced, self.choices, True)  # fmt: skip
            bound = _sweep(self.core.graph, costs, self.shares, self.places, self.values,
                           self.reduced, self.choices, False)  # fmt: skip
        return bound


@compiled
def _sweep(
    graph: CoreGraph,
    costs: np.ndarray,
    shares: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
    reduced: np.ndarray,
    choices: np.ndarray,
    forward: bool,
) -> float:
    """One pass over all nodes in order, or in reverse; fills `reduced` and `choices`."""
    sizes, offsets, starts = graph.sizes, graph.offsets, graph.starts
    count = sizes.size
    widest = 0
    for v in range(count):
        widest = max(widest, sizes[v])
    gathered = np.empty(widest)
    given = np.empty(widest)
    bound = 0.0
    for k in range(count):
        v = k if forward else count - 1 - k
        at, size = offsets[v], sizes[v]
        for i in range(size):
            gathered[i] = costs[at + i]
            given[i] = costs[at + i]
        for e in range(starts[v], starts[v + 1]):
            u = graph.neighbours[e]
            place = places[e]
            for i in range(size):
                gathered[i] += values[place + i]
            if (u < v) == forward:
                row = graph.places[graph.mirrors[e]] + choices[u] * size
                for i in range(size):
                    given[i] += graph.matrices[row + i]
            else:
                for i in range(size):
                    given[i] += values[place + i]
        least, best, chosen = gathered[0], given[0], 0
        for i in range(1, size):
            least = min(least, gathered[i])
            if given[i] < best:
                best = given[i]
                chosen = i
        choices[v] = chosen
        bound += least
        share = shares[v]
        for i in range(size):
            gathered[i] -= least
            reduced[at + i] = gathered[i]
            gathered[i] *= share
        for e in range(starts[v], starts[v + 1]):
            u = graph.neighbours[e]
            if (u > v) != forward:
                continue
            mirror = graph.mirrors[e]
            came, goes, row = places[e], places[mirror], graph.places[mirror]
            for i in range(size):
                given[i] = gathered[i] - values[came + i]
            lowest = np.inf
            for j in range(sizes[u]):
                smallest = np.inf
                for i in range(size):
                    value = given[i] + graph.matrices[row + i]
                    smallest = value if value < smallest else smallest
                row += size
                values[goes + j] = smallest
                lowest = min(lowest, smallest)
            for j in range(sizes[u]):
                values[goes + j] -= lowest
            bound += lowest
    return bound


@compiled
def priced(
    offsets: np.ndarray, costs: np.ndarray, holdings: Holdings, prices: np.ndarray
) -> np.ndarray:
    """Cost per candidate with usage paid for at a price per row."""
    total = np.zeros(prices.size + 1)
    for t in range(prices.size):
        total[t + 1] = total[t] + prices[t]
    result = costs.copy()
    for v in range(offsets.size - 1):
        size = offsets[v + 1] - offsets[v]
        for h in range(holdings.starts[v], holdings.starts[v + 1]):
            rate = total[holdings.last[h]] - total[holdings.first[h]]
            if rate > 0.0:
                for i in range(size):
                    result[offsets[v] + i] += rate * holdings.usages[holdings.places[h] + i]
    return result
