"""Halo exchange: rows against index sets, times against Dryden et al. 2019, section V.A."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from machines import ALPHA, BANDWIDTH, graph, topology_of

from costmodels.communication.halo import (
    Halo,
    Reach,
    backward_reach,
    forward_reach,
    halo_exchange,
)
from costmodels.communication.topology import Topology
from costmodels.distribution import Candidates
from costmodels.graph import Layer, Window

SIZE = 4


def blocks(extent: int, degree: int) -> list[range]:
    return [range(i * extent // degree, (i + 1) * extent // degree) for i in range(degree)]


def reads(window: Window, output: int) -> list[int]:
    return [
        output * window.stride - window.padding + k * window.dilation for k in range(window.kernel)
    ]


def rows_beyond(own: list[range], wanted: list[list[int]]) -> Reach:
    """Rows from the first (last) one wanted to the block's own, largest over blocks."""
    below = above = 0
    for block, rows in zip(own, wanted, strict=True):
        if rows:
            below = max(below, block.start - min(rows))
            above = max(above, max(rows) + 1 - block.stop)
    return Reach(below, above)


@st.composite
def divided_windows(draw) -> tuple[int, int, Window, int]:
    window = Window(
        kernel=draw(st.integers(1, 7)),
        stride=draw(st.integers(1, 4)),
        padding=draw(st.integers(0, 4)),
        dilation=draw(st.integers(1, 3)),
    )
    extent = draw(st.integers(1, 64))
    span = extent + 2 * window.padding - window.reach
    assume(span >= 0 and window.padding < window.reach)
    outputs = span // window.stride + 1
    return extent, outputs, window, draw(st.integers(1, min(outputs, extent, 9)))


def agrees(found: Reach, wanted: Reach, window: Window) -> bool:
    """A dilated window may jump over a short block: then rows that it skips are counted too."""
    if window.dilation == 1:
        return found == wanted
    return found.below >= wanted.below and found.above >= wanted.above


@given(divided_windows())
def test_forward_reach_is_what_the_outputs_read(case):
    extent, outputs, window, degree = case
    wanted = [
        [row for o in block for row in reads(window, o) if 0 <= row < extent]
        for block in blocks(outputs, degree)
    ]
    expected = rows_beyond(blocks(extent, degree), wanted)
    assert agrees(forward_reach(extent, outputs, window, degree), expected, window)


@given(divided_windows())
def test_backward_reach_is_the_outputs_that_read_the_inputs(case):
    extent, outputs, window, degree = case
    wanted = [
        [o for o in range(outputs) if set(reads(window, o)) & set(block)]
        for block in blocks(extent, degree)
    ]
    expected = rows_beyond(blocks(outputs, degree), wanted)
    assert agrees(backward_reach(extent, outputs, window, degree), expected, window)


@pytest.mark.parametrize("dilation", [2, 3])
def test_dilated_windows_reach_further(dilation):
    window = Window(kernel=3, padding=dilation, dilation=dilation)
    for reach in (forward_reach, backward_reach):
        assert reach(24, 24, window, 4) == Reach(dilation, dilation)


def conv(extents: dict[str, int], *, batch: int = 4, channels: int = 6, **options) -> Layer:
    rows = [("conv", "conv", {"filters": 10, **options})]
    return graph({"channel": channels, **extents}, rows, batch).layers["conv"]


def exchange(
    layer: Layer, topology: Topology, *levels: dict[str, int], backward: bool = False
) -> Halo:
    dims = ("sample", "filter", "channel", "depth", "height", "width")
    degrees = np.array([[[level.get(d, 1) for d in dims] for level in levels]], dtype=np.int64)
    candidates = Candidates(dims=dims, degrees=degrees, shape=topology.shape)
    return halo_exchange(layer, candidates, topology, backward=backward, element_size=SIZE)


