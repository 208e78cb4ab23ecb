"""What changing the layout of a tensor moves, between many layouts at once.

How much must move between two layouts depends only on the two layouts, not on the layers or the
tensor's size: it is counted here once, as fractions of the tensor, and shared by all edges of a
graph.

Counting is exact for equal blocks: at each level, a child (a device, a host, ...) lacks what its
new block holds beyond its old one, and that much must cross the link above it; what comes into a
host is counted once, however many of its devices need it. Uneven blocks are charged the largest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.lacking import TINY, lacking_part, parts_of_pairs
from costmodels.communication.layout import Layouts
from costmodels.communication.topology import Topology
from costmodels.distribution.rows import unique_rows

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
    if source is not target or steps != "ring":
        return _counted(source, target, topology, steps)
    codes, known = source.codes(), _KNOWN.get(topology)
    moves = (
        _counted(source, source, topology, steps)
        if known is None
        else _recounted(source, codes, known, topology)
    )
    _KNOWN[topology] = (codes, moves)
    return moves


# The layouts that were compared last on a machine, and what moves between them: a search asks for
# the same ones and some more again and again.
_KNOWN: WeakKeyDictionary[Topology, tuple[Ints, Movement]] = WeakKeyDictionary()


def _recounted(
    layouts: Layouts, codes: Ints, known: tuple[Ints, Movement], topology: Topology
) -> Movement:
    """What moves between any two layouts, when it is known for some of them.

    Parameters
    ----------
    layouts, codes
        The layouts, and their codes.
    known
        Codes of others, and what moves between those.
    topology
        Links of the devices used.
    """
    before, moves = known
    first, number = unique_rows(np.concatenate([before, codes]))
    place = first[number[len(before) :]]
    old, new = np.flatnonzero(place < len(before)), np.flatnonzero(place >= len(before))
    if len(new) > len(old):
        return _counted(layouts, layouts, topology, "ring")
    some = layouts.take(new)
    parts = [
        (np.ix_(new, np.arange(len(layouts))), _counted(some, layouts, topology, "ring")),
        (np.ix_(old, new), _counted(layouts.take(old), some, topology, "ring")),
    ]
    found = {}
    for item in fields(Movement):
        values = getattr(moves, item.name)
        table = np.empty((len(layouts), len(layouts), *values.shape[2:]))
        table[np.ix_(old, old)] = values[np.ix_(place[old], place[old])]
        for pairs, part in parts:
            table[pairs] = getattr(part, item.name)
        found[item.name] = table
    return Movement(**found)


def _counted(
    source: Layouts, target: Layouts, topology: Topology, steps: Literal["ring", "doubling"]
) -> Movement:
    """As `movement`, some sources at a time."""
    shape = topology.shape
    lacking = [lacking_part(source, target, level, shape) for level in range(len(shape))]
    count = (len(source), len(target))
    moves = Movement(
        volume=np.empty((*count, len(shape))),
        seconds_per_byte=np.empty(count),
        latency=np.empty(count),
        ramp=np.empty(count),
    )
    for rows in parts_of_pairs(*count):
        some = source.take(np.arange(rows.start, rows.stop))
        part = _movement(some, target, [table[rows] for table in lacking], topology, steps)
        for item in fields(Movement):
            getattr(moves, item.name)[rows] = getattr(part, item.name)
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
    volume = np.zeros((len(source), len(target), levels))
    for level in range(levels):
        need = 1.0 / target.degrees[:, level:].prod(axis=(1, 2))
        held = need[None, :] - lacking[level]
        # of what a child holds, scattering has left it one part only
        part = np.exp2(-ungathered[:, :, level:].sum(axis=2))
        volume[:, :, level] = need[None, :] - held * part
    # what enters a host comes to its devices in equal parts, over the links that it came by
    inner = volume.copy()
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
