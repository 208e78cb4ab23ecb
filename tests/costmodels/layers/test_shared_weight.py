"""What two layers that use one weight hold and sum, against counting on every rank."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import ALPHA, BANDWIDTH, UPDATE_RATE, cluster, graph, machine

from costmodels.communication.collectives import all_gather_time, all_reduce_time
from costmodels.distribution import Candidates, enumerate_candidates
from costmodels.graph import DIMS, Graph, Layer
from costmodels.layers.local_work import local_parameters
from costmodels.layers.shared_weight import SharedBlock, shared_weight, within_whole

SIZE = 4
ROWS, FEATURES = 64, 32


def tied(**options: Any) -> Graph:
    rows: list = [
        ("table", "embedding", {"rows": ROWS, "filters": FEATURES}),
        ("head", "linear", {"filters": ROWS, "bias": False, "share": "table"}),
    ]
    return graph({"sequence": 16}, rows, options.pop("batch", 64))


def coded() -> Graph:
    """An encoder whose decoder uses its weight transposed, twice."""
    rows: list = [
        ("table", "linear", {"filters": ROWS, "bias": False}),
        ("head", "linear", {"filters": FEATURES, "bias": False, "share": "table"}),
    ]
    return graph({"channel": FEATURES}, rows, 64)


def convolved() -> Graph:
    conv = {"filters": 16, "kernel": 3, "padding": 1}
    rows: list = [("table", "conv", conv), ("head", "conv", {**conv, "share": "table"})]
    return graph({"channel": 16, "height": 16}, rows, 64)


GRAPHS = {"tied": tied(), "coded": coded(), "convolved": convolved()}
# how the axes of the weight are called by the owner and by the sharer
AXES = {
    "tied": (("channel", "filter"), ("filter", "channel")),
    "coded": (("filter", "channel"), ("channel", "filter")),
    "convolved": (("filter", "channel"), ("filter", "channel")),
}


def blocks(layer: Layer, candidates: Candidates, c: int, axes: tuple[str, ...]) -> np.ndarray:
    """Which elements of the weight every rank needs; (ranks, *extents)."""
    extents = [layer.dims[dim] for dim in axes]
    masks = []
    for rank in itertools.product(*(range(n) for n in reversed(candidates.shape))):
        bounds = {dim: (0, layer.dims[dim]) for dim in axes}
        # the outermost level first: its blocks are the largest; within a level the first dim has
        # the most significant digit
        for level, place in zip(reversed(range(len(candidates.shape))), rank, strict=True):
            stride = candidates.shape[level]
            for dim in DIMS:
                if dim not in candidates.dims:
                    continue
                ways = int(candidates.degrees[c, level, candidates.dims.index(dim)])
                stride //= ways
                if dim in bounds:
                    low, high = bounds[dim]
                    width = (high - low) // ways
                    low += place // stride % ways * width
                    bounds[dim] = (low, low + width)
        mask = np.zeros(extents, dtype=bool)
        mask[tuple(slice(*bounds[dim]) for dim in axes)] = True
        masks.append(mask)
    return np.stack(masks)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", [(8,), (4, 2), (2, 2, 4)])
@given(data=st.data())
@settings(max_examples=40)
def test_a_rank_holds_the_union_of_the_blocks(name, shape, data):
    table, head = GRAPHS[name].layers["table"], GRAPHS[name].layers["head"]
    m = machine(cluster(*shape))
    a, b = (enumerate_candidates(layer, shape, 0, full=True) for layer in (table, head))
    found = shared_weight((table, a), (head, b), m, largest_bucket=1e6)
    i, j = data.draw(st.integers(0, len(a) - 1)), data.draw(st.integers(0, len(b) - 1))
    block = found.block(i, j)
    per_element = table.parameters / math.prod(table.dims[dim] for dim in table.weight_dims)
    of_owner, of_sharer = (
        blocks(layer, rows, c, axes)
        for layer, rows, c, axes in zip((table, head), (a, b), (i, j), AXES[name], strict=True)
    )
    union = (of_owner | of_sharer).reshape(len(of_owner), -1).sum(axis=1).max() * per_element
    assert local_parameters(table, a)[i] + block.parameters == pytest.approx(union)
    lacking = [
        (need & ~have).reshape(len(need), -1).sum(axis=1).max() * per_element
        for need, have in ((of_sharer, of_owner), (of_owner, of_sharer))
    ]
    assert block.exchange_bytes == pytest.approx(sum(lacking) * SIZE)
    assert (block.exchange > 0.0) == (sum(lacking) > 0.0)


def only(layer: Layer, shape: tuple[int, ...], **degrees: Any) -> Candidates:
    rows = np.ones((1, len(shape), len(degrees)), dtype=np.int64)
    order = tuple(dim for dim in DIMS if dim in degrees)
    for i, dim in enumerate(order):
        rows[0, :, i] = degrees[dim]
    return Candidates(dims=order, degrees=rows, shape=shape)


def added(owner: dict[str, int], sharer: dict[str, int], g: Graph | None = None) -> SharedBlock:
    layers = (g or GRAPHS["tied"]).layers
    ends = [
        (layers[n], only(layers[n], (8,), **d)) for n, d in (("table", owner), ("head", sharer))
    ]
    return shared_weight(*ends, machine(cluster(8)), largest_bucket=1e6).block(0, 0)


WHOLE = ROWS * FEATURES


@pytest.mark.parametrize(
    ("owner", "sharer"),
    [
        ({"sample": 8}, {"sample": 8}),
        ({"sample": 8}, {"sample": 2}),
        ({"sample": 8}, {}),
        ({"filter": 8}, {"channel": 8}),
        ({"channel": 8}, {"filter": 8}),
        ({"sample": 2, "filter": 4}, {"sample": 2, "channel": 4}),
    ],
)
def test_nothing_is_added_where_both_hold_the_same(owner, sharer):
    block = added(owner, sharer)
    assert block.parameters == block.gradient_bytes == block.update == block.exchange == 0.0


def test_a_sharer_that_is_split_less_holds_and_updates_the_rest():
    block = added({"filter": 8}, {"sample": 8})
    assert block.parameters == WHOLE * 7 / 8
    assert block.update == pytest.approx(WHOLE * 7 / 8 / UPDATE_RATE)
    # its gradient is summed over all, and the owner's is gathered
    assert (block.gradient_bytes, block.gradient_group) == (WHOLE * SIZE, (8,))
    m = machine(cluster(8))
    gather = all_gather_time(m.topology, np.array([8]), WHOLE * SIZE / 8)
    assert block.exchange == pytest.approx(float(gather))
    assert block.exchange_bytes == WHOLE * SIZE * 7 / 8


def test_a_sharer_that_is_split_more_holds_nothing_more():
    block = added({"sample": 8}, {"channel": 8})
    assert block.parameters == block.update == block.gradient_bytes == 0.0
    # each rank has the sum of the sharer's gradient for its block only
    assert block.exchange_bytes == WHOLE * SIZE * 7 / 8
    assert block.exchange == pytest.approx(7 * ALPHA + WHOLE * SIZE * 7 / 8 / BANDWIDTH)


def test_a_gradient_that_more_ranks_sum_than_the_owners_is_reduced_by_itself():
    # the owner runs whole on every rank: its gradient needs no sum
    block = added({}, {"sample": 8})
    assert (block.parameters, block.exchange) == (0.0, 0.0)
    assert (block.gradient_bytes, block.gradient_group) == (WHOLE * SIZE, (8,))
    m = machine(cluster(8))
    # by the byte, at the rate of the largest bucket of 1 MB and a quarter more
    reduce = all_reduce_time(m.topology, np.array([8]), np.array(1.25e6)) / 1.25e6 * WHOLE * SIZE
    assert block.gradient_time == pytest.approx(float(reduce))


def test_blocks_along_different_axes_overlap_in_a_part_of_both():
    block = added({"filter": 8}, {"filter": 8})
    assert block.parameters == WHOLE / 8 * 7 / 8
    assert block.exchange_bytes == 2 * WHOLE / 8 * 7 / 8 * SIZE


def test_uneven_blocks_are_charged_the_largest():
    block = added({"filter": 8}, {"sample": 8}, tied(batch=12))
    assert block.parameters == WHOLE * 7 / 8
    rows: list = [
        ("table", "embedding", {"rows": ROWS, "filters": 12}),
        ("head", "linear", {"filters": ROWS, "bias": False, "share": "table"}),
    ]
    g = graph({"sequence": 16}, rows, 64)
    whole = ROWS * 12
    # the largest of eight blocks of twelve features has two
    held = whole / 6
    assert held + added({"filter": 8}, {"sample": 8}, g).parameters >= whole
    assert added({"filter": 8}, {"channel": 8}, g).parameters == 0.0
    assert held + added({"filter": 8}, {"channel": 4}, g).parameters >= whole / 4


def test_several_sharers_hold_no_more_than_the_whole():
    block = added({"filter": 8}, {"sample": 8})
    rows = within_whole(WHOLE, WHOLE / 8, [block, block])
    assert [row.parameters for row in rows] == [WHOLE * 7 / 8, 0.0]
