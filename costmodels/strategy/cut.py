"""Cutting a network into pipeline stages: contiguous in the order of the forward pass.

The heaviest stage sets the pace of a pipeline, so its weight is minimised, exactly. Among the cuts
that reach the minimum the most even is taken, and of those the one over which least data flows.
Assumes that a weight is a fair stand-in for the time of a layer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from costmodels.errors import InputError
from costmodels.graph import Graph

# How much heavier the heaviest stage may get by cutting only where a single tensor crosses: a cut
# through a residual block sends more, but a pipeline out of balance waits in every micro-batch.
CLEAN_CUT_TOLERANCE = 1.5


def cut_evenly(
    weights: Sequence[float], parts: int, costs: Sequence[float | None]
) -> tuple[int, ...] | None:
    """Where to cut a list into contiguous parts so that the heaviest is as light as can be.

    Parameters
    ----------
    weights
        Of each item, not negative.
    parts
        How many parts, each with at least one item. [items]
    costs
        Of a cut before each item, None where none is allowed; that of the first is not read.
        Cuts with equally heavy heaviest parts are told apart by the sum of squares of the parts,
        then by the sum of these costs, then the later cut is taken.

    Returns
    -------
        The first item of each part, or None where there are too few places to cut.
    """
    count = len(weights)
    places = [i for i in range(1, count) if costs[i] is not None]
    if len(places) < parts - 1:
        return None
    edges = np.array([0, *places, count])
    total = np.concatenate([[0.0], np.cumsum(np.asarray(weights, dtype=float))])[edges]
    size = len(edges)
    # sums of floats differ in their last digits with where they start
    limit = _lightest_heaviest(total.tolist(), parts) * (1 + 1e-12)
    price = np.array([0.0, *(costs[i] or 0.0 for i in places), 0.0])
    # the first place from which a part that ends there is no heavier than that
    firsts = np.searchsorted(total, total - limit, side="left")
    earliest, latest = _ends_of_parts(firsts, parts)
    longest = int((np.arange(size) - firsts).max())
    before = np.zeros((parts, size), dtype=np.int64)
    # of what ends at each place; nothing ends before the first
    beyond = np.full(longest + size, np.inf)
    squares, prices = beyond.copy(), np.zeros(size)
    squares[longest] = 0.0
    for part in range(parts):
        ends = np.arange(earliest[part + 1], latest[part + 1] + 1)
        starts_of = ends[:, None] - np.arange(longest, 0, -1)
        # by squares, then by price, then the last
        ways = sliding_window_view(squares, longest)[ends]
        ways = ways + (total[ends][:, None] - total[starts_of]) ** 2
        ways[starts_of < firsts[ends][:, None]] = np.inf
        least = ways.min(axis=1)
        row, column = np.nonzero(ways == least[:, None])
        start, first = starts_of[row, column], np.flatnonzero(np.diff(row, prepend=-1))
        cheap = np.minimum.reduceat(prices[start], first)
        chosen_of = np.where(prices[start] == cheap[row], start, -1)
        before[part, ends] = np.maximum.reduceat(chosen_of, first)
        squares, prices = beyond.copy(), prices.copy()
        squares[longest + ends], prices[ends] = least, cheap + price[ends]
    chosen = size - 1
    starts = []
    for part in range(parts - 1, -1, -1):
        chosen = int(before[part, chosen])
        starts.append(int(edges[chosen]))
    return tuple(reversed(starts))


def _ends_of_parts(firsts: NDArray[np.int64], parts: int) -> tuple[list[int], list[int]]:
    """The earliest and the latest place where so many parts may end and the others still fit.

    Parameters
    ----------
    firsts
        For every end of a part the first place where it may start.
    parts
        How many parts, each with at least one item. [items]
    """
    size = len(firsts)
    earliest, latest = [0] * (parts + 1), [0] * (parts + 1)
    earliest[parts] = size - 1
    for part in range(parts - 1, -1, -1):
        earliest[part] = max(int(firsts[earliest[part + 1]]), part)
    for part in range(parts):
        reach = int(np.searchsorted(firsts, latest[part], side="right")) - 1
        latest[part + 1] = min(reach, size - parts + part)
    return earliest, latest


def _lightest_heaviest(total: Sequence[float], parts: int) -> float:
    """The least that the heaviest of some contiguous parts can weigh.

    `total` is the weight of all items before each place to cut, the ends included.
    """
    low, high = 0.0, total[-1]
    while low < high:
        # as much into each part as the limit allows
        middle = (low + high) / 2.0
        limit, start, most, beyond = middle if middle < high else low, 0, 0.0, math.inf
        for _ in range(parts):
            end = _reach(total, start, limit)
            most = max(most, total[end - 1] - total[start])
            if end == len(total):
                break
            beyond = min(beyond, total[end] - total[start])
            start = end - 1
        # no limit between that and the next weight of a part cuts otherwise
        if end == len(total):
            high = most
        else:
            low = beyond
    return high


def _reach(total: Sequence[float], start: int, limit: float) -> int:
    """The first place where a part is heavier than a limit that begins at `start`."""
    begin = total[start]
    found = bisect_right(total, limit + begin, lo=start)
    # the sum is rounded, by which it may be off by a place
    while found < len(total) and total[found] - begin <= limit:
        found += 1
    while found > start and total[found - 1] - begin > limit:
        found -= 1
    return found


def crossing_tensors(graph: Graph) -> list[tuple[int, int]]:
    """Activations that cross a cut before each layer: how many, and their elements. [items]"""
    order = {layer.name: i for i, layer in enumerate(graph.compute_layers)}
    counts, sizes = [0] * (len(order) + 1), [0] * (len(order) + 1)
    for name, i in order.items():
        last = max((order[edge.target] for edge in graph.consumers[name]), default=i)
        size = graph.layers[name].output.size
        for place, sign in ((i + 1, 1), (last + 1, -1)):
            counts[place] += sign
            sizes[place] += sign * size
    return list(zip(accumulate(counts[:-1]), accumulate(sizes[:-1]), strict=True))


def cut_graph(
    graph: Graph, parts: int, weights: Mapping[str, float] | None = None
) -> tuple[tuple[str, ...], ...]:
    """Contiguous parts of a network's layers, the heaviest of which is as light as can be.

    Cuts are made where one tensor crosses and not before a loss, unless there are too few such
    places or they make the heaviest part more than `CLEAN_CUT_TOLERANCE` times as heavy as cuts
    anywhere.

    Parameters
    ----------
    graph
        The network.
    parts
        How many. [items]
    weights
        Of each layer, such as its seconds; multiply-adds by default.

    Raises
    ------
    InputError
        When there are fewer layers than parts.
    """
    layers = graph.compute_layers
    if not 1 <= parts <= len(layers):
        raise InputError(
            f"{graph.name} has {len(layers)} layers and can be cut into 1 to {len(layers)} stages "
            f"but {parts} are asked for; choose fewer"
        )
    if weights is not None and any(not w >= 0 or math.isinf(w) for w in weights.values()):
        raise InputError(
            f"the weights that {graph.name} is cut by must be finite and not negative but are "
            f"{min(weights.values()):g} to {max(weights.values()):g}; correct them"
        )
    if parts == 1:
        return (tuple(layer.name for layer in layers),)
    row = [float(layer.macs if weights is None else weights.get(layer.name, 0)) for layer in layers]
    if not any(row):
        row = [1.0] * len(layers)
    crossing = crossing_tensors(graph)
    # a loss stays with the layer it reads, whose output is often the largest of all
    clean = cut_evenly(
        row,
        parts,
        [
            float(size) if n == 1 and layer.kind != "loss" else None
            for layer, (n, size) in zip(layers, crossing, strict=True)
        ],
    )
    tolerated = CLEAN_CUT_TOLERANCE * _lightest_heaviest([0.0, *accumulate(row)], parts)
    starts = clean if clean is not None and _heaviest(row, clean) <= tolerated else None
    if starts is None:
        starts = cut_evenly(row, parts, [float(size) for _, size in crossing])
        assert starts is not None, "there are as many layers as parts"
    ends = [*starts[1:], len(layers)]
    return tuple(
        tuple(layer.name for layer in layers[start:end])
        for start, end in zip(starts, ends, strict=True)
    )


def _heaviest(weights: Sequence[float], starts: Sequence[int]) -> float:
    ends = [*starts[1:], len(weights)]
    return max(math.fsum(weights[s:e]) for s, e in zip(starts, ends, strict=True))