def send_recv(elements: float) -> float:
    return ALPHA + SIZE * elements / BANDWIDTH


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("backward", [False, True])
def test_stride_one_is_the_formula_of_dryden(kernel, backward):
    layer = conv({"height": 64, "width": 96}, kernel=kernel, padding=kernel // 2)
    o, n, f, h, w = kernel // 2, 4, 10 if backward else 6, 64 // 4, 96 // 3
    halo = exchange(layer, topology_of(12), {"height": 4, "width": 3}, backward=backward)
    expected = 2 * send_recv(o * n * f * h) + 2 * send_recv(o * n * f * w)
    expected += 4 * send_recv(o * o * n * f)
    assert halo.time.item() == pytest.approx(expected)
    assert halo.num_bytes.item() == pytest.approx(SIZE * n * f * (2 * o * (h + w) + 4 * o * o))
    assert halo.messages.item() == 8
    assert halo.boundary.item() == pytest.approx(1 - (1 - 2 * o / h) * (1 - 2 * o / w))


@pytest.mark.parametrize("backward", [False, True])
def test_messages_of_dims_that_are_not_split_are_omitted(backward):
    layer = conv({"height": 64, "width": 96}, kernel=3, padding=1)
    n, f = 4, 10 if backward else 6
    halo = exchange(layer, topology_of(4), {"height": 4}, backward=backward)
    assert halo.time.item() == pytest.approx(2 * send_recv(n * f * 96))
    # of two blocks each has one neighbour
    halo = exchange(layer, topology_of(2), {"width": 2}, backward=backward)
    assert halo.time.item() == pytest.approx(send_recv(n * f * 64))
    assert halo.messages.item() == 1
    halo = exchange(layer, topology_of(4), {"sample": 4}, backward=backward)
    assert halo.time.item() == halo.num_bytes.item() == halo.boundary.item() == 0.0


def test_split_samples_and_channels_make_messages_smaller():
    layer = conv({"height": 64, "width": 96}, kernel=3, padding=1)
    topology = topology_of(4, 12)
    outer = {"sample": 4, "channel": 3}
    halo = exchange(layer, topology, {"height": 4}, outer)
    assert halo.time.item() == pytest.approx(2 * send_recv(4 / 4 * 6 / 3 * 96))
    # output gradients lack the channels, but have the filters
    halo = exchange(layer, topology, {"height": 4}, outer, backward=True)
    assert halo.time.item() == pytest.approx(2 * send_recv(4 / 4 * 10 * 96))
    halo = exchange(layer, topology, {"height": 4}, {"filter": 2}, backward=True)
    assert halo.time.item() == pytest.approx(2 * send_recv(4 * 10 / 2 * 96))


@given(extent=st.integers(8, 60), degree=st.integers(1, 8), backward=st.booleans())
def test_one_by_one_kernels_exchange_nothing(extent, degree, backward):
    layer = conv({"width": extent}, kernel=1)
    halo = exchange(layer, topology_of(8), {"width": math.gcd(degree, 8)}, backward=backward)
    assert halo.time.item() == halo.num_bytes.item() == halo.messages.item() == 0.0


@pytest.mark.parametrize(
    ("extent", "kernel", "padding", "degree"), [(16, 7, 3, 8), (8, 3, 2, 8), (12, 5, 2, 4)]
)
def test_each_block_that_has_rows_sends_a_message(extent, kernel, padding, degree):
    layer = conv({"height": extent, "width": 16}, kernel=kernel, padding=padding)
    outputs = layer.output.extent("height")
    own = blocks(extent, degree)
    rows, messages = [], []
    for block, written in zip(own, blocks(outputs, degree), strict=True):
        read = {n for o in written for n in reads(layer.windows["height"], o)}
        lacking = {n for n in read if 0 <= n < extent} - set(block)
        rows.append(len(lacking))
        messages.append(sum(bool(lacking & set(other)) for other in own))
    halo = exchange(layer, topology_of(degree), {"height": degree})
    size = SIZE * max(rows) * 4 * 6 * 16
    assert halo.messages.item() == max(messages)
    assert halo.num_bytes.item() == pytest.approx(size)
    assert halo.time.item() == pytest.approx(ALPHA * max(messages) + size / BANDWIDTH)


def test_a_block_near_the_border_reads_fewer_rows():
    # of two rows above and below, in blocks of one: none of four blocks has two on either side
    layer = conv({"height": 4, "width": 16}, kernel=5, padding=2)
    halo = exchange(layer, topology_of(4), {"height": 4})
    assert halo.num_bytes.item() == pytest.approx(SIZE * 3 * 4 * 6 * 16)
    assert halo.messages.item() == 3


def test_a_stride_can_leave_one_side_or_nothing():
    # 3 wide, stride 2: output o reads 2o-1 to 2o+1, so only the row before the block
    below = conv({"height": 64, "width": 64}, kernel=3, stride=2, padding=1)
    halo = exchange(below, topology_of(4), {"height": 4})
    assert halo.time.item() == pytest.approx(send_recv(4 * 6 * 64))
    assert halo.messages.item() == 1
    # output gradients: the last input of a block is read by the first output of the next one
    halo = exchange(below, topology_of(4), {"height": 4}, backward=True)
    assert halo.time.item() == pytest.approx(send_recv(4 * 10 * 32))
    apart = conv({"height": 64, "width": 64}, kernel=2, stride=2)
    for backward in (False, True):
        assert exchange(apart, topology_of(4), {"height": 4}, backward=backward).time.item() == 0.0
    # 7 outputs of 14 inputs do not divide evenly: output 3 of the second block reads input 6
    uneven = conv({"height": 14, "width": 4}, kernel=1, stride=2)
    halo = exchange(uneven, topology_of(2), {"height": 2})
    assert halo.time.item() == pytest.approx(send_recv(4 * 6 * 1 * 4))


def test_pooling_reads_halos_and_transposed_convolutions_do_not():
    rows = [
        ("pool", "pool", {"kernel": 3, "stride": 2, "padding": 1}),
        ("up", "conv", {"filters": 6, "kernel": 2, "stride": 2, "transposed": True}),
    ]
    layers = graph({"channel": 6, "height": 64, "width": 64}, rows, 4).layers
    halo = exchange(layers["pool"], topology_of(4), {"height": 4})
    assert halo.time.item() == pytest.approx(send_recv(4 * 6 * 64))
    assert exchange(layers["up"], topology_of(4), {"height": 4}).time.item() == 0.0


def test_three_dims_have_faces_edges_and_corners():
    layer = conv({"depth": 24, "height": 36, "width": 48}, kernel=5, padding=2)
    halo = exchange(layer, topology_of(27), {"depth": 3, "height": 3, "width": 3})
    n, o, d, h, w = 4 * 6, 2, 8, 12, 16
    faces = 2 * sum(send_recv(n * o * a * b) for a, b in ((d, h), (d, w), (h, w)))
    edges = 4 * sum(send_recv(n * o * o * a) for a in (d, h, w))
    corners = 8 * send_recv(n * o**3)
    assert halo.time.item() == pytest.approx(faces + edges + corners)
    assert halo.messages.item() == 6 + 12 + 8
    whole = (d + 2 * o) * (h + 2 * o) * (w + 2 * o) - d * h * w
    assert halo.num_bytes.item() == pytest.approx(SIZE * n * whole)


def test_rows_beyond_the_next_block_take_a_message_for_each_block():
    # blocks of 2 rows, 3 of them wanted on each side: 2 from the next block, 1 from the one after
    layer = conv({"height": 16, "width": 8}, kernel=7, padding=3)
    halo = exchange(layer, topology_of(8), {"height": 8})
    assert halo.num_bytes.item() == pytest.approx(SIZE * 2 * 3 * 4 * 6 * 8)
    assert halo.time.item() == pytest.approx(2 * 2 * send_recv(1.5 * 4 * 6 * 8))


def test_the_slowest_neighbour_is_across_the_outermost_level_that_splits_the_dim():
    layer = conv({"height": 64, "width": 64}, kernel=3, padding=1)
    row = 4 * 6 * 64
    # 4 devices a host share one link; all of them have their neighbour in the next host
    shared = exchange(layer, topology_of(4, 4), {}, {"height": 4})
    assert shared.time.item() == pytest.approx(2 * (ALPHA + SIZE * row / (BANDWIDTH / 4)))
    # one block of rows a host: only the outer two of four devices talk to another host
    edge = exchange(layer, topology_of(4, 4), {"height": 4}, {"height": 4})
    assert edge.time.item() == pytest.approx(2 * (ALPHA + SIZE * row / BANDWIDTH))
    # within the host every device has its own link
    inside = exchange(layer, topology_of(4, 4), {"height": 4}, {"sample": 4})
    assert inside.time.item() == pytest.approx(2 * (ALPHA + SIZE * row / 4 / BANDWIDTH))
    # height goes through the network for two devices at a time, width stays inside
    both = exchange(layer, topology_of(4, 4), {"height": 2, "width": 2}, {"height": 4})
    shared_link = ALPHA + SIZE * row / 2 / (BANDWIDTH / 2)
    corner = ALPHA + SIZE * 4 * 6 / (BANDWIDTH / 2)
    width = ALPHA + SIZE * 4 * 6 * 8 / BANDWIDTH
    assert both.time.item() == pytest.approx(2 * shared_link + width + 2 * corner)
