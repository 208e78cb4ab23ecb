"""What a change of layout takes at least, whichever communication does it.

Counting what moves (`movement`) is exact where messages are sent one by one. What one collective
does (`patterns`) may take less: a ring passes all levels at once, an all-reduce needs no scattering
first, and a slice is there already. Times are lowered to that, so that they bound from below what
the simulation takes for the same change.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.lacking import parts_of_pairs
from costmodels.communication.layout import Layouts
from costmodels.communication.movement import MoveTimes, movement
from costmodels.communication.patterns import NOTHING, SEND_RECV, SLICE, match_all
from costmodels.communication.topology import Topology
from costmodels.distribution.rows import unique_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class LayoutChanges(MoveTimes, frozen=True, kw_only=True, eq=False):
    """Changes between layouts, beyond the reduction of partial sums.

    Parameters
    ----------
    summed
        Where partial sums are all-reduced instead of scattered; (sources, targets).
    link
        How long links of the outermost level in use are filled for each byte of the whole tensor;
        (sources, targets). [s/B]
    """

    summed: NDArray[np.bool_]
    link: Floats

    def link_time(self, source: Ints, target: Ints, num_bytes: float) -> Floats:
        """How long links of the outermost level are filled; (sources, targets). [s]

        Parameters
        ----------
        source, target
            Indices of layouts.
        num_bytes
            Size of the whole tensor. [B]
        """
        seconds: Floats = num_bytes * self.link.take(source, axis=0).take(target, axis=1)
        return seconds


# Pairs that are compared at once: what is known of each on the way is several times the result.
MOST_PAIRS = 500_000
# The layouts that were compared last on a machine, and the changes between them: a search asks for
# the same ones and some more again and again.
_KNOWN: WeakKeyDictionary[Topology, tuple[Ints, LayoutChanges]] = WeakKeyDictionary()


def layout_changes(layouts: Layouts, topology: Topology) -> LayoutChanges:
    """The changes between any two layouts.

    Parameters
    ----------
    layouts
        Layouts that a tensor is in, and that it must get.
    topology
        Links of the devices used.
    """
    codes, known = layouts.codes(), _KNOWN.get(topology)
    if known is None:
        changes = _changes(layouts, layouts, topology)
    else:
        changes = _with_more(layouts, codes, known, topology)
    _KNOWN[topology] = (codes, changes)
    return changes


def _with_more(
    layouts: Layouts, codes: Ints, known: tuple[Ints, LayoutChanges], topology: Topology
) -> LayoutChanges:
    """The changes between any two layouts, when they are known for some of them.

    Parameters
    ----------
    layouts, codes
        The layouts, and their codes.
    known
        Codes of others, and the changes between those.
    topology
        Links of the devices used.
    """
    before, changes = known
    first, number = unique_rows(np.concatenate([before, codes]))
    place = first[number[len(before) :]]
    old, new = np.flatnonzero(place < len(before)), np.flatnonzero(place >= len(before))
    if len(new) > len(old):
        return _changes(layouts, layouts, topology)
    some = layouts.take(new)
    parts = [
        (np.ix_(new, np.arange(len(layouts))), _changes(some, layouts, topology)),
        (np.ix_(old, new), _changes(layouts.take(old), some, topology)),
    ]
    found = {}
    for name in LayoutChanges.__struct_fields__:
        values = getattr(changes, name)
        table = np.empty((len(layouts), len(layouts)), dtype=values.dtype)
        table[np.ix_(old, old)] = values.take(place[old], axis=0).take(place[old], axis=1)
        for pairs, part in parts:
            table[pairs] = getattr(part, name)
        found[name] = table
    return LayoutChanges(**found)


def _changes(source: Layouts, target: Layouts, topology: Topology) -> LayoutChanges:
    """The changes between every source and every target layout.

    Parameters
    ----------
    source, target, topology
        As of `movement`.
    """
    count = (len(source), len(target))
    changes = LayoutChanges(
        seconds_per_byte=np.empty(count),
        latency=np.empty(count),
        ramp=np.empty(count),
        summed=np.empty(count, dtype=bool),
        link=np.empty(count),
    )
    for rows in parts_of_pairs(*count, most=MOST_PAIRS):
        part = _changes_from(source.take(np.arange(rows.start, rows.stop)), target, topology)
        for name in LayoutChanges.__struct_fields__:
            getattr(changes, name)[rows] = getattr(part, name)
    return changes


def _changes_from(source: Layouts, target: Layouts, topology: Topology) -> LayoutChanges:
    """The changes from some of the sources; the arguments are those of `_changes`."""
    moves, patterns = movement(source, target, topology), match_all(source, target)
    seconds, latency, ramp = moves.seconds_per_byte, moves.latency, moves.ramp
    for kind, bandwidth in (
        ("all_gather", topology.child_bandwidth),
        ("all_to_all", topology.core_bandwidth),
    ):
        some = patterns.which(kind)
        members = patterns.gathered[some]
        active = members > 1
        # members get all from each other: levels that they do not cross have no part in it, and
        # the others carry theirs at once
        paths = np.minimum(bandwidth, topology.peer_bandwidth * np.maximum(members - 1.0, 1.0))
        carried = np.where(active, moves.volume[some] / paths, 0.0).max(axis=1)
        fixed = _highest(active, topology.start_latency) + np.minimum(
            ((members - 1.0) * topology.latency).sum(axis=1), _ring_latency(members, topology)
        )
        seconds[some] = np.minimum(seconds[some], carried)
        latency[some] = np.minimum(latency[some], fixed)
        ramp[some] = np.minimum(ramp[some], _highest(active, topology.ramp))
    summed = patterns.which("all_reduce")
    nothing = summed | patterns.which(NOTHING, SLICE, "reduce_scatter")
    seconds[nothing] = latency[nothing] = 0.0
    outermost = max((n for n, size in enumerate(topology.shape) if size > 1), default=0)
    crossing = moves.volume[:, :, outermost] / topology.child_bandwidth[outermost]
    # messages between neighbours have these links for as long as their bytes flow
    link = np.where(patterns.which(SEND_RECV), seconds, np.minimum(crossing, seconds))
    return LayoutChanges(
        seconds_per_byte=seconds,
        latency=latency,
        ramp=ramp,
        summed=summed,
        link=link,
    )


def _highest(active: NDArray[np.bool_], values: Floats) -> Floats:
    """The largest value of the levels that are active; (pairs,)."""
    largest: Floats = np.where(active, values, 0.0).max(axis=1)
    return largest


def _ring_latency(members: Floats, topology: Topology) -> Floats:
    """Latency of one trip around rings, as of `algorithms.ring_pass`; (rings,). [s]"""
    size = members.prod(axis=1)
    leaving = size[:, None] * members / members.cumprod(axis=1)
    leaving = np.where(leaving > 1, leaving, 0.0)
    further = np.concatenate([leaving[:, 1:], np.zeros((len(members), 1))], axis=1)
    latency: Floats = (1.0 - 1.0 / size) * ((leaving - further) * topology.latency).sum(axis=1)
    return latency
