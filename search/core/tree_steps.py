"""The steps of a tree move, compiled: grow a tree, decide, see what changes, accept or not.

Models: see `search.core.tree_moves`.
Assumes: all arrays are made by the caller, and choices are candidates that there are.
"""

from __future__ import annotations

import numpy as np

from search.core.core import CoreGraph, Holdings
from search.core.jit import compiled
from search.core.tree_state import MoveRules, Moving, Workspace

# Of every so many moves, prices decay after one: adding them up anew takes as long as a move.
DECAY_EVERY = 64
# The generator of Lehmer (1951), whose products fit 64 bits; Park and Miller's modulus.
MULTIPLIER, MODULUS = 48271, 2**31 - 1


@compiled
def move_on(
    graph: CoreGraph,
    costs: np.ndarray,
    holdings: Holdings,
    rules: MoveRules,
    moving: Moving,
    space: Workspace,
    noise: np.ndarray,
    budget: float,
) -> None:
    """Move until the budget of entries is spent; changes `moving` in place.

    Parameters
    ----------
    graph, costs, holdings
        Of the core.
    rules
        What moves keep to.
    moving, space
        The assignment with what goes along with it, and room for the work on one move.
    noise
        Numbers that a temperature multiplies.
    budget
        How many entries of tables to visit.
    """
    choices, prices = moving.choices, moving.prices
    _add_up(prices, space.paid)
    cost = _free_cost(graph, costs, choices)
    moves = 0
    spent = 0.0
    while spent < budget:
        moves += 1
        length, entries = _grow_tree(graph, rules.longest, moving.random, space)
        spent += entries
        spent += _find_local_costs(graph, costs, holdings, choices, length, space)
        if rules.temperature > 0.0:
            _add_noise(graph, rules.temperature, noise, moving.random, length, space)
        spent += _decide(graph, length, space)
        gain, low, high = _find_change(graph, costs, holdings, choices, length, space)
        spent += max(0, high - low)
        fits = _raise_prices(rules, moving, space.change, low, high)
        if fits:
            _accept(moving, length, space, low, high)
            cost += gain
            if cost < moving.best_cost[0]:
                moving.best_cost[0] = cost
                for v in range(choices.size):
                    moving.best[v] = choices[v]
                spent += choices.size
        if not fits or (rules.decay != 1.0 and moves % DECAY_EVERY == 0):
            if fits:
                for t in range(prices.size):
                    prices[t] *= rules.decay
            _add_up(prices, space.paid)
            spent += prices.size
        _clear(choices, length, space, low, high)


@compiled
def _add_up(prices: np.ndarray, paid: np.ndarray) -> None:
    """Sum prices up to every row."""
    for t in range(prices.size):
        paid[t + 1] = paid[t] + prices[t]


@compiled
def _free_cost(graph: CoreGraph, costs: np.ndarray, choices: np.ndarray) -> float:
    """What an assignment costs, without the core's constant."""
    cost = 0.0
    for v in range(choices.size):
        cost += costs[graph.offsets[v] + choices[v]]
        for e in range(graph.starts[v], graph.starts[v + 1]):
            u = graph.neighbours[e]
            if u > v:
                row = graph.places[e] + choices[v] * graph.sizes[u]
                cost += graph.matrices[row + choices[u]]
    return cost


@compiled
def _draw(random: np.ndarray) -> int:
    """The next random number, below the modulus."""
    random[0] = random[0] * MULTIPLIER % MODULUS
    return random[0]  # type: ignore[no-any-return]


@compiled
def _grow_tree(
    graph: CoreGraph, longest: int, random: np.ndarray, space: Workspace
) -> tuple[int, int]:
    """Grow a tree from a random node, where a node joins if it touches the tree once; returns
    how many nodes it has and how many edges were looked at."""
    starts, neighbours = graph.starts, graph.neighbours
    place, frontier = space.place, space.frontier
    frontier[0] = _draw(random) % place.size
    waiting = 1
    share = _draw(random) / MODULUS
    wanted = 1 + int(share * share * longest)
    length = 0
    entries = 0
    while waiting > 0 and length < wanted:
        pick = _draw(random) % waiting
        v = frontier[pick]
        waiting -= 1
        frontier[pick] = frontier[waiting]
        if place[v] >= 0:
            continue
        touching = 0
        for e in range(starts[v], starts[v + 1]):
            if place[neighbours[e]] >= 0:
                touching += 1
                space.up[v] = e
        if touching > 1:
            continue
        place[v] = length
        space.tree[length] = v
        length += 1
        for e in range(starts[v], starts[v + 1]):
            if place[neighbours[e]] < 0 and waiting < frontier.size:
                frontier[waiting] = neighbours[e]
                waiting += 1
        entries += starts[v + 1] - starts[v]
    return length, entries


