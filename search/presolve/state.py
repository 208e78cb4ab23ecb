"""A problem while it is being reduced, and how every step is taken back.

Models: nodes with tables of costs, edges seen from both of their ends, holdings over rows, what is
used and paid whatever is chosen. Each step keeps the cheapest assignments that fit; a step that
lets a node go notes how its candidate follows from the candidates of nodes that stayed.
Assumes: usages are whole numbers, so sums and differences of them are exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from search.presolve.tables import (
    Pool,
    PooledArray,
    allowed,
    minus,
    plus,
    split,
    take,
    turn,
)

# (first row, row after the last, usage per candidate)
Holding = tuple[int, int, PooledArray]


class Step(NamedTuple):
    """How the candidate of a node that is gone follows from those of others.

    Parameters
    ----------
    node
        The node.
    labels
        Its label, for every label of each of its leaders.
    leaders
        The nodes that lead it.
    """

    node: int
    labels: np.ndarray
    leaders: tuple[int, ...]

    def choice(self, found: Sequence[int]) -> int:
        """The label that follows.

        Parameters
        ----------
        found
            The label of each node; those of the leaders count.
        """
        return int(self.labels[tuple(found[leader] for leader in self.leaders)])


class Impossible(Exception):
    """No assignment is allowed and fits."""


class State:
    """A problem while it is being reduced.

    Parameters
    ----------
    pool
        Where all tables come from.
    costs
        Cost per candidate, a table per node.
    base
        Usage per row whatever is chosen. [B]
    limit
        The most that may be used in any row. [B]
    constant
        What is paid whatever is chosen.
    """

    def __init__(
        self,
        pool: Pool,
        costs: list[PooledArray],
        *,
        base: np.ndarray,
        limit: float,
        constant: float,
    ) -> None:
        size = len(costs)
        self.pool = pool
        self.costs = costs
        self.limit = limit
        self.constant = constant
        # Candidates keep the labels they came with.
        self.num_labels = [c.array.size for c in costs]
        ranges = {n: pool.table(np.arange(n)) for n in set(self.num_labels)}
        self.labels = [ranges[n] for n in self.num_labels]
        self.edges: list[dict[int, PooledArray]] = [{} for _ in costs]
        self.holdings: list[list[Holding]] = [[] for _ in costs]
        self.num_rows = base.size
        self.rise = np.diff(base, prepend=0.0, append=0.0).tolist()
        self.steps: list[Step] = []
        self.alive = [True] * size
        # Nodes with holdings that may overlap, and nodes that changed since a rule last looked.
        self.loose = [False] * size
        self.changed = [True] * size
        self.pending_nodes: deque[int] = deque()
        self.pending_edges: deque[tuple[int, int]] = deque()
        self.queued = [False] * size
        self.queued_edges: set[tuple[int, int]] = set()

    def nodes(self) -> list[int]:
        """The nodes that are left."""
        return [v for v, alive in enumerate(self.alive) if alive]

    def touch(self, node: int) -> None:
        """Have a node looked at again."""
        self.changed[node] = True
        if not self.queued[node] and len(self.edges[node]) <= 2:
            self.queued[node] = True
            self.pending_nodes.append(node)

    def set_costs(self, node: int, costs: PooledArray) -> None:
        """Change a node's costs; what is forbidden goes."""
        self.costs[node] = costs
        left = self.pool.once(allowed, costs)
        if left is not None:
            self.restrict(node, left)
        else:
            self.touch(node)

    def add_costs(self, node: int, costs: PooledArray) -> None:
        """Add to a node's costs."""
        self.set_costs(node, self.pool.once(plus, self.costs[node], costs))

    def set_edge(self, a: int, b: int, matrix: PooledArray) -> None:
        """Put an edge, with a row per candidate of a, in the place of what joins two nodes.

        Parameters
        ----------
        a, b
            The nodes.
        matrix
            Cost per pair, with a row per candidate of a.
        """
        self.edges[a][b] = matrix
        self.edges[b][a] = self.pool.once(turn, matrix)
        pair = (a, b) if a < b else (b, a)
        if pair not in self.queued_edges:
            self.queued_edges.add(pair)
            self.pending_edges.append(pair)
        self.touch(a)
        self.touch(b)

    def add_edge(self, a: int, b: int, matrix: PooledArray) -> None:
        """Put an edge beside what joins two nodes.

        Parameters
        ----------
        a, b
            The nodes.
        matrix
            Cost per pair, with a row per candidate of a.
        """
        present = self.edges[a].get(b)
        self.set_edge(a, b, matrix if present is None else self.pool.once(plus, present, matrix))

    def drop_edge(self, a: int, b: int) -> None:
        """Part two nodes."""
        del self.edges[a][b], self.edges[b][a]
        self.touch(a)
        self.touch(b)

    def hold(self, node: int, first: int, last: int, usage: PooledArray) -> None:
        """Add a holding.

        Parameters
        ----------
        node
            The node that holds.
        first, last
            The first row, and the row after the last one.
        usage
            Usage per candidate. [B]
        """
        least, beyond = self.pool.once(split, usage)
        if least:
            self.use(first, last, least)
        if beyond is not None:
            self.loose[node] = self.loose[node] or bool(self.holdings[node])
            self.holdings[node].append((first, last, beyond))

    def use(self, first: int, last: int, usage: float) -> None:
        """Add to what is used whatever is chosen.

        Parameters
        ----------
        first, last
            The first row, and the row after the last one.
        usage
            How much is added. [B]
        """
        self.rise[first] += usage
        self.rise[last] -= usage

    def base(self) -> np.ndarray:
        """Usage per row whatever is chosen. [B]"""
        return np.cumsum(self.rise)[:-1]

    def segments(self, node: int) -> list[Holding]:
        """A node's holdings, made to cover no row twice."""
        if self.loose[node]:
            self.loose[node] = False
            kept: list[Holding] = []
            for first, last, usage in self._sums(self.holdings[node]):
                least, beyond = self.pool.once(split, usage)
                if least:
                    self.use(first, last, least)
                if beyond is None:
                    continue
                if kept and kept[-1][1] == first and kept[-1][2] is beyond:
                    first = kept.pop()[0]
                kept.append((first, last, beyond))
            self.holdings[node] = kept
        return self.holdings[node]

    def _sums(self, held: list[Holding]) -> Iterator[Holding]:
        """What holdings use together, run by run."""
        once = self.pool.once
        events = [(first, plus, usage) for first, _, usage in held]
        events += [(last, minus, usage) for _, last, usage in held]
        events.sort(key=itemgetter(0))
        total = once(minus, held[0][2], held[0][2])
        since = 0
        for row, change, usage in events:
            if row > since:
                yield since, row, total
                since = row
            total = once(change, total, usage)

    def usages(self, node: int) -> tuple[PooledArray, ...]:
        """The distinct usages of a node, whenever they are."""
        return tuple(dict.fromkeys(u for _, _, u in self.segments(node)))

    def restrict(self, node: int, index: PooledArray) -> None:
        """Keep only the candidates at these positions."""
        if not index.array.size:
            raise Impossible
        once = self.pool.once
        self.labels[node] = once(take, self.labels[node], index)
        for other, matrix in self.edges[node].items():
            self.set_edge(node, other, once(take, matrix, index))
        held = self.holdings[node]
        self.holdings[node] = []
        self.loose[node] = False
        for first, last, usage in held:
            self.hold(node, first, last, once(take, usage, index))
        self.set_costs(node, once(take, self.costs[node], index))

    def fix(self, node: int, choice: int) -> None:
        """Let a node without edges go that takes this candidate."""
        self.constant += float(self.costs[node].array[choice])
        for first, last, usage in self.holdings[node]:
            self.use(first, last, float(usage.array[choice]))
        self.steps.append(Step(node, self.labels[node].array[choice], ()))
        self._remove(node)

    def absorb(self, node: int, gone: int, partner: PooledArray) -> None:
        """Let a node go that takes the candidate `partner[i]` if the other takes candidate i.

        Parameters
        ----------
        node
            The node that stays.
        gone
            The node that goes.
        partner
            Candidate of the one that goes per candidate of the one that stays.
        """
        once = self.pool.once
        matrix = self.edges[node][gone]
        following = once(
            _following_labels, self.labels[node], self.labels[gone], partner, self.num_labels[node]
        )
        self.steps.append(Step(gone, following, (node,)))
        extra = once(_picked, matrix, self.costs[gone], partner)
        edges, holdings = self.edges[gone], self.holdings[gone]
        self._remove(gone)
        for first, last, usage in holdings:
            self.hold(node, first, last, once(take, usage, partner))
        for other, pairs in edges.items():
            if other != node:
                self.add_edge(node, other, once(take, pairs, partner))
        self.add_costs(node, extra)

    def bridge(self, gone: int, a: int, b: int, chosen: np.ndarray, matrix: PooledArray) -> None:
        """Let a node go that takes the candidate `chosen[i, j]` if its neighbours take i and j.

        Parameters
        ----------
        gone
            The node that goes.
        a, b
            Its neighbours.
        chosen
            Its candidate per pair of theirs.
        matrix
            What the pairs then cost.
        """
        following = np.zeros((self.num_labels[a], self.num_labels[b]), dtype=np.int64)
        ends = np.ix_(self.labels[a].array, self.labels[b].array)
        following[ends] = self.labels[gone].array[chosen]
        self.steps.append(Step(gone, self.pool.table(following).array, (a, b)))
        self._remove(gone)
        self.add_edge(a, b, matrix)

    def _remove(self, node: int) -> None:
        for other in self.edges[node]:
            del self.edges[other][node]
            self.touch(other)
        self.edges[node] = {}
        self.holdings[node] = []
        self.loose[node] = False
        self.alive[node] = False


def _following_labels(
    pool: Pool, kept: PooledArray, gone: PooledArray, partner: PooledArray, size: int
) -> np.ndarray:
    """The label of the node that goes, per label of the one that stays."""
    following = np.zeros(size, dtype=np.int64)
    following[kept.array] = gone.array[partner.array]
    return following


def _picked(
    pool: Pool, matrix: PooledArray, costs: PooledArray, partner: PooledArray
) -> PooledArray:
    """What the candidates of a neighbour cost along with their partners."""
    rows = np.arange(len(partner.array))
    return pool.table(matrix.array[rows, partner.array] + costs.array[partner.array])
