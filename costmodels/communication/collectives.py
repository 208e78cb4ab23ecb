"""What collectives and point-to-point messages cost on a topology of several levels.

Every algorithm has a latency part a and a bandwidth part b, and takes `a + b + ramp * sqrt(a * b)`;
with ramp and start latency at zero and one level, the ring forms are exactly those of Kahira et
al. 2021 (ParaDL), section IV: `T_ar = 2 (p-1) (alpha + m/p beta)`, `T_ag = (p-1) (alpha + m beta)`.

A group is given by how many members it has per level (`group[..., l]`); all devices outside it run
the same collective in groups of their own at the same time, so what a child can send is shared
by the groups below it. The arithmetic of reductions is neglected: a GPU adds faster than any link
delivers.

Time per byte never grows with the size: `T(m) / m` is non-increasing, which lower bounds rely on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from costmodels.communication.algorithms import (
    Parts,
    SizedParts,
    Spread,
    collective_time,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    hierarchical_pass,
    in_network_all_reduce,
    ring_all_reduce,
    ring_pace,
    ring_pass,
    sized_parts,
    slowest,
    tree_all_reduce,
)
from costmodels.communication.curves import curve_times, measured_or
from costmodels.communication.topology import Floats, Topology

# What a communication library chooses from. Recursive halving-doubling is in MPI libraries but not
# in NCCL, whose latencies the clusters carry, so it is only used where it is asked for by name.
AUTO_ALGORITHMS = ("ring", "tree", "hierarchical", "in_network")
ALL_REDUCE_ALGORITHMS = (*AUTO_ALGORITHMS, "halving_doubling")
SCATTER_ALGORITHMS = ("ring", "hierarchical")

# The parts of all groups of a topology are kept where there are no more than these. [items]
MOST_TABULATED = 4096
_TABULATED: MutableMapping[Topology, list[SizedParts]] = WeakKeyDictionary()

_ONE_PASS: dict[str, Callable[[Spread], Parts]] = {
    "ring": ring_pass,
    "hierarchical": hierarchical_pass,
}
_ALL_REDUCE: dict[str, Callable[[Spread], Parts]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "hierarchical": hierarchical_all_reduce,
    "in_network": in_network_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
}


def all_reduce_time(
    topology: Topology, group: ArrayLike, num_bytes: ArrayLike, algorithm: str = "auto"
) -> Floats:
    """Time until every member has the sum of the members' buffers. [s]

    Parameters
    ----------
    topology
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        Buffer of each member. [B]
    algorithm
        "auto" for the cheapest of `AUTO_ALGORITHMS`, or one of `ALL_REDUCE_ALGORITHMS`.
    """
    if algorithm == "auto":
        cheapest: Floats = _all_reduce_times(topology, group, num_bytes).min(axis=0)
        return measured_or(topology, "all_reduce", group, num_bytes, cheapest)
    spread = Spread.of(topology, group)
    return collective_time(spread, *_ALL_REDUCE[algorithm](spread), num_bytes)


def reduce_scatter_time(
    topology: Topology, group: ArrayLike, num_bytes: ArrayLike, algorithm: str = "auto"
) -> Floats:
    """Time until every member has its part of the sum of the members' buffers. [s]

    Where levels have a pace of rings, it goes around a ring at that pace.

    Parameters
    ----------
    topology
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        Full buffer of each member. [B]
    algorithm
        "auto" for the cheapest, or one of `SCATTER_ALGORITHMS`.
    """
    times = _scattered_times(topology, group, num_bytes, algorithm)
    if algorithm != "auto":
        return times
    return measured_or(topology, "reduce_scatter", group, num_bytes, times)


def _scattered_times(
    topology: Topology, group: ArrayLike, num_bytes: ArrayLike, algorithm: str
) -> Floats:
    """The modelled time of `reduce_scatter_time`. [s]"""
    spread = Spread.of(topology, group)
    names = SCATTER_ALGORITHMS if algorithm == "auto" else (algorithm,)
    times = [collective_time(spread, *_ONE_PASS[name](spread), num_bytes) for name in names]
    cheapest: Floats = np.minimum.reduce(times)
    if not topology.ring_pace.any() or algorithm == "hierarchical":
        return cheapest
    around = times[0]
    steps = (spread.size - 1) * ring_pace(spread)
    paced = np.maximum(around, steps + ring_pass(spread)[1] * np.asarray(num_bytes, dtype=float))
    return np.where(steps > 0.0, paced, cheapest)


def all_gather_time(
    topology: Topology, group: ArrayLike, num_bytes: ArrayLike, algorithm: str = "auto"
) -> Floats:
    """Time until every member has what all members contribute. [s]

    It is a reduce-scatter run backwards.

    Parameters
    ----------
    topology
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        What each member contributes. [B]
    algorithm
        "auto" for the cheapest, or one of `SCATTER_ALGORITHMS`.
    """
    whole = np.asarray(num_bytes) * np.asarray(group).prod(axis=-1)
    times = _scattered_times(topology, group, whole, algorithm)
    if algorithm != "auto":
        return times
    return measured_or(topology, "all_gather", group, whole, times)


def all_to_all_time(topology: Topology, group: ArrayLike, num_bytes: ArrayLike) -> Floats:
    """Time until every member has sent an equal part of its buffer to every other. [s]

    Pairwise exchange: one message a peer (Thakur et al. 2005, section 3.3). Oversubscribed levels
    are felt in full, as most peers are far away.

    Parameters
    ----------
    topology
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        Full buffer of each member, of which it keeps one part for itself. [B]
    """
    spread = Spread.of(topology, group)
    within = spread.below * spread.members
    latency = ((within - spread.below) * topology.latency).sum(axis=-1)
    # A host's own links and its network cards are different wires, while what leaves a rack has
    # left a host too: outside hosts, a level carries all that goes further out as well.
    reach = np.where(topology.inside_host, within, spread.size[..., None])
    leaving = spread.below * (reach - spread.below) / spread.size[..., None]
    per_byte = slowest(spread, leaving / spread.core_bandwidth)
    times = collective_time(spread, latency, per_byte, num_bytes)
    return measured_or(topology, "all_to_all", group, num_bytes, times)


def send_recv_time(
    topology: Topology,
    level: ArrayLike,
    num_bytes: ArrayLike,
    num_concurrent: ArrayLike | None = None,
) -> Floats:
    """Time of one message between devices under different children of a level. [s]

    Parameters
    ----------
    topology
        The used part of the cluster.
    level
        Index of the outermost level that the message crosses.
    num_bytes
        Message size; nothing is sent, in no time, where it is zero. [B]
    num_concurrent
        Messages that leave one child of this level at the same time. All devices below it send by
        default.
    """
    index = np.asarray(level)
    size = np.asarray(num_bytes, dtype=float)
    flows = topology.devices_below[index] if num_concurrent is None else np.asarray(num_concurrent)
    links = np.minimum(topology.message_links[index], topology.links[index] / flows)
    bandwidth = topology.send_recv_bandwidth[index] * links
    latency = topology.send_recv_latency[index]
    transfer = size / bandwidth
    time = latency + transfer + topology.send_recv_ramp[index] * np.sqrt(latency * transfer)
    # two devices were measured: what they share with further messages takes longer by as much
    shared = np.maximum(flows / np.maximum(topology.links[index], 1.0), 1.0)
    for curve in topology.curves:
        if curve.collective == "send_recv" and curve.gpus == 2:
            there = topology.inside_host[index] == (curve.hosts == 1)
            time = np.where(there, curve_times(curve, size * shared), time)
    return np.where(size > 0, time, 0.0)


def _all_reduce_times(topology: Topology, group: ArrayLike, num_bytes: ArrayLike) -> Floats:
    """Time of every algorithm of AUTO_ALGORITHMS, stacked. [s]"""
    count = math.prod(topology.shape)
    if count > MOST_TABULATED:
        spread = Spread.of(topology, group)
        each = [_ALL_REDUCE[name](spread) for name in AUTO_ALGORITHMS]
        return np.stack([collective_time(spread, *part, num_bytes) for part in each])
    members = np.asarray(group, dtype=np.int64)
    assert ((members >= 1) & (members <= topology.shape)).all(), "a group lies in its topology"
    if topology not in _TABULATED:
        every = np.indices(topology.shape).reshape(topology.num_levels, count).T + 1
        spread = Spread.of(topology, every)
        each = [_ALL_REDUCE[name](spread) for name in AUTO_ALGORITHMS]
        _TABULATED[topology] = [sized_parts(spread, *part) for part in each]
    place = np.ravel_multi_index(tuple(np.moveaxis(members - 1, -1, 0)), topology.shape)
    sizes = np.asarray(num_bytes, dtype=float)
    return np.stack([part.take(place).time(sizes) for part in _TABULATED[topology]])
