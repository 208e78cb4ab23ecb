"""Local search whose move is the best change of a whole tree of nodes at once.

Models: a random connected set of nodes that induces a tree is grown in the graph; with all other
choices held, dynamic programming finds the best choices for the tree, at given prices on usage. A
temperature adds noise to the costs (perturb and decode: Papandreou and Yuille 2011), which makes a
move a sample instead of the minimum. A move that would exceed the limit is refused, and prices
rise in the rows that would; prices decay with time, so that usage settles just below the limit.
Assumes: no answer of this module is trusted; costs are recomputed by whoever keeps an assignment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from search.core.core import Core, CoreGraph, Holdings
from search.core.jit import compiled

# Work after which a caller is asked whether to go on: about 0.1 s.
PIECE = 2.5e7
NOISE_SIZE = 2**16
# Of every so many moves, prices decay after one.
DECAY_EVERY = 64
# The generator of Lehmer (1951), whose products fit 64 bits; Park and Miller's modulus.
MULTIPLIER, MODULUS = 48271, 2**31 - 1


@lru_cache(maxsize=1)
def gumbel_noise() -> np.ndarray:
    """Numbers of the Gumbel distribution, under which the best of noisy costs is a sample."""
    return np.random.default_rng(20250330).gumbel(size=NOISE_SIZE)


class TreeSearch:
    """An assignment that moves.

    Parameters
    ----------
    core
        The core.
    choices
        Where to start; copied.
    prices
        Price per unit in every row; copied.
    seed
        Seed of what is random.
    """

    def __init__(self, core: Core, choices: np.ndarray, prices: np.ndarray, seed: int) -> None:
        self.core = core
        self.choices = choices.astype(np.int64)
        self.prices = prices.astype(np.float64)
        self.usage = core.profile(self.choices)
        self.random = np.array([seed % (MODULUS - 1) + 1], dtype=np.int64)
        # The cheapest assignment met under a limit, and its cost.
        self.best = self.choices.copy()
        self.best_cost = np.array([np.inf])
        self.reach = _reach(core.graph)

    def run(
        self,
        budget: float,
        *,
        longest: int,
        temperature: float = 0.0,
        limit: float | None = None,
        rise: float = 1.0,
        decay: float = 1.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Move until the work is done.

        Parameters
        ----------
        budget
            How many entries of tables to visit.
        longest
            The most nodes in one tree.
        temperature
            What the noise on a cost is multiplied by.
        limit
            The most that may be used in a row, which must hold already; None for no limit. [B]
        rise
            What the price of a row is multiplied by when a move would exceed the limit there.
        decay
            What all prices are multiplied by from time to time.
        stop
            Asked several times a second whether to stop early.
        """
        while budget > 0 and self.core.num_nodes and not stop():
            piece = min(budget, PIECE)
            budget -= piece
            _moves(
                self.core.graph,
                self.core.costs,
                self.core.holdings,
                np.inf if limit is None else limit,
                self.choices,
                self.usage,
                self.prices,
                np.array([temperature, rise, decay, piece]),
                longest,
                gumbel_noise(),
                self.random,
                self.reach,
                self.best,
                np.array([-np.inf]) if limit is None else self.best_cost,
            )


def _reach(graph: CoreGraph) -> int:
    """The most entries that the decisions of any forest can take."""
    owners = np.repeat(np.arange(graph.sizes.size), np.diff(graph.starts))
    widest = np.zeros(graph.sizes.size, dtype=np.int64)
    np.maximum.at(widest, owners, graph.sizes[graph.neighbours])
    return int(widest.sum()) + 1


