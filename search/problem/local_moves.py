"""Local moves on one assignment: repair it until it fits, then lower its cost.

Models: a move gives one node another candidate. `repair` takes, at the step used most, the move
with the least extra cost per unit freed; every such move frees something and fills nothing, so it
ends. `descend` takes every move that lowers the cost and still fits, until none does.
Assumes: nothing is proven here. Forbidden costs count as a penalty above any sum of allowed ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from search.problem.answers import fits
from search.problem.deadline import Deadline
from search.problem.problem import Problem

# Moves that lower a cost by less than that part of it may only undo each other's rounding.
ROUNDING = 1e-12


class LocalState:
    """An assignment with what every move from it would cost.

    Parameters
    ----------
    problem
        The problem.
    choices
        The assignment to start from; it may be forbidden or over the limit.
    """

    def __init__(self, problem: Problem, choices: Sequence[int]) -> None:
        self.problem = problem
        flat = problem.flat
        self.offsets = np.append(flat.offsets, flat.costs.size)
        self.owner = np.repeat(np.arange(problem.num_nodes), problem.sizes)
        self.choices = np.array(choices, dtype=np.int64)
        penalty = _penalty(problem)
        finite: dict[int, np.ndarray] = {}
        self.incident: list[list[tuple[int, np.ndarray]]] = [[] for _ in problem.costs]
        for edge in problem.edges:
            matrix = finite.setdefault(id(edge.matrix), np.minimum(edge.matrix, penalty))
            self.incident[edge.source].append((edge.target, matrix))
            self.incident[edge.target].append((edge.source, matrix.T))
        self.conditional = np.minimum(flat.costs, penalty)
        for v, around in enumerate(self.incident):
            for u, matrix in around:
                self.of(v)[:] += matrix[:, self.choices[u]]
        self.limit = problem.usage_limit
        if self.limit is not None:
            self.usages = flat.usages
            self.profile = problem.timeline.profile(self.usages[self.current])

    @property
    def current(self) -> np.ndarray:
        """Positions of the chosen candidates among all candidates."""
        return np.asarray(self.offsets[:-1] + self.choices)

    def of(self, node: int) -> np.ndarray:
        """Per candidate of a node its cost, given the choices of all other nodes."""
        values: np.ndarray = self.conditional[self.offsets[node] : self.offsets[node + 1]]
        return values

    def move(self, node: int, candidate: int) -> None:
        """Give a node another candidate."""
        before = self.choices[node]
        for u, matrix in self.incident[node]:
            self.of(u)[:] += matrix[candidate] - matrix[before]
        if self.limit is not None:
            timeline = self.problem.timeline
            change = self.usages[self.offsets[node] + [before, candidate]]
            self.profile[timeline.first[node] : timeline.last[node]] += change[1] - change[0]
        self.choices[node] = candidate

    def affordable(self, node: int) -> np.ndarray:
        """Per candidate of a node whether it fits, given the choices of all other nodes."""
        usages = self.usages[self.offsets[node] : self.offsets[node + 1]]
        timeline = self.problem.timeline
        span = self.profile[timeline.first[node] : timeline.last[node]]
        assert self.limit is not None
        room = self.limit - span.max(initial=0.0) + usages[self.choices[node]]
        return np.asarray((usages <= room) | (span.size == 0))


def repair(state: LocalState, deadline: Deadline) -> bool:
    """Free what is over the limit, cheaply; whether that succeeded."""
    if state.limit is None:
        return True
    timeline = state.problem.timeline
    while state.profile.size:
        step = int(state.profile.argmax())
        over = state.profile[step] - state.limit
        if over <= 0:
            return True
        if deadline.passed:
            return False
        current = state.current
        covers = ((timeline.first <= step) & (step < timeline.last))[state.owner]
        freed = state.usages[current][state.owner] - state.usages
        movable = np.flatnonzero(covers & (freed > 0))
        if not movable.size:
            return False
        extra = (state.conditional - state.conditional[current][state.owner])[movable]
        useful = np.minimum(freed[movable], over)
        # A move that costs nothing is the better the more it frees.
        score = np.where(extra > 0, extra / useful, extra * useful)
        best = int(movable[score.argmin()])
        node = int(state.owner[best])
        state.move(node, best - int(state.offsets[node]))
    return True


def descend(state: LocalState, deadline: Deadline) -> None:
    """Lower the cost by single moves that fit, until there is none."""
    pending = set(range(state.problem.num_nodes))
    while pending and not deadline.passed:
        sweep, pending = sorted(pending), set()
        for node in sweep:
            costs = state.of(node)
            if state.limit is not None:
                costs = np.where(state.affordable(node), costs, np.inf)
            best = int(costs.argmin())
            now = float(state.of(node)[state.choices[node]])
            if costs[best] < now - ROUNDING * abs(now):
                state.move(node, best)
                pending.update(u for u, _ in state.incident[node])


def improved(
    problem: Problem, choices: Sequence[int], deadline: Deadline | None = None
) -> list[int] | None:
    """Repair and descend from an assignment; None where the result still does not fit.

    Parameters
    ----------
    problem
        The problem.
    choices
        Where to start; it may be forbidden or over the limit.
    deadline
        When to stop.
    """
    deadline = deadline or Deadline(None)
    state = LocalState(problem, choices)
    if repair(state, deadline):
        descend(state, deadline)
    found = [int(c) for c in state.choices]
    return found if fits(problem, found) else None


def cheap_start(problem: Problem, deadline: Deadline | None = None) -> list[int] | None:
    """An assignment that fits, from the cheapest candidates or else from the smallest ones."""
    starts = [[int(c.argmin()) for c in problem.costs]]
    if problem.usages:
        starts.append([int(u.argmin()) for u in problem.usages])
    for start in starts:
        found = improved(problem, start, deadline)
        if found is not None:
            return found
    return None


def _penalty(problem: Problem) -> float:
    """More than any two sums of allowed costs can differ by."""
    matrices = {id(e.matrix): _spread(e.matrix) for e in problem.edges}
    total = sum(_spread(c) for c in problem.costs) + sum(
        matrices[id(e.matrix)] for e in problem.edges
    )
    return 1.0 + 4.0 * total


def _spread(array: np.ndarray) -> float:
    """The largest allowed cost in absolute terms."""
    return float(np.abs(array, where=array < np.inf, out=np.zeros_like(array)).max())
