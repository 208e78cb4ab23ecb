"""What changing the layout of a tensor moves, between many layouts at once.

How much must move between two layouts depends only on the two layouts, not on the layers or the
tensor's size: it is counted here once, as fractions of the tensor, and shared by all edges of a
graph.

Counting is exact for equal blocks: at each level, a child (a device, a host, ...) lacks what its
new block holds beyond its old one, and that much must cross the link above it; what comes into a
host is counted once, however many of its devices need it. Uneven blocks are charged the largest.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.communication.lacking import TINY, lacking_part, parts_of_pairs
from costmodels.communication.layout import Layouts
from costmodels.communication.topology import Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class MoveTimes(Struct, frozen=True, kw_only=True, eq=False):
    """What going from each source layout to each target layout takes.

    Parameters
    ----------
    seconds_per_byte
        Time of that for each byte of the whole tensor; (sources, targets). [s/B]
    latency
        Start-up time; (sources, targets). [s]
    ramp
        How slowly the bandwidth is reached, as of collectives; (sources, targets).
    """

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
        latency, transfer, ramp = (
            # rows and then columns: entry by entry would leave the caches each time
            table.take(source, axis=0).take(target, axis=1)
            for table in (self.latency, self.seconds_per_byte, self.ramp)
        )
        transfer *= num_bytes
        time: Floats = latency + transfer + ramp * np.sqrt(latency * transfer)
        return time


class Movement(MoveTimes, frozen=True, kw_only=True, eq=False):
    """What going from each source layout to each target layout moves, and what that takes.

    Parameters
    ----------
    volume
        Part of the whole tensor that each child of a level must receive over the links of that
        level; (sources, targets, levels).
    """

    volume: Floats


def _log_changes(source: Layouts, target: Layouts) -> tuple[Floats, Floats]:
    """log2 of how much coarser and how much finer the target is; (sources, targets, levels)."""
    levels = source.degrees.shape[1]
    coarser, finer = (_zeros(len(source), len(target), levels) for _ in range(2))
    log_source, log_target = np.log2(source.degrees), np.log2(target.degrees)
    split = (source.degrees > 1).any(axis=0) | (target.degrees > 1).any(axis=0)
    for level, axis in np.argwhere(split):
        change = log_source[:, None, level, axis] - log_target[None, :, level, axis]
        coarser[:, :, level] += np.maximum(change, 0.0)
        finer[:, :, level] += np.maximum(-change, 0.0)
    return coarser, finer


def _zeros(*shape: int) -> Floats:
    """Zeros; level by level in memory, as sums over a few neighbours are slow. (..., levels)"""
    return np.moveaxis(np.zeros((shape[-1], *shape[:-1])), 0, -1)


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
    lacking = [lacking_part(source, target, level, shape) for level in range(len(shape))]
    count = (len(source), len(target))
    moves = Movement(
        volume=_zeros(*count, len(shape)),
        seconds_per_byte=np.empty(count),
        latency=np.empty(count),
        ramp=np.empty(count),
    )
    for rows in parts_of_pairs(*count):
        some = source.take(np.arange(rows.start, rows.stop))
        part = _movement(some, target, [table[rows] for table in lacking], topology, steps)
        for name in Movement.__struct_fields__:
            getattr(moves, name)[rows] = getattr(part, name)
    return moves


def _movement(
    source: Layouts,
    target: Layouts,
    lacking: list[Floats],
    topology: Topology,
    steps: Literal["ring", "doubling"],
) -> Movement:
    """What moves, for some of the sources.

    Parameters
    ----------
    source, target, topology, steps
        As of `movement`.
    lacking
        For each level the part that its worst-off child lacks; (sources, targets).
    """
    shape = topology.shape
    levels = len(shape)
    gathered, spread = _log_changes(source, target)
    # scattered partial sums that the target splits further need no gathering
    ungathered = np.maximum(np.log2(source.partial)[:, None] - spread, 0.0)
    volume = _zeros(len(source), len(target), levels)
    for level in range(levels):
        need = 1.0 / target.degrees[:, level:].prod(axis=(1, 2))
        held = need[None, :] - lacking[level]
        # of what a child holds, scattering has left it one part only
        part = np.exp2(-ungathered[:, :, level:].sum(axis=2))
        volume[:, :, level] = need[None, :] - held * part
    # what enters a host comes to its devices in equal parts, over the links that it came by
    inner = volume.copy(order="K")
    for level in range(levels - 1):
        above = volume[:, :, level + 1] / shape[level]
        inner[:, :, level] = np.maximum(volume[:, :, level] - above, 0.0)
    inner[inner < TINY] = 0.0
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
