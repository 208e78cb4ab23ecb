"""Small random problems of every shape, and what is true of them by brute force."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
from hypothesis import strategies as st

from search import CostEdge, Problem

SHAPES = ("chain", "tree", "series-parallel", "dag", "parallel", "edgeless")


def random_pairs(shape: str, num_nodes: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Edges of a random DAG of this shape, from lower to higher numbers."""
    later = range(1, num_nodes)
    if shape == "edgeless":
        return []
    if shape == "chain":
        return [(v - 1, v) for v in later]
    if shape == "parallel":
        return [(v - 1, v) for v in later for _ in range(int(rng.integers(1, 4)))]
    if shape == "tree":
        return [(int(rng.integers(v)), v) for v in later]
    if shape == "series-parallel":
        pairs = [(0, v) if v == 1 else (v - 1, v) for v in later]
        # Skips that nest or follow each other, as blocks of a network do.
        low, high = 0, num_nodes - 1
        while high - low > 2:
            pairs.append((low, high))
            low, high = (low + 1, high - 1) if rng.random() < 0.5 else (low, high - 2)
        return pairs
    chosen = rng.random((num_nodes, num_nodes)) < 0.45
    return [(a, b) for a in range(num_nodes) for b in range(a + 1, num_nodes) if chosen[a, b]]


def random_problem(
    seed: int,
    shape: str = "dag",
    *,
    num_nodes: int | None = None,
    candidates: tuple[int, int] = (1, 4),
    forbidden: float = 0.1,
    tightness: float | None = None,
    whole: bool = False,
) -> Problem:
    """A random problem; `tightness` 0 puts the limit at a bound on what is needed, 1 at the most
    that can be used, and None leaves it away."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7)) if num_nodes is None else num_nodes
    sizes = rng.integers(candidates[0], candidates[1] + 1, n)

    def costs(*size: int) -> np.ndarray:
        values = rng.uniform(-2, 10, size)
        values = np.floor(values) if whole else values
        return np.where(rng.random(size) < forbidden, np.inf, values)

    shared: dict[tuple[int, int], np.ndarray] = {}
    edges = []
    for a, b in random_pairs(shape, n, rng):
        matrix = costs(sizes[a], sizes[b])
        if rng.random() < 0.5:
            matrix = shared.setdefault((sizes[a], sizes[b]), matrix)
        edges.append(CostEdge(source=a, target=b, matrix=matrix))
    node_costs = tuple(costs(s) for s in sizes)
    if tightness is None:
        return Problem(costs=node_costs, edges=tuple(edges))
    usages = tuple(rng.integers(0, 100, s).astype(float) for s in sizes)
    starts = rng.integers(-3, 6, n)
    lengths = rng.integers(0, 6, n)
    intervals = tuple(
        None if rng.random() < 0.1 else (int(s), int(s + d))
        for s, d in zip(starts, lengths, strict=True)
    )
    least = naive_profile([u.min() for u in usages], intervals)
    most = naive_profile([u.max() for u in usages], intervals)
    low, high = max(least, default=0.0), max(most, default=0.0)
    return Problem(
        costs=node_costs,
        edges=tuple(edges),
        usages=usages,
        intervals=intervals,
        usage_limit=max(0.0, low + tightness * (high - low)),
    )


def naive_profile(
    usages: list[float], intervals: tuple[tuple[int, int] | None, ...]
) -> list[float]:
    """Usage at every time step from the first start to the last end."""
    live = [i for i in intervals if i is not None]
    times = range(min((a for a, _ in live), default=0), max((b for _, b in live), default=0))
    return [
        sum(u for u, i in zip(usages, intervals, strict=True) if i and i[0] <= t < i[1])
        for t in times
    ]


def naive_cost(problem: Problem, choices: tuple[int, ...]) -> float:
    """The cost of an assignment, term by term."""
    nodes = sum(float(c[i]) for c, i in zip(problem.costs, choices, strict=True))
    return nodes + sum(float(e.matrix[choices[e.source], choices[e.target]]) for e in problem.edges)


def naive_peak(problem: Problem, choices: tuple[int, ...]) -> float:
    """The peak usage of an assignment, step by step."""
    if not problem.usages:
        return 0.0
    used = [float(u[i]) for u, i in zip(problem.usages, choices, strict=True)]
    return max(naive_profile(used, problem.intervals or ((0, 1),) * len(used)), default=0.0)


def fitting(problem: Problem) -> list[tuple[float, tuple[int, ...]]]:
    """(cost, choices) of every assignment that is allowed and fits, cheapest first."""
    found = []
    for choices in itertools.product(*(range(s) for s in problem.sizes)):
        cost = naive_cost(problem, choices)
        limit = problem.usage_limit
        if cost < math.inf and (limit is None or naive_peak(problem, choices) <= limit):
            found.append((cost, choices))
    return sorted(found)


def problems(*, limited: bool, max_tightness: float = 0.8) -> st.SearchStrategy[Problem]:
    """Random problems of all shapes."""
    tightness = st.floats(-0.1, max_tightness) if limited else st.none()
    return st.builds(
        random_problem,
        st.integers(0, 2**32 - 1),
        st.sampled_from(SHAPES),
        forbidden=st.sampled_from([0.0, 0.1, 0.4]),
        tightness=tightness,
        whole=st.booleans(),
    )


def assert_one_sentence(message: str) -> None:
    """Fail unless an error is one sentence as all errors are: lower case, without a full stop."""
    assert not message[0].isupper(), message
    assert not message.endswith("."), message
    assert not re.search(r"\. [A-Z]", message), message
    assert "\n" not in message, message