@compiled
def _moves(
    graph: CoreGraph,
    costs: np.ndarray,
    holdings: Holdings,
    limit: float,
    choices: np.ndarray,
    usage: np.ndarray,
    prices: np.ndarray,
    settings: np.ndarray,
    longest: int,
    noise: np.ndarray,
    random: np.ndarray,
    reach: int,
    best: np.ndarray,
    best_cost: np.ndarray,
) -> None:
    """Move until the budget is spent; changes its array arguments in place."""
    temperature, rise, decay, budget = settings[0], settings[1], settings[2], settings[3]
    sizes, offsets, starts = graph.sizes, graph.offsets, graph.starts
    neighbours, mirrors, places = graph.neighbours, graph.mirrors, graph.places
    count, rows = sizes.size, prices.size
    rank = np.full(count, -1, dtype=np.int64)  # position in the tree, or -1
    tree = np.empty(count, dtype=np.int64)
    frontier = np.empty(neighbours.size + 1, dtype=np.int64)
    up = np.empty(count, dtype=np.int64)  # the edge to the parent
    local = np.empty(costs.size)
    decisions = np.empty(reach, dtype=np.int32)
    decided = np.empty(count, dtype=np.int64)  # where the decisions of a node begin
    chosen = choices.copy()
    change = np.zeros(rows + 1)
    total = np.zeros(rows + 1)  # prices summed up to a row
    for t in range(rows):
        total[t + 1] = total[t] + prices[t]
    cost = 0.0
    for v in range(count):
        cost += costs[offsets[v] + choices[v]]
        for e in range(starts[v], starts[v + 1]):
            if neighbours[e] > v:
                row = places[e] + choices[v] * sizes[neighbours[e]]
                cost += graph.matrices[row + choices[neighbours[e]]]
    state = random[0]
    moves = 0
    spent = 0.0
    while spent < budget:
        moves += 1
        # Grow a tree from a random node: a node joins if it touches the tree once.
        state = state * MULTIPLIER % MODULUS
        frontier[0] = state % count
        waiting = 1
        state = state * MULTIPLIER % MODULUS
        share = state / MODULUS
        wanted = 1 + int(share * share * longest)
        length = 0
        while waiting > 0 and length < wanted:
            state = state * MULTIPLIER % MODULUS
            pick = state % waiting
            v = frontier[pick]
            waiting -= 1
            frontier[pick] = frontier[waiting]
            if rank[v] >= 0:
                continue
            touching = 0
            for e in range(starts[v], starts[v + 1]):
                if rank[neighbours[e]] >= 0:
                    touching += 1
                    up[v] = e
            if touching > 1:
                continue
            rank[v] = length
            tree[length] = v
            length += 1
            for e in range(starts[v], starts[v + 1]):
                if rank[neighbours[e]] < 0 and waiting < frontier.size:
                    frontier[waiting] = neighbours[e]
                    waiting += 1
            spent += starts[v + 1] - starts[v]
        # Costs given the choices outside the tree.
        for k in range(length):
            v = tree[k]
            at, size = offsets[v], sizes[v]
            for i in range(size):
                local[at + i] = costs[at + i]
            for h in range(holdings.starts[v], holdings.starts[v + 1]):
                rate = total[holdings.last[h]] - total[holdings.first[h]]
                if rate > 0.0:
                    place = holdings.places[h]
                    for i in range(size):
                        local[at + i] += rate * holdings.usages[place + i]
            for e in range(starts[v], starts[v + 1]):
                u = neighbours[e]
                if rank[u] < 0:
                    row = places[mirrors[e]] + choices[u] * size
                    for i in range(size):
                        local[at + i] += graph.matrices[row + i]
            if temperature > 0.0:
                state = state * MULTIPLIER % MODULUS
                draw = state % (noise.size - size) if size < noise.size else 0
                for i in range(size):
                    local[at + i] -= temperature * noise[(draw + i) % noise.size]
            spent += size * (1 + starts[v + 1] - starts[v])
        # From the leaves to the root, then back.
        place = 0
        for k in range(length - 1, 0, -1):
            v = tree[k]
            e = up[v]
            p = neighbours[e]
            at, size = offsets[v], sizes[v]
            row = places[mirrors[e]]
            decided[v] = place
            for j in range(sizes[p]):
                least = np.inf
                for i in range(size):
                    value = local[at + i] + graph.matrices[row + i]
                    least = value if value < least else least
                where = 0
                while local[at + where] + graph.matrices[row + where] != least:
                    where += 1
                decisions[place + j] = where
                local[offsets[p] + j] += least
                row += size
            place += sizes[p]
            spent += size * sizes[p]
        for k in range(length):
            v = tree[k]
            if k > 0:
                chosen[v] = decisions[decided[v] + chosen[neighbours[up[v]]]]
            else:
                at = offsets[v]
                where = 0
                for i in range(1, sizes[v]):
                    if local[at + i] < local[at + where]:
                        where = i
                chosen[v] = where
        # What changes in cost and in usage.
        low, high = rows, 0
        gain = 0.0
        for k in range(length):
            v = tree[k]
            old, new = choices[v], chosen[v]
            if old == new:
                continue
            gain += costs[offsets[v] + new] - costs[offsets[v] + old]
            for e in range(starts[v], starts[v + 1]):
                u = neighbours[e]
                # An edge between two nodes that change is counted once.
                if u < v or chosen[u] == choices[u]:
                    gain += graph.matrices[places[e] + new * sizes[u] + chosen[u]]
                    gain -= graph.matrices[places[e] + old * sizes[u] + choices[u]]
            for h in range(holdings.starts[v], holdings.starts[v + 1]):
                more = holdings.usages[holdings.places[h] + new]
                more -= holdings.usages[holdings.places[h] + old]
                if more != 0.0:
                    first, last = holdings.first[h], holdings.last[h]
                    change[first] += more
                    change[last] -= more
                    low = min(low, first)
                    high = max(high, last)
        fits = True
        more = 0.0
        for t in range(low, high):
            more += change[t]
            if more > 0.0 and usage[t] + more > limit:
                fits = False
                prices[t] *= rise
        spent += max(0, high - low)
        if fits:
            more = 0.0
            for t in range(low, high):
                more += change[t]
                usage[t] += more
            for k in range(length):
                choices[tree[k]] = chosen[tree[k]]
            cost += gain
            if cost < best_cost[0]:
                best_cost[0] = cost
                best[:] = choices
                spent += count
        else:
            for k in range(length):
                chosen[tree[k]] = choices[tree[k]]
        if low < high:
            change[low : high + 1] = 0.0
        if not fits or (decay != 1.0 and moves % DECAY_EVERY == 0):
            if fits:
                prices *= decay
            for t in range(rows):
                total[t + 1] = total[t] + prices[t]
            spent += rows
        for k in range(length):
            rank[tree[k]] = -1
    random[0] = state
