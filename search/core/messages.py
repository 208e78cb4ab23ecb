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

from typing import NamedTuple

import numpy as np

from search.core.core import Core, CoreGraph, Holdings
from search.core.jit import compiled

# Sums of many numbers of either sign: how much of their size may be rounding.
NOISE = 2.0**-42


class Passing(NamedTuple):
    """What a pass of messages goes by and fills, as compiled loops take it.

    Message e goes to the owner of edge e, one number per candidate of the owner from `places[e]`
    on in `values`.

    Parameters
    ----------
    shares
        Per node the share of what it has gathered that each chain gets.
    places, values
        The messages.
    reduced
        Per candidate how much the bound rises if it is imposed.
    choices
        The assignment that is read off.
    gathered, given
        Room for what one node gathers, and for what it gathers once choices are made.
    """

    shares: np.ndarray
    places: np.ndarray
    values: np.ndarray
    reduced: np.ndarray
    choices: np.ndarray
    gathered: np.ndarray
    given: np.ndarray


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
        owners = graph.owners
        lengths = graph.sizes[owners]
        places = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        later = np.bincount(owners, weights=graph.neighbours > owners, minlength=core.num_nodes)
        earlier = np.bincount(owners, weights=graph.neighbours < owners, minlength=core.num_nodes)
        widest = int(graph.sizes.max(initial=0))
        self._passing = Passing(
            shares=1.0 / np.maximum(1.0, np.maximum(later, earlier)),
            places=places,
            values=np.zeros(int(places[-1])),
            reduced=np.zeros(core.costs.size),
            choices=np.zeros(core.num_nodes, dtype=np.int64),
            gathered=np.zeros(widest),
            given=np.zeros(widest),
        )
        self.shares, self.places, self.values = self._passing[:3]
        self.reduced, self.choices = self._passing[3:5]

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
            _sweep(self.core.graph, costs, self._passing, True)
            bound = _sweep(self.core.graph, costs, self._passing, False)
        return bound


@compiled
def _sweep(graph: CoreGraph, costs: np.ndarray, passing: Passing, forward: bool) -> float:
    """One pass over all nodes in order, or in reverse; fills `reduced` and `choices`."""
    gathered, share = passing.gathered, passing.shares
    count = graph.sizes.size
    bound = 0.0
    for k in range(count):
        v = k if forward else count - 1 - k
        at, size = graph.offsets[v], graph.sizes[v]
        least = _gather(graph, costs, passing, v, forward)
        bound += least
        for i in range(size):
            gathered[i] -= least
            passing.reduced[at + i] = gathered[i]
            gathered[i] *= share[v]
        for e in range(graph.starts[v], graph.starts[v + 1]):
            if (graph.neighbours[e] > v) == forward:
                bound += _pass_on(graph, passing, e, size)
    return bound


@compiled
def _gather(graph: CoreGraph, costs: np.ndarray, passing: Passing, v: int, forward: bool) -> float:
    """Add up what a node costs and all messages to it, and let it choose by the choices made
    before it and the messages from what follows; returns the least of what was gathered."""
    gathered, given, values = passing.gathered, passing.given, passing.values
    at, size = graph.offsets[v], graph.sizes[v]
    for i in range(size):
        gathered[i] = costs[at + i]
        given[i] = costs[at + i]
    for e in range(graph.starts[v], graph.starts[v + 1]):
        u = graph.neighbours[e]
        place = passing.places[e]
        for i in range(size):
            gathered[i] += values[place + i]
        if (u < v) == forward:
            row = graph.places[graph.mirrors[e]] + passing.choices[u] * size
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
    passing.choices[v] = chosen
    return least  # type: ignore[no-any-return]


@compiled
def _pass_on(graph: CoreGraph, passing: Passing, e: int, size: int) -> float:
    """Send along an edge what its owner, of so many candidates, has gathered, but for what came
    that way; returns what the message was lowered by."""
    given, values = passing.given, passing.values
    mirror = graph.mirrors[e]
    came, goes, row = passing.places[e], passing.places[mirror], graph.places[mirror]
    for i in range(size):
        given[i] = passing.gathered[i] - values[came + i]
    lowest = np.inf
    others = graph.sizes[graph.neighbours[e]]
    for j in range(others):
        smallest = np.inf
        for i in range(size):
            value = given[i] + graph.matrices[row + i]
            smallest = value if value < smallest else smallest
        row += size
        values[goes + j] = smallest
        lowest = min(lowest, smallest)
    for j in range(others):
        values[goes + j] -= lowest
    return lowest


def priced(
    offsets: np.ndarray, costs: np.ndarray, holdings: Holdings, prices: np.ndarray
) -> np.ndarray:
    """Cost per candidate with usage paid for at a price per row.

    Parameters
    ----------
    offsets
        Where the candidates of each node begin.
    costs
        Cost per candidate, node after node.
    holdings
        What is used when.
    prices
        Price per unit in every row.
    """
    total = np.zeros(prices.size + 1)
    result = costs.copy()
    _pay(offsets, holdings, prices, total, result)
    return result


@compiled
def _pay(
    offsets: np.ndarray,
    holdings: Holdings,
    prices: np.ndarray,
    total: np.ndarray,
    result: np.ndarray,
) -> None:
    """Add what usage costs to `result`; `total` is room for sums of prices, 0 at first."""
    for t in range(prices.size):
        total[t + 1] = total[t] + prices[t]
    for v in range(offsets.size - 1):
        size = offsets[v + 1] - offsets[v]
        for h in range(holdings.starts[v], holdings.starts[v + 1]):
            rate = total[holdings.last[h]] - total[holdings.first[h]]
            if rate > 0.0:
                for i in range(size):
                    result[offsets[v] + i] += rate * holdings.usages[holdings.places[h] + i]


# What is called from outside of compiled loops.
LOOPS = (_sweep, _pay)
