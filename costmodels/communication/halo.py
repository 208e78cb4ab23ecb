"""Halo exchange of layers whose windows reach beyond the local block.

Forward, each block of outputs reads inputs that neighbours hold; backward-data, each block of
input gradients reads output gradients that neighbours hold (Dryden et al. 2019, sections III.A and
V.A, with the filter count that backward needs). The number of rows is what the blocks really read
for the stride, padding and dilation at hand, largest over the blocks; with a stride it can be zero.

Messages of one dim go both ways at once over full-duplex links but one after the other into each
of two neighbours; edges and corners between several split dims are messages of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from costmodels.communication.collectives import send_recv_time
from costmodels.communication.topology import Topology
from costmodels.distribution import Candidates
from costmodels.graph import SPATIAL_DIMS, Layer, Tensor, Window

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Reach(Struct, frozen=True):
    """Rows read beyond the local block, largest over blocks, below and above it. [rows]"""

    below: int
    above: int


def _bounds(extent: int, degree: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    edges = np.arange(degree + 1) * extent // degree
    return edges[:-1], edges[1:]


@lru_cache(maxsize=4096)
def rows_beyond(
    in_extent: int, out_extent: int, window: Window, degree: int, backward: bool
) -> tuple[Ints, Ints]:
    """Rows that each block reads below and above its own: inputs, or output gradients. [rows]

    Parameters
    ----------
    in_extent, out_extent
        Positions of the whole input and output. [rows]
    window
        The stencil.
    degree
        Blocks that the dim is cut into. [ways]
    backward
        Whether a block of input gradients reads output gradients.
    """
    out_start, out_end = _bounds(out_extent, degree)
    in_start, in_end = _bounds(in_extent, degree)
    if backward:
        own_start, own_end = out_start, out_end
        first = -(-(in_start + window.padding - window.reach + 1) // window.stride)
        last = np.minimum((in_end - 1 + window.padding) // window.stride + 1, out_extent)
    else:
        own_start, own_end = in_start, in_end
        first = out_start * window.stride - window.padding
        last = (out_end - 1) * window.stride - window.padding + window.reach
        last = np.minimum(last, in_extent)
    below = np.maximum(own_start - np.maximum(first, 0), 0)
    return below, np.maximum(last - own_end, 0)


def forward_reach(in_extent: int, out_extent: int, window: Window, degree: int) -> Reach:
    """Input rows that a block of outputs reads from its neighbours.

    Parameters
    ----------
    in_extent, out_extent, window, degree
        As of `rows_beyond`.
    """
    below, above = rows_beyond(in_extent, out_extent, window, degree, False)
    return Reach(int(below.max()), int(above.max()))


def backward_reach(in_extent: int, out_extent: int, window: Window, degree: int) -> Reach:
    """Output-gradient rows that a block of input gradients reads from its neighbours.

    Parameters
    ----------
    in_extent, out_extent, window, degree
        As of `rows_beyond`.
    """
    below, above = rows_beyond(in_extent, out_extent, window, degree, True)
    return Reach(int(below.max()), int(above.max()))


class Halo(Struct, frozen=True, kw_only=True, eq=False):
    """Halo exchange of one pass for many candidates.

    Parameters
    ----------
    time
        Time of all messages, one neighbour after the other. [s]
    num_bytes
        Bytes that the busiest rank receives. [B]
    messages
        Sides, edges and corners, of each block that has a part of them. [items]
    boundary
        Part of the local block that must wait for them.
    slabs
        For each dim, how many sides of the block wait, and how many positions deep. [items]
    """

    time: Floats
    num_bytes: Floats
    messages: Floats
    boundary: Floats
    slabs: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)


def _neighbour(topology: Topology, degrees: NDArray[np.int64]) -> tuple[Ints, Ints]:
    """Level that messages to the next block of a dim cross, and how many leave a child at once.

    The slowest neighbour lies across the outermost level at which the dim is split; there, the
    ranks below one child that lie at the edge of the dim all send at once.
    """
    levels = np.arange(topology.num_levels)
    outer = np.where(degrees > 1, levels, 0).max(axis=1)
    inner = np.where(levels < outer[:, None], degrees, 1).prod(axis=1)
    return outer, np.maximum(topology.devices_below[outer] // inner, 1)


def halo_exchange(
    layer: Layer,
    candidates: Candidates,
    topology: Topology,
    *,
    backward: bool,
    element_size: float,
) -> Halo:
    """Time and size of the halo exchange of a layer.

    Parameters
    ----------
    layer
        The layer; without windows nothing is exchanged.
    candidates
        Its distributions.
    topology
        Links of the devices used.
    backward
        Exchange output gradients for backward-data instead of inputs for forward.
    element_size
        Size of one element. [B]
    """
    count = len(candidates)
    zero = np.zeros(count)
    dims = [] if layer.transposed else [d for d in SPATIAL_DIMS if d in layer.windows]
    # a window of one position reads a neighbour too where a stride meets an uneven division
    dims = [d for d in dims if layer.windows[d].reach > 1 or layer.windows[d].stride > 1]
    dims = [d for d in dims if (candidates.degree(d) > 1).any()]
    if not dims:
        return Halo(time=zero, num_bytes=zero, messages=zero, boundary=zero)
    tensor = layer.output if backward else layer.inputs[0]
    borders = {dim: _border(layer, tensor, candidates, dim, backward=backward) for dim in dims}
    whole = np.full(count, float(element_size))
    for axis in tensor.axes:
        if axis.name in borders:
            whole *= borders[axis.name].local
        else:
            whole *= candidates.local(axis.dim, axis.extent) if axis.dim else axis.extent
    time, total, messages, interior = zero.copy(), zero.copy(), zero.copy(), np.ones(count)
    for size in range(1, len(dims) + 1):
        for subset in itertools.combinations(dims, size):
            chosen = {dim: borders[dim] for dim in subset}
            size_of_all, number, seconds = _region(topology, candidates, whole, chosen)
            time += seconds
            total += size_of_all
            messages += number
    for one in borders.values():
        interior = interior * np.maximum(1.0 - one.sides * one.rows / one.local, 0.0)
    return Halo(
        time=time,
        num_bytes=total,
        messages=messages,
        boundary=1.0 - interior,
        slabs={dim: (one.sides.astype(float), one.rows) for dim, one in borders.items()},
    )


class _Border(Struct, frozen=True, eq=False):
    """What blocks read of their neighbours along one dim; arrays over candidates.

    `sides` have neighbours to read from, `rows` positions are read of each on average, `messages`
    bring them, one from each block that has some, and `local` positions are the block's own.
    """

    sides: Ints
    rows: Floats
    messages: Floats
    local: Floats


def _border(
    layer: Layer, tensor: Tensor, candidates: Candidates, dim: str, *, backward: bool
) -> _Border:
    degree = candidates.degree(dim)
    in_extent, out_extent = layer.inputs[0].extent(dim), layer.output.extent(dim)
    ways, of_ways = np.unique(degree, return_inverse=True)
    window = layer.windows[dim]
    local = candidates.local(dim, tensor.extent(dim)).astype(float)
    sides, rows, messages = (np.zeros(len(ways)) for _ in range(3))
    for number, way in enumerate(ways):
        if way == 1:
            continue
        block = float(local[degree == way].max())
        both = np.stack(rows_beyond(in_extent, out_extent, window, int(way), backward))
        # those of the block that reads most; of two blocks each has one neighbour
        sides[number] = (both > 0).sum(axis=0).max()
        rows[number] = both.sum(axis=0).max() / max(sides[number], 1.0)
        # rows beyond the next block come from further away, in a message for each block
        messages[number] = np.ceil(both / block).sum(axis=0).max()
    return _Border(
        sides=sides[of_ways].astype(int),
        rows=rows[of_ways],
        messages=messages[of_ways],
        local=local,
    )


def _region(
    topology: Topology, candidates: Candidates, whole: Floats, borders: Mapping[str, _Border]
) -> tuple[Floats, Floats, Floats]:
    """All sides, edges or corners between some dims: bytes, messages, and their time. [B], [s]"""
    count = len(candidates)
    size, messages = whole.copy(), np.ones(count)
    level, senders = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    for dim, border in borders.items():
        size = size * border.sides * border.rows / border.local
        messages = messages * border.messages
        across, at_once = _neighbour(topology, candidates.level_degrees(dim))
        # a corner goes where the further of its two neighbours is
        senders = np.where(across > level, at_once, np.maximum(senders, at_once))
        level = np.maximum(level, across)
    each = size / np.maximum(messages, 1.0)
    seconds = messages * send_recv_time(topology, level, each, senders)
    return size, messages, seconds
