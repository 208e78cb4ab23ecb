"""A bound and a good assignment where the graph is too dense for exact elimination.

Models: some edges are taken out until elimination fits. An edge that is out is replaced by costs
on its two ends, f and g, and what is left of its matrix, E - f - g, is minimised on its own; for
any f and g the sum of the minima bounds the optimum from below (dual decomposition: Komodakis et
al. 2007; Sontag et al. 2011). A subgradient method improves f and g; the assignments it meets are
repaired and descended from. The usage limit is left out of the bound, never out of an answer.
Assumes: edges whose matrices vary most matter most, so these stay in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from search.answers import fits
from search.buckets import eliminate
from search.deadline import Deadline, OutOfTime
from search.elimination_order import EliminationOrder, plan_elimination
from search.improve import cheap_start, improved
from search.problem import Edge, Problem, ProblemError, evaluate

# Small enough to eliminate many times.
THINNED_ELEMENTS = 2.0**21
MAX_STEPS = 200


@dataclass(slots=True, kw_only=True)
class Thinned:
    """What thinning has shown so far.

    Parameters
    ----------
    bound
        The best proven lower bound.
    choices
        The cheapest assignment seen that fits, or None.
    cost
        Its cost.
    edges_out
        How many edges were taken out.
    stopped_by
        What cut the work short, if anything.
    """

    bound: float = -math.inf
    choices: list[int] | None = None
    cost: float = math.inf
    edges_out: int = 0
    stopped_by: str = ""

    def offer(self, problem: Problem, choices: list[int] | None) -> None:
        """Keep an assignment if it fits and is the cheapest so far."""
        if choices is not None and fits(problem, choices):
            cost = evaluate(problem, choices)[0]
            if cost < self.cost:
                self.cost, self.choices = cost, choices


@dataclass(slots=True, kw_only=True)
class _Shares:
    """The edges that are out, and the costs that stand for them at their ends."""

    edges: list[Edge]
    at_source: list[np.ndarray] = field(default_factory=list)
    at_target: list[np.ndarray] = field(default_factory=list)

    def start(self) -> None:
        """Half of what each row costs at least, then what each column costs beyond that."""
        for e in self.edges:
            rows = _finite(e.matrix.min(axis=1)) / 2
            self.at_source.append(rows)
            self.at_target.append(_finite((e.matrix - rows[:, None]).min(axis=0)))

    def added_to(self, costs: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """Node costs with these shares on top."""
        total = [c.copy() for c in costs]
        for e, f, g in zip(self.edges, self.at_source, self.at_target, strict=True):
            total[e.source] += f
            total[e.target] += g
        return total

    def minima(self) -> tuple[float, list[tuple[int, int]]]:
        """The sum of the minima of what is left of each matrix, and where they are."""
        total, places = 0.0, []
        for e, f, g in zip(self.edges, self.at_source, self.at_target, strict=True):
            left = e.matrix - f[:, None] - g[None, :]
            place = np.unravel_index(int(left.argmin()), left.shape)
            total += float(left[place])
            places.append((int(place[0]), int(place[1])))
        return total, places

    def move(self, choices: list[int], places: list[tuple[int, int]], step: float) -> None:
        """Raise the shares of what the nodes chose, lower those of what the matrices chose."""
        for k, (e, (i, j)) in enumerate(zip(self.edges, places, strict=True)):
            for share, chosen, wanted in (
                (self.at_source[k], choices[e.source], i),
                (self.at_target[k], choices[e.target], j),
            ):
                share[chosen] += step
                share[wanted] -= step


def thin(
    problem: Problem, *, deadline: Deadline, max_elements: float = THINNED_ELEMENTS
) -> Thinned:
    """Bound a problem and look for good assignments.

    Parameters
    ----------
    problem
        The problem.
    deadline
        When to stop.
    max_elements
        The most entries that all tables of one elimination may have.
    """
    result = Thinned()
    try:
        result.offer(problem, cheap_start(problem, deadline))
        order, kept, out = _split(problem, max_elements)
        result.edges_out = len(out)
        shares = _Shares(edges=out)
        shares.start()
        thinned = replace(problem, edges=tuple(kept))
        _improve_bound(problem, thinned, order, shares, result, deadline)
    except OutOfTime:
        result.stopped_by = "time limit"
    except KeyboardInterrupt:
        result.stopped_by = "interrupt"
    return result


def _improve_bound(
    problem: Problem,
    thinned: Problem,
    order: EliminationOrder,
    shares: _Shares,
    result: Thinned,
    deadline: Deadline,
) -> None:
    """Subgradient steps on the shares."""
    scale, stale = 1.0, 0
    for _ in range(MAX_STEPS):
        costs = shares.added_to(thinned.costs)
        eliminated = eliminate(thinned, order, costs=costs, deadline=deadline)
        rest, places = shares.minima()
        bound = eliminated.minimum + rest
        better = bound > result.bound + 1e-6 * abs(result.bound)
        result.bound = max(result.bound, bound)
        if bound == math.inf:
            return
        choices = eliminated.decode()
        result.offer(problem, improved(problem, choices, deadline))
        apart = sum(
            (choices[e.source] != i) + (choices[e.target] != j)
            for e, (i, j) in zip(shares.edges, places, strict=True)
        )
        stale = 0 if better else stale + 1
        if stale >= 4:
            scale, stale = scale / 2, 0
        if not apart or scale < 1e-2 or result.bound >= result.cost:
            return
        target = result.cost if result.cost < math.inf else bound + 0.05 * abs(bound)
        shares.move(choices, places, scale * max(target - bound, 0.0) / (2 * apart))


def _split(
    problem: Problem, max_elements: float
) -> tuple[EliminationOrder, list[Edge], list[Edge]]:
    """Keep as many edges as elimination takes: those of a forest, then those that vary most."""
    spread = {id(e.matrix): _spread(e.matrix) for e in problem.edges}
    ranked = sorted(problem.edges, key=lambda e: -spread[id(e.matrix)])
    forest, others = _forest(problem.num_nodes, ranked)
    # The tables of a forest are no reason to refuse: they are about as large as its nodes.
    best = plan_elimination(problem.sizes, _pairs(forest), max_elements=math.inf)
    limit = max(max_elements, best.elements)
    low, high = 0, len(others)
    while low < high:
        middle = (low + high + 1) // 2
        try:
            pairs = _pairs(forest + others[:middle])
            best = plan_elimination(problem.sizes, pairs, max_elements=limit)
            low = middle
        except ProblemError:
            high = middle - 1
    return best, forest + others[:low], others[low:]


def _pairs(edges: list[Edge]) -> list[tuple[int, int]]:
    return [(e.source, e.target) for e in edges]


def _forest(num_nodes: int, edges: list[Edge]) -> tuple[list[Edge], list[Edge]]:
    """Edges that join what was apart, in the given order, and the rest (Kruskal 1956)."""
    parent = list(range(num_nodes))

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    inside: list[Edge] = []
    outside: list[Edge] = []
    for e in edges:
        a, b = root(e.source), root(e.target)
        (outside if a == b else inside).append(e)
        parent[a] = b
    return inside, outside


def _spread(matrix: np.ndarray) -> float:
    return math.inf if np.isinf(matrix).any() else float(np.ptp(matrix))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, 0.0)
