"""What changing the layout of a tensor moves, between many layouts at once.

How much must move between two layouts depends only on the two layouts, not on the layers or the
tensor's size: it is counted here once, as fractions of the tensor, and shared by all edges of a
graph.

Counting is exact for equal blocks: at each level, a child (a device, a host, ...) lacks what its
new block holds beyond its old one, and that much must cross the link above it; what comes into a
host is counted once, however many of its devices need it. Uneven blocks are charged the largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.layout import Layouts
from costmodels.communication.topology import Topology
from costmodels.distribution.rows import unique_rows

_TINY = 1e-12

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Movement:
    """What going from each source layout to each target layout moves.

    Parameters
    ----------
    volume
        Part of the whole tensor that each child of a level must receive over the links of that
        level; (sources, targets, levels).
    seconds_per_byte
        Time of that for each byte of the whole tensor; (sources, targets). [s/B]
    latency
        Start-up time; (sources, targets). [s]
    ramp
        How slowly the bandwidth is reached, as of collectives; (sources, targets).
    """

    volume: Floats
    seconds_per_byte: Floats
    latency: Floats
    ramp: Floats

    def time(self, source: Ints, target: Ints, num_bytes: float | Floats) -> Floats:
        """Time to move a tensor from each source to each target; (sources, targets). [s]

        Parameters
        ----------
        source, target
            Indices of layouts.
        num_bytes
            Size of the whole tensor. [B]
        """
        pairs = np.ix_(source, target)
        latency, transfer = self.latency[pairs], num_bytes * self.seconds_per_byte[pairs]
        time: Floats = latency + transfer + self.ramp[pairs] * np.sqrt(latency * transfer)
        return time


def _blocks_of_codes(codes: Ints, shape: tuple[int, ...]) -> Floats:
    """Start of the block of every rank for axis codes (codes, 2, levels): (codes, ranks)."""
    start = np.zeros((len(codes), 1))
    width = np.ones(len(codes))
    # outermost level first: its blocks are the largest
    for level in reversed(range(len(shape))):
        degree, stride = codes[:, 0, level], np.maximum(codes[:, 1, level], 1)
        digit = np.arange(shape[level])[None, :] // stride[:, None] % degree[:, None]
        width = width / degree
        start = (start[:, :, None] + (digit * width[:, None])[:, None, :]).reshape(len(codes), -1)
    return start


@dataclass(frozen=True, slots=True)
class _AxisOverlap:
    """Overlap of source and target blocks along one axis, for pairs of axis codes."""

    source: Ints  # code of each source layout
    target: Ints
    least: Floats  # smallest overlap over ranks; (codes, codes)
    constant: NDArray[np.bool_]  # whether it is the same on all ranks
    starts: Floats
    widths: Floats

    def exact(self, source_codes: Ints, target_codes: Ints, ranks: int) -> Floats:
        """Overlap on the first ranks for pairs of axis codes; (pairs, ranks)."""
        start_a, start_b = self.starts[source_codes, :ranks], self.starts[target_codes, :ranks]
        end_a = start_a + self.widths[source_codes, None]
        end_b = start_b + self.widths[target_codes, None]
        common: Floats = np.minimum(end_a, end_b) - np.maximum(start_a, start_b)
        return np.maximum(common, 0.0)


def _axis_overlap(
    source: Layouts, target: Layouts, axis: int, cut: int, shape: tuple[int, ...]
) -> _AxisOverlap:
    pick = [
        np.stack([x.degrees[:, cut:, axis], x.strides[:, cut:, axis]], axis=1)
        for x in (source, target)
    ]
    rows = np.concatenate(pick).reshape(len(source) + len(target), -1)
    first, inverse = unique_rows(rows)
    unique = rows[first]
    inverse = inverse.reshape(-1)
    codes = unique.reshape(len(unique), 2, -1)
    starts = _blocks_of_codes(codes, shape[cut:])
    widths = 1.0 / codes[:, 0].prod(axis=1)
    ends = starts + widths[:, None]
    least = np.empty((len(codes), len(codes)))
    most = np.empty_like(least)
    for i in range(len(codes)):
        overlap = np.minimum(ends[i], ends) - np.maximum(starts[i], starts)
        least[i] = np.maximum(overlap.min(axis=1), 0.0)
        most[i] = np.maximum(overlap.max(axis=1), 0.0)
    return _AxisOverlap(
        inverse[: len(source)],
        inverse[len(source) :],
        least,
        most - least < _TINY,
        starts,
        widths,
    )


def lacking_part(source: Layouts, target: Layouts, cut: int, shape: tuple[int, ...]) -> Floats:
    """Part of the tensor that the worst-off child of a level lacks; (sources, targets).

    Parameters
    ----------
    source, target
        Layouts that the tensor is in, and that it must get.
    cut
        The level, 0 for devices.
    shape
        Members of each level, from the inside out. [items]
    """
    split = (source.degrees[:, cut:] > 1).any(axis=(0, 1)) | (target.degrees[:, cut:] > 1).any(
        axis=(0, 1)
    )
    need = 1.0 / target.degrees[:, cut:].prod(axis=(1, 2))
    held = np.ones((len(source), len(target)))
    varying = np.zeros(held.shape, dtype=np.int64)
    overlaps = [_axis_overlap(source, target, int(a), cut, shape) for a in np.flatnonzero(split)]
    for overlap in overlaps:
        pair = (overlap.source[:, None], overlap.target[None, :])
        held *= overlap.least[pair]
        varying += ~overlap.constant[pair]
    # where two axes vary over the ranks, the worst rank need not be the worst in both
    i, j = np.nonzero(varying > 1)
    if len(i):
        held[i, j] = _worst_rank(source, target, (i, j), overlaps, cut, shape)
    lacking: Floats = np.maximum(need[None, :] - held, 0.0)
    lacking[lacking < _TINY] = 0.0
    return lacking


def _worst_rank(
    source: Layouts,
    target: Layouts,
    pairs: tuple[Ints, Ints],
    overlaps: list[_AxisOverlap],
    cut: int,
    shape: tuple[int, ...],
) -> Floats:
    """Least overlap over the ranks for pairs of layouts that vary in several axes; (pairs,)."""
    i, j = pairs
    # samples have the most significant digit: blocks of samples that both sides tell apart repeat
    # the same pattern, so that one of them speaks for all
    outer = max((level for level in range(cut, len(shape)) if shape[level] > 1), default=cut)
    repeats = np.gcd(source.degrees[i, outer, 0], target.degrees[j, outer, 0])
    # pairs that agree in the axes that vary share one walk over the ranks
    steady = np.ones(len(i))
    columns = [repeats]
    for overlap in overlaps:
        a, b = overlap.source[i], overlap.target[j]
        constant = overlap.constant[a, b]
        steady *= np.where(constant, overlap.least[a, b], 1.0)
        columns += [np.where(constant, -1, a), np.where(constant, -1, b)]
    table = np.stack(columns, axis=1)
    first, inverse = unique_rows(table)
    keys = table[first]
    ranks = math.prod(shape[cut:])
    least = np.empty(len(keys))
    # keys that vary in the same axes are walked together, as many at once as the cache likes
    kinds = np.concatenate([keys[:, :1], keys[:, 1::2] >= 0], axis=1)
    leader, kind = unique_rows(kinds)
    for number, row in enumerate(leader):
        some, count = np.flatnonzero(kind == number), ranks // int(keys[row, 0])
        chunk = max(1, 100_000 // count)
        for start in range(0, len(some), chunk):
            part = some[start : start + chunk]
            product = np.ones(1)
            for n, overlap in enumerate(overlaps):
                if kinds[row, 1 + n]:
                    a, b = keys[part, 1 + 2 * n], keys[part, 2 + 2 * n]
                    product = product * overlap.exact(a, b, count)
            least[part] = product.min(axis=1)
    worst: Floats = least[inverse] * steady
    return worst


def _log_changes(source: Layouts, target: Layouts) -> tuple[Floats, Floats]:
    """log2 of how much coarser and how much finer the target is; (sources, targets, levels)."""
    coarser = np.zeros((len(source), len(target), source.degrees.shape[1]))
    finer = coarser.copy()
    log_source, log_target = np.log2(source.degrees), np.log2(target.degrees)
    split = (source.degrees > 1).any(axis=(0, 1)) | (target.degrees > 1).any(axis=(0, 1))
    for axis in np.flatnonzero(split):
        change = log_source[:, None, :, axis] - log_target[None, :, :, axis]
        coarser += np.maximum(change, 0.0)
        finer += np.maximum(-change, 0.0)
    return coarser, finer


def movement(
    source: Layouts,
    target: Layouts,
    topology: Topology,
    *,
    steps: Literal["ring", "doubling"] = "ring",
) -> Movement:
    """Count and time what moves between every source and every target layout.

    Partial sums of the source are taken as reduced and scattered over the ranks that hold them
    (that part is timed where the sums are made): what is still to gather is counted here. The
    levels follow each other, so that a gathering takes as long as a hierarchical all-gather.

    Parameters
    ----------
    source
        Layouts that the tensor is in.
    target
        Layouts that it must get; their partial members are replicas.
    topology
        Links of the devices used.
    steps
        Steps among p ranks: "ring" takes p - 1, as the collectives do (Kahira et al. 2021, section
        IV), "doubling" log2 p, as recursive doubling does (Thakur et al. 2005, section 4.1).
    """
    shape = topology.shape
    levels = len(shape)
    gathered, spread = _log_changes(source, target)
    # scattered partial sums that the target splits further need no gathering
    ungathered = np.maximum(np.log2(source.partial)[:, None] - spread, 0.0)
    volume = np.zeros((len(source), len(target), levels))
    for level in range(levels):
        need = 1.0 / target.degrees[:, level:].prod(axis=(1, 2))
        held = need[None, :] - lacking_part(source, target, level, shape)
        # of what a child holds, scattering has left it one part only
        part = np.exp2(-ungathered[:, :, level:].sum(axis=2))
        volume[:, :, level] = need[None, :] - held * part
    # what enters a host comes to its devices in equal parts, over the links that it came by
    inner = volume.copy()
    for level in range(levels - 1):
        above = volume[:, :, level + 1] / shape[level]
        inner[:, :, level] = np.maximum(volume[:, :, level] - above, 0.0)
    inner[inner < _TINY] = 0.0
    moving = inner > 0.0
    log_peers = np.where(moving, np.maximum(gathered + ungathered, 1.0), 0.0)
    peers = np.maximum(np.exp2(log_peers) - 1.0, 1.0)
    exchange = (gathered > 0) & (spread > 0)
    bandwidth = np.where(exchange, topology.core_bandwidth, topology.child_bandwidth)
    with np.errstate(invalid="ignore"):
        bandwidth = np.minimum(bandwidth, topology.peer_bandwidth * peers)
    num_steps = np.where(moving, peers, 0.0) if steps == "ring" else log_peers
    start = np.where(moving, topology.start_latency, 0.0).max(axis=2)
    return Movement(
        volume=inner,
        seconds_per_byte=(inner / bandwidth).sum(axis=2),
        latency=start + (num_steps * topology.latency).sum(axis=2),
        ramp=np.where(moving, topology.ramp, 0.0).max(axis=2),
    )