@compiled
def _find_local_costs(
    graph: CoreGraph,
    costs: np.ndarray,
    holdings: Holdings,
    choices: np.ndarray,
    length: int,
    space: Workspace,
) -> int:
    """Cost of every candidate in the tree at the prices of the day, given the choices outside of
    it; returns how many entries were visited."""
    local, paid = space.local, space.paid
    entries = 0
    for k in range(length):
        v = space.tree[k]
        at, size = graph.offsets[v], graph.sizes[v]
        for i in range(size):
            local[at + i] = costs[at + i]
        for h in range(holdings.starts[v], holdings.starts[v + 1]):
            rate = paid[holdings.last[h]] - paid[holdings.first[h]]
            if rate > 0.0:
                used = holdings.places[h]
                for i in range(size):
                    local[at + i] += rate * holdings.usages[used + i]
        for e in range(graph.starts[v], graph.starts[v + 1]):
            u = graph.neighbours[e]
            if space.place[u] < 0:
                row = graph.places[graph.mirrors[e]] + choices[u] * size
                for i in range(size):
                    local[at + i] += graph.matrices[row + i]
        entries += size * (1 + graph.starts[v + 1] - graph.starts[v])
    return entries


@compiled
def _add_noise(
    graph: CoreGraph,
    temperature: float,
    noise: np.ndarray,
    random: np.ndarray,
    length: int,
    space: Workspace,
) -> None:
    """Perturb the local costs, so that the best choices become a sample."""
    for k in range(length):
        v = space.tree[k]
        at, size = graph.offsets[v], graph.sizes[v]
        drawn = _draw(random)
        first = drawn % (noise.size - size) if size < noise.size else 0
        for i in range(size):
            space.local[at + i] -= temperature * noise[(first + i) % noise.size]


@compiled
def _decide(graph: CoreGraph, length: int, space: Workspace) -> int:
    """Find the best choices for the tree, from its leaves to its root and back; returns how many
    entries were visited."""
    tree, up, local, chosen = space.tree, space.up, space.local, space.chosen
    decisions, decided = space.decisions, space.decided
    sizes, offsets, matrices = graph.sizes, graph.offsets, graph.matrices
    place = 0
    entries = 0
    for k in range(length - 1, 0, -1):
        v = tree[k]
        p = graph.neighbours[up[v]]
        at, size = offsets[v], sizes[v]
        row = graph.places[graph.mirrors[up[v]]]
        decided[v] = place
        for j in range(sizes[p]):
            least = np.inf
            for i in range(size):
                value = local[at + i] + matrices[row + i]
                least = value if value < least else least
            where = 0
            while local[at + where] + matrices[row + where] != least:
                where += 1
            decisions[place + j] = where
            local[offsets[p] + j] += least
            row += size
        place += sizes[p]
        entries += size * sizes[p]
    root = tree[0]
    at = offsets[root]
    best = 0
    for i in range(1, sizes[root]):
        if local[at + i] < local[at + best]:
            best = i
    chosen[root] = best
    for k in range(1, length):
        v = tree[k]
        chosen[v] = decisions[decided[v] + chosen[graph.neighbours[up[v]]]]
    return entries


@compiled
def _find_change(
    graph: CoreGraph,
    costs: np.ndarray,
    holdings: Holdings,
    choices: np.ndarray,
    length: int,
    space: Workspace,
) -> tuple[float, int, int]:
    """What the move changes: the cost by how much, and usage from which row to before which."""
    chosen, change = space.chosen, space.change
    low, high = change.size - 1, 0
    gain = 0.0
    for k in range(length):
        v = space.tree[k]
        old, new = choices[v], chosen[v]
        if old == new:
            continue
        gain += costs[graph.offsets[v] + new] - costs[graph.offsets[v] + old]
        for e in range(graph.starts[v], graph.starts[v + 1]):
            u = graph.neighbours[e]
            # An edge between two nodes that change is counted once.
            if u < v or chosen[u] == choices[u]:
                at, size = graph.places[e], graph.sizes[u]
                gain += graph.matrices[at + new * size + chosen[u]]
                gain -= graph.matrices[at + old * size + choices[u]]
        for h in range(holdings.starts[v], holdings.starts[v + 1]):
            more = holdings.usages[holdings.places[h] + new]
            more -= holdings.usages[holdings.places[h] + old]
            if more != 0.0:
                first, last = holdings.first[h], holdings.last[h]
                change[first] += more
                change[last] -= more
                low = min(low, first)
                high = max(high, last)
    return gain, low, high


@compiled
def _raise_prices(
    rules: MoveRules, moving: Moving, change: np.ndarray, low: int, high: int
) -> bool:
    """Raise the price of every row that the move would fill above the limit; whether none is."""
    fits = True
    more = 0.0
    for t in range(low, high):
        more += change[t]
        if more > 0.0 and moving.usage[t] + more > rules.limit:
            fits = False
            moving.prices[t] *= rules.rise
    return fits


@compiled
def _accept(moving: Moving, length: int, space: Workspace, low: int, high: int) -> None:
    """Make the move."""
    more = 0.0
    for t in range(low, high):
        more += space.change[t]
        moving.usage[t] += more
    for k in range(length):
        moving.choices[space.tree[k]] = space.chosen[space.tree[k]]


@compiled
def _clear(choices: np.ndarray, length: int, space: Workspace, low: int, high: int) -> None:
    """Make room for the next move."""
    for k in range(length):
        space.chosen[space.tree[k]] = choices[space.tree[k]]
        space.place[space.tree[k]] = -1
    if low < high:
        for t in range(low, high + 1):
            space.change[t] = 0.0
