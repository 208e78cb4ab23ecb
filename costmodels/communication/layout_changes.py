"""What a change of layout takes at least, whichever communication does it.

Counting what moves (`movement`) is exact where messages are sent one by one. What one collective
does (`patterns`) may take less: a ring passes all levels at once, an all-reduce needs no scattering
first, and a slice is there already. Times are lowered to that, so that they bound from below what
the simulation takes for the same change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.layout import Layouts
from costmodels.communication.movement import Movement, movement
from costmodels.communication.patterns import NOTHING, SEND_RECV, SLICE, match_all
from costmodels.communication.topology import Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutChanges:
    """Changes between layouts, beyond the reduction of partial sums.

    Parameters
    ----------
    moves
        What moves, where no collective is cheaper.
    summed
        Where partial sums are all-reduced instead of scattered; (sources, targets).
    link
        How long links of the outermost level in use are filled for each byte of the whole tensor;
        (sources, targets). [s/B]
    """

    moves: Movement
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
        seconds: Floats = num_bytes * self.link[np.ix_(source, target)]
        return seconds


def layout_changes(source: Layouts, target: Layouts, topology: Topology) -> LayoutChanges:
    """The changes between every source and every target layout.

    Parameters
    ----------
    source, target, topology
        As of `movement`.
    """
    moves, patterns = movement(source, target, topology), match_all(source, target)
    seconds, latency = moves.seconds_per_byte.copy(), moves.latency.copy()
    ramp = moves.ramp.copy()
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
        moves=replace(moves, seconds_per_byte=seconds, latency=latency, ramp=ramp),
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
