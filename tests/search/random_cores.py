"""Small random cores, and what is true of them by brute force."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace
from random_problems import SHAPES, random_pairs

from search.core.core import Core, make_core
from search.core.pairwise_costs import pairwise_costs


def random_core(
    seed: int,
    shape: str = "dag",
    *,
    num_nodes: int | None = None,
    candidates: tuple[int, int] = (2, 4),
    forbidden: float = 0.15,
    tightness: float | None = 0.4,
    whole: bool = True,
) -> Core:
    """A random core in which candidate 0 of every node is allowed beside every other's."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7)) if num_nodes is None else num_nodes
    sizes = rng.integers(candidates[0], candidates[1] + 1, n)

    def costs(*size: int) -> np.ndarray:
        values = rng.uniform(-5, 30, size)
        return np.floor(values) if whole else values

    edges = []
    for a, b in sorted(set(random_pairs(shape, n, rng))):
        matrix = costs(sizes[a], sizes[b])
        banned = rng.random(matrix.shape) < forbidden
        banned[0, :] = banned[:, 0] = False
        edges.append((a, b, np.where(banned, np.inf, matrix)))
    rows = int(rng.integers(1, 6))
    holdings = []
    for v in range(n):
        for _ in range(int(rng.integers(0, 4))):
            first, last = np.sort(rng.choice(rows + 1, 2, replace=False))
            holdings.append((v, int(first), int(last), rng.integers(0, 50, sizes[v]).astype(float)))
    core = make_core(
        [costs(s) for s in sizes],
        edges,
        holdings,
        base=rng.integers(0, 20, rows).astype(float),
        limit=np.inf,
        constant=float(rng.integers(-3, 4)),
    )
    if tightness is None:
        return core
    least = core.profile(np.zeros(n, dtype=np.int64)).max()
    peaks = [core.profile(x).max() for x in assignments(core)] if n < 7 else [least * 2]
    limit = float(np.floor(min(peaks) + tightness * (max(peaks) - min(peaks))))
    return make_core_with_limit(core, limit)


def make_core_with_limit(core: Core, limit: float) -> Core:
    """The same core under another limit."""
    return replace(core, limit=limit)


def assignments(core: Core) -> list[np.ndarray]:
    """Every assignment."""
    ranges = [range(s) for s in core.graph.sizes]
    return [np.array(x, dtype=np.int64) for x in itertools.product(*ranges)]


def allowed(core: Core) -> list[tuple[float, np.ndarray]]:
    """(cost, choices) of every assignment without a forbidden pair, whatever it uses."""
    graph = core.graph
    owners = np.repeat(np.arange(core.num_nodes), np.diff(graph.starts))
    found = []
    for x in assignments(core):
        ends = graph.neighbours
        pairs = graph.places + x[owners] * graph.sizes[ends] + x[ends]
        if not (graph.matrices[pairs] >= core.penalty).any():
            found.append((core.cost(x), x))
    return found


def optimum(core: Core) -> float:
    """The least cost of any assignment that is allowed and fits."""
    costs = (c for c, x in allowed(core) if (core.profile(x) <= core.limit).all())
    return min(costs, default=np.inf)


def cores(*, limited: bool = True) -> st.SearchStrategy[Core]:
    """Random cores of all shapes."""
    return st.builds(
        random_core,
        st.integers(0, 2**32 - 1),
        st.sampled_from(SHAPES),
        forbidden=st.sampled_from([0.0, 0.15, 0.5]),
        tightness=st.floats(0.0, 0.8) if limited else st.none(),
        whole=st.booleans(),
    )


def with_holdings_apart(core: Core) -> Core:
    """The same core with holdings that cover no row of a node twice, as presolve leaves them."""
    held, nodes = core.holdings, range(core.num_nodes)
    usage = np.zeros((core.num_nodes, core.num_rows, int(core.graph.sizes.max())))
    for h, v in enumerate(held.owners):
        used = held.usages[held.places[h] : held.places[h] + core.graph.sizes[v]]
        usage[v, held.first[h] : held.last[h], : used.size] += used
    apart = make_core(
        np.split(core.costs, core.graph.offsets[1:-1]),
        [(e.source, e.target, e.matrix) for e in pairwise_costs(core).edges],
        [
            (v, row, row + 1, usage[v, row, : core.graph.sizes[v]])
            for v in nodes
            for row in range(core.num_rows)
        ],
        base=core.base,
        limit=core.limit,
        constant=core.constant,
    )
    assert all((apart.profile(x) == core.profile(x)).all() for x in assignments(core))
    return apart
