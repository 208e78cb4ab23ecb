"""Local moves on one assignment: repair it until it fits, then lower its cost.

Models: a move gives one node another candidate. `repair` takes, at the step used most, the move
with the least extra cost per unit freed. Where a node has several holdings, a move may fill other
steps; a candidate that was left is not taken again, so that repairing ends. `descend` takes every
move that lowers the cost and still fits, until none does.
Assumes: nothing is proven here; the holdings of a node cover no step twice. Forbidden costs count
as a penalty above any sum of allowed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from search.problem.deadline import Deadline
from search.problem.flat import Flat
from search.problem.pairwise import Limited

# Moves that lower a cost by less than that part of it may only undo each other's rounding.
ROUNDING = 1e-12


class LocalState:
    """An assignment with what every move from it would cost.

    Parameters
    ----------
    flat
        The numbers of the problem or core.
    choices
        The assignment to start from; it may be forbidden or over the limit.
    """

    def __init__(self, flat: Flat, choices: Sequence[int]) -> None:
        self.flat = flat
        sizes = flat.sizes.tolist()
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.choices = np.array(choices, dtype=np.int64)
        penalty = _penalty(flat)
        finite = np.minimum(flat.matrices, penalty)
        self.incident: list[list[tuple[int, np.ndarray]]] = [[] for _ in sizes]
        edges = zip(*(a.tolist() for a in (flat.sources, flat.targets, flat.bases)), strict=True)
        for v, u, place in edges:
            matrix = finite[place : place + sizes[v] * sizes[u]].reshape(sizes[v], sizes[u])
            self.incident[v].append((u, matrix))
            self.incident[u].append((v, matrix.T))
        self.conditional = np.minimum(flat.costs, penalty)
        for v, around in enumerate(self.incident):
            for u, matrix in around:
                self.of(v)[:] += matrix[:, self.choices[u]]
        self.profile = flat.profile(self.choices)

    @property
    def current(self) -> np.ndarray:
        """Positions of the chosen candidates among all candidates."""
        return np.asarray(self.flat.offsets[:-1] + self.choices)

    def of(self, node: int) -> np.ndarray:
        """Per candidate of a node its cost, given the choices of all other nodes."""
        offsets = self.flat.offsets
        values: np.ndarray = self.conditional[offsets[node] : offsets[node + 1]]
        return values

    def move(self, node: int, candidate: int) -> None:
        """Give a node another candidate."""
        before = self.choices[node]
        for u, matrix in self.incident[node]:
            self.of(u)[:] += matrix[candidate] - matrix[before]
        for rows, usages in self._holdings(node):
            self.profile[rows] += usages[candidate] - usages[before]
        self.choices[node] = candidate

    def affordable(self, node: int) -> np.ndarray:
        """Per candidate of a node whether it fits, given the choices of all other nodes."""
        fitting = np.ones(self.of(node).size, dtype=bool)
        for rows, usages in self._holdings(node):
            most = self.profile[rows].max(initial=-np.inf)
            fitting &= usages <= self.flat.limit - most + usages[self.choices[node]]
        return fitting

    def _holdings(self, node: int) -> Iterator[tuple[slice, np.ndarray]]:
        """The rows and the usages of every holding of a node."""
        flat, size = self.flat, self.of(node).size
        first, last = flat.timeline.first, flat.timeline.last
        for h in range(flat.starts[node], flat.starts[node + 1]):
            place = flat.places[h]
            yield slice(first[h], last[h]), flat.usages[place : place + size]


def repair(state: LocalState, deadline: Deadline) -> bool:
    """Free what is over the limit, cheaply; whether that succeeded."""
    flat = state.flat
    left = np.zeros(flat.costs.size, dtype=bool)
    while state.profile.size:
        step = int(state.profile.argmax())
        over = state.profile[step] - flat.limit
        if over <= 0:
            return True
        if deadline.passed:
            return False
        current = state.current
        used = flat.charges(flat.timeline.covers(step))
        freed = used[current][state.owner] - used
        movable = np.flatnonzero((freed > 0) & ~left)
        if not movable.size:
            return False
        extra = (state.conditional - state.conditional[current][state.owner])[movable]
        useful = np.minimum(freed[movable], over)
        # A move that costs nothing is the better the more it frees.
        score = np.where(extra > 0, extra / useful, extra * useful)
        best = int(movable[score.argmin()])
        node = int(state.owner[best])
        left[current[node]] = True
        state.move(node, best - int(flat.offsets[node]))
    return True


def descend(state: LocalState, deadline: Deadline) -> None:
    """Lower the cost by single moves that fit, until there is none."""
    pending = set(range(state.choices.size))
    while pending and not deadline.passed:
        sweep, pending = sorted(pending), set()
        for node in sweep:
            costs = np.where(state.affordable(node), state.of(node), np.inf)
            best = int(costs.argmin())
            now = float(state.of(node)[state.choices[node]])
            if costs[best] < now - ROUNDING * abs(now):
                state.move(node, best)
                pending.update(u for u, _ in state.incident[node])


def improved(
    problem: Limited, choices: Sequence[int], deadline: Deadline | None = None
) -> list[int] | None:
    """Repair and descend from an assignment; None where the result still does not fit.

    Parameters
    ----------
    problem
        The problem or core.
    choices
        Where to start; it may be forbidden or over the limit.
    deadline
        When to stop.
    """
    deadline = deadline or Deadline(None)
    state = LocalState(problem.flat, choices)
    if repair(state, deadline):
        descend(state, deadline)
    found = [int(c) for c in state.choices]
    return found if problem.flat.fits(found) else None


def cheap_start(problem: Limited, deadline: Deadline | None = None) -> list[int] | None:
    """An assignment that fits, from the cheapest candidates or else from the smallest ones."""
    flat = problem.flat
    used = flat.charges(np.ones(flat.owners.size))
    for values in (flat.costs, used) if flat.owners.size else (flat.costs,):
        start = [int(v.argmin()) for v in flat.per_node(values)]
        found = improved(problem, start, deadline)
        if found is not None:
            return found
    return None


def _penalty(flat: Flat) -> float:
    """More than any two sums of allowed costs can differ by."""
    places, uses = np.unique(flat.bases, return_counts=True)
    nodes = _largest_of_each(flat.costs, flat.offsets[:-1]).sum()
    return 1.0 + 4.0 * float(nodes + _largest_of_each(flat.matrices, places) @ uses)


def _largest_of_each(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The largest allowed cost in absolute terms from each start to the next."""
    sizes = np.abs(values, where=values < np.inf, out=np.zeros_like(values))
    return np.maximum.reduceat(sizes, starts) if starts.size else np.zeros(0)
