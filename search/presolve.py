"""Smaller problems with the same optimum, and the way back.

Models: a candidate goes where it is forbidden, where every partner along some edge is forbidden,
where it alone breaks the usage limit whatever the others choose, or where another candidate of the
node is never worse: c[r] + sum over edges of max_j (E[r, j] - E[d, j]) <= c[d] and
usage[r] <= usage[d]. The cheapest assignments that are left cost what they did.
Assumes: one cheapest assignment is enough; assignments that tie may go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from search.infeasible import allowed_candidates
from search.problem import Edge, Problem

# Dominance compares all pairs of candidates along every edge; beyond this many it is not tried.
MAX_COMPARED = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduction:
    """A smaller problem and the way back to the one it came from.

    Parameters
    ----------
    problem
        The smaller problem, with the same nodes.
    kept
        Per node the candidates that are left, as positions in the original problem.
    """

    problem: Problem
    kept: tuple[np.ndarray, ...]

    def restore(self, choices: Sequence[int]) -> list[int]:
        """The same assignment in the original problem."""
        return [int(kept[c]) for kept, c in zip(self.kept, choices, strict=True)]

    def reduce(self, choices: Sequence[int]) -> list[int] | None:
        """The same assignment in the smaller problem, or None where a candidate is gone."""
        found = []
        for kept, c in zip(self.kept, choices, strict=True):
            place = int(np.searchsorted(kept, c))
            if place == kept.size or kept[place] != c:
                return None
            found.append(place)
        return found

    def restrict(self, alive: Sequence[np.ndarray]) -> Reduction:
        """Keep fewer of the candidates that are left."""
        return Reduction(
            problem=restricted(self.problem, alive),
            kept=tuple(k[a] for k, a in zip(self.kept, alive, strict=True)),
        )


def presolve(problem: Problem) -> Reduction | None:
    """Drop candidates without changing the optimum; None where a node is left with none.

    Parameters
    ----------
    problem
        The problem.
    """
    reduction = Reduction(problem=problem, kept=tuple(np.arange(s) for s in problem.sizes))
    if problem.limit_is_slack and problem.usages:
        # What cannot bind need not hold back dominance.
        reduction = replace(
            reduction, problem=replace(problem, usages=(), usage_limit=None, intervals=())
        )
    while True:
        alive = allowed_candidates(reduction.problem)
        _drop_too_large(reduction.problem, alive)
        if not all(mask.any() for mask in alive):
            return None
        if all(mask.all() for mask in alive):
            alive = undominated_candidates(reduction.problem)
            if all(mask.all() for mask in alive):
                return reduction
        reduction = reduction.restrict(alive)


def restricted(problem: Problem, alive: Sequence[np.ndarray]) -> Problem:
    """The problem with only the candidates that are marked; shared matrices stay shared."""
    if all(mask.all() for mask in alive):
        return problem
    marks = [None if mask.all() else mask.tobytes() for mask in alive]
    cut: dict[tuple[int, bytes | None, bytes | None], np.ndarray] = {}
    edges = []
    for e in problem.edges:
        key = (id(e.matrix), marks[e.source], marks[e.target])
        if key not in cut:
            cut[key] = (
                e.matrix
                if key[1] is None and key[2] is None
                else e.matrix[np.ix_(alive[e.source], alive[e.target])]
            )
        edges.append(Edge(source=e.source, target=e.target, matrix=cut[key]))
    return replace(
        problem,
        costs=tuple(c[mask] for c, mask in zip(problem.costs, alive, strict=True)),
        edges=tuple(edges),
        usages=tuple(u[m] for u, m in zip(problem.usages, alive, strict=bool(problem.usages))),
    )


def _drop_too_large(problem: Problem, alive: list[np.ndarray]) -> None:
    """Unmark candidates that break the limit even if all others use their least."""
    if problem.usage_limit is None or not all(mask.any() for mask in alive):
        return
    timeline = problem.timeline
    least = np.array([u[m].min() for u, m in zip(problem.usages, alive, strict=True)])
    profile = timeline.profile(least)
    for v, usage in enumerate(problem.usages):
        span = profile[timeline.first[v] : timeline.last[v]]
        if span.size:
            alive[v] = alive[v] & (usage <= problem.usage_limit - span.max() + least[v])


def undominated_candidates(problem: Problem) -> list[np.ndarray]:
    """Per node which candidates no other candidate of the node makes superfluous.

    Parameters
    ----------
    problem
        A problem without forbidden candidates, such as `allowed_candidates` leaves.
    """
    incident: list[list[tuple[np.ndarray, bool]]] = [[] for _ in problem.costs]
    for edge in problem.edges:
        incident[edge.source].append((edge.matrix, False))
        incident[edge.target].append((edge.matrix, True))
    excess: dict[tuple[int, bool], np.ndarray] = {}
    seen: dict[tuple[object, ...], np.ndarray] = {}
    alive = []
    for v, cost in enumerate(problem.costs):
        if not 1 < cost.size <= MAX_COMPARED:
            alive.append(np.ones(cost.size, dtype=bool))
            continue
        usage = _binding_usage(problem, v)
        keys = [(id(matrix), turned) for matrix, turned in incident[v]]
        alike = (cost.tobytes(), usage.tobytes(), *keys)
        if alike not in seen:
            # worse[r, d]: by how much r in place of d can raise the cost at most.
            worse = cost[:, None] - cost[None, :]
            for key, (matrix, turned) in zip(keys, incident[v], strict=True):
                if key not in excess:
                    excess[key] = _row_excess(matrix.T if turned else matrix)
                worse = worse + excess[key]
            seen[alike] = _undominated((worse <= 0) & (usage[:, None] <= usage[None, :]))
        alive.append(seen[alike])
    return alive


def _binding_usage(problem: Problem, node: int) -> np.ndarray:
    """Usages that count towards the limit; zeros where they never do."""
    timeline = problem.timeline
    if problem.usage_limit is None or timeline.first[node] == timeline.last[node]:
        return np.zeros(problem.costs[node].size)
    return problem.usages[node]


def _undominated(dominates: np.ndarray) -> np.ndarray:
    """Mark candidates to keep, one after the other so that no two can remove each other."""
    alive = np.ones(len(dominates), dtype=bool)
    for candidate in reversed(range(len(dominates))):
        alive[candidate] = False
        alive[candidate] = not (dominates[:, candidate] & alive).any()
    return alive


def _row_excess(matrix: np.ndarray) -> np.ndarray:
    """max_j (E[r, j] - E[d, j]) for all pairs of rows; a pair that d forbids counts for nothing."""
    size = matrix.shape[0]
    result = np.full((size, size), -np.inf)
    finite = np.isfinite(matrix)
    everything = bool(finite.all())
    for column in range(matrix.shape[1]):
        values = matrix[:, column]
        if everything:
            difference = values[:, None] - values[None, :]
        else:
            allowed = finite[:, column]
            lower = np.where(allowed, values, 0.0)
            difference = np.where(allowed[None, :], values[:, None] - lower[None, :], -np.inf)
        np.maximum(result, difference, out=result)
    return result
