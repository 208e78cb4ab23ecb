"""Algorithms of collectives: the latency part and the seconds per byte of each.

A part is computed for every group at once, `group[..., level]`. All levels carry their traffic at
once (pipelined: the slowest one counts) except where an algorithm is made of phases.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from costmodels.communication.topology import Floats, Topology


class Spread(Struct, frozen=True, kw_only=True, eq=False):
    """How groups lie over the levels; arrays over [..., level] unless said otherwise.

    `below` counts the members under one child, `share` the groups that share its links,
    `bandwidth` what a child can send for one of them (`core_bandwidth` when all send to all), and
    `size` [...] the members of the whole group.
    """

    topology: Topology
    members: NDArray[np.int64]
    below: NDArray[np.int64]
    size: NDArray[np.int64]
    bandwidth: Floats
    core_bandwidth: Floats
    share: Floats

    @classmethod
    def of(cls, topology: Topology, group: ArrayLike) -> Spread:
        """How groups of these members at each level lie over a topology; (..., levels). [items]"""
        members = np.asarray(group, dtype=np.int64)
        assert members.shape[-1] == topology.num_levels, "a group has one entry a level"
        assert ((members >= 1) & (members <= topology.shape)).all(), "a group lies in its topology"
        upto = members.cumprod(axis=-1)
        below = upto // members
        share = topology.devices_below / below
        wired = topology.peer_bandwidth * np.maximum(members - 1, 1)
        return cls(
            topology=topology,
            members=members,
            below=below,
            size=upto[..., -1],
            bandwidth=np.minimum(
                np.minimum(topology.child_bandwidth, wired) / share, topology.group_bandwidth
            ),
            core_bandwidth=np.minimum(
                np.minimum(topology.core_bandwidth, wired) / share, topology.group_bandwidth
            ),
            share=share,
        )


# Latency and seconds per byte of an algorithm, each [...].
Parts = tuple[Floats, Floats]


class SizedParts(NamedTuple):
    """What the time of an algorithm takes besides the size of the buffer, for every group.

    Parameters
    ----------
    fixed
        Latency, the start included. [s]
    per_byte
        Its bandwidth part. [s/B]
    ramp
        How slowly the bandwidth is reached.
    runs, alone
        Whether the topology can run the algorithm at all, and whether there is nothing to do.
    """

    fixed: Floats
    per_byte: Floats
    ramp: Floats
    runs: NDArray[np.bool_]
    alone: NDArray[np.bool_]

    def take(self, places: NDArray[np.int64]) -> SizedParts:
        """The parts of some of the groups."""
        fixed, per_byte, ramp, runs, alone = self
        return SizedParts(
            fixed[places], per_byte[places], ramp[places], runs[places], alone[places]
        )

    def time(self, num_bytes: ArrayLike) -> Floats:
        """Time of the algorithm with a buffer of that size at each member. [s]"""
        transfer = self.per_byte * np.asarray(num_bytes, dtype=float)
        whole = self.fixed + transfer + self.ramp * np.sqrt(self.fixed * transfer)
        return np.where(self.alone, 0.0, np.where(self.runs, whole, np.inf))


def sized_parts(spread: Spread, latency: Floats, per_byte: Floats) -> SizedParts:
    """What an algorithm takes besides the size of the buffer; a group of one has nothing to do.

    Parameters
    ----------
    spread
        How the groups lie over the levels.
    latency
        Latency part of the algorithm; infinite where it cannot run. [s]
    per_byte
        Its bandwidth part. [s/B]
    """
    active = spread.members > 1
    start = _largest(np.where(active, spread.topology.start_latency, 0.0))
    ramp = _largest(np.where(active, spread.topology.ramp, 0.0))
    # Infinite latency marks an algorithm that the topology cannot run, whatever the size.
    runs = np.isfinite(latency)
    fixed = start + np.where(runs, latency, 0.0)
    return SizedParts(fixed, per_byte, ramp, runs, spread.size <= 1)


def collective_time(
    spread: Spread, latency: Floats, per_byte: Floats, num_bytes: ArrayLike
) -> Floats:
    """Time of an algorithm from its two parts; a group of one has nothing to do. [s]

    Parameters
    ----------
    spread, latency, per_byte
        As of `sized_parts`.
    num_bytes
        Buffer of each member. [B]
    """
    return sized_parts(spread, latency, per_byte).time(num_bytes)


def slowest(spread: Spread, per_byte: Floats) -> Floats:
    """Seconds per byte where all levels carry their part at once."""
    return _largest(np.where(spread.members > 1, per_byte, 0.0))


def _largest(by_level: Floats) -> Floats:
    """The largest over the levels, level by level: the axis is too short for numpy to be fast."""
    largest: Floats = reduce(np.maximum, np.moveaxis(by_level, -1, 0))
    return largest


def ring_pass(spread: Spread) -> Parts:
    """One trip around a ring that visits the members of a child before it leaves it.

    Each of the `p - 1` steps moves `1/p` of the buffer out of every child of every level. The
    ring has `p` hops, of which it takes all but one: latency is their mean.
    """
    children = spread.size[..., None] // spread.below
    leaving = np.where(children > 1, children, 0)
    further = np.concatenate([leaving[..., 1:], np.zeros_like(leaving[..., :1])], axis=-1)
    fraction = (spread.size - 1) / spread.size
    latency = fraction * ((leaving - further) * spread.topology.latency).sum(axis=-1)
    return latency, fraction * slowest(spread, 1 / spread.bandwidth)


def ring_pace(spread: Spread) -> Floats:
    """Least time between two steps of a ring, that of the slowest level that groups cross. [s]"""
    return _largest(np.where(spread.members > 1, spread.topology.ring_pace, 0.0))


def hierarchical_pass(spread: Spread) -> Parts:
    """Rings level by level: reduce-scatter inside, then its shard across, and so on outwards.

    The shard is smaller by the members below, and all of them send at once: the product is the
    buffer again at every level. The phases follow each other.
    """
    steps = spread.members - 1
    latency = (steps * spread.topology.latency).sum(axis=-1)
    return latency, (steps / spread.members / spread.bandwidth).sum(axis=-1)


def ring_all_reduce(spread: Spread) -> Parts:
    """Reduce-scatter and all-gather around one ring (Kahira et al. 2021, section IV)."""
    latency, per_byte = ring_pass(spread)
    return 2 * latency, 2 * per_byte


def hierarchical_all_reduce(spread: Spread) -> Parts:
    """Reduce-scatter inwards to outwards, and all-gather back."""
    latency, per_byte = hierarchical_pass(spread)
    return 2 * latency, 2 * per_byte


def halving_doubling_all_reduce(spread: Spread) -> Parts:
    """Recursive halving, then doubling: Rabenseifner's algorithm (Thakur et al. 2005, section 4).

    `2 log2(p) alpha + 2 (p-1)/p m beta` for powers of two; otherwise the ranks beyond the largest
    power of two give their buffer to another one first and get the result last. Partners are far
    apart, so oversubscription is felt, and in pairs, so only the links of one pair are used.
    """
    doublings = np.floor(np.log2(spread.members))
    power = 2.0**doublings
    rest = spread.members > power
    pair = np.minimum(spread.topology.core_bandwidth, spread.topology.peer_bandwidth) / spread.share
    latency = 2 * ((doublings + rest) * spread.topology.latency).sum(axis=-1)
    return latency, 2 * (((power - 1) / power + rest) / pair).sum(axis=-1)


def tree_all_reduce(spread: Spread) -> Parts:
    """Reduce up and broadcast down two complementary trees, pipelined, as in NCCL.

    Sanders, Speck and Traeff 2009: each rank is an inner one in one tree and a leaf in the other,
    so it sends the buffer twice, or once where there are only two. Inside a host the members form
    a chain (Jeaugey 2019, "Massively scale your deep learning training with NCCL 2.4"); a group
    inside one host has no tree.
    """
    depth, per_byte = _tree_levels(spread)
    latency = 2 * (depth * spread.topology.latency).sum(axis=-1)
    across = ((spread.members > 1) & ~spread.topology.inside_host).any(axis=-1)
    return np.where(across, latency, np.inf), slowest(spread, per_byte)


def _tree_levels(spread: Spread) -> Parts:
    """Depth of the tree and seconds per byte, [..., level]."""
    inside = spread.topology.inside_host
    depth = np.where(inside, spread.members - 1, np.ceil(np.log2(spread.members)))
    sent = np.where(
        inside, 2 * (spread.members - 1) / spread.members, np.minimum(spread.members - 1, 2)
    )
    return depth, sent / spread.bandwidth


def in_network_all_reduce(spread: Spread) -> Parts:
    """Reduce and multicast in the switches that can, and in a tree beyond them (NVLink SHARP).

    A member sends its buffer once and multicasts its part of the sum: `(p+1)/p` of the buffer,
    against `2 (p-1)/p` of a ring.
    """
    topology = spread.topology
    can = np.isfinite(topology.in_network_latency)
    depth, tree_per_byte = _tree_levels(spread)
    switch_per_byte = (
        (spread.members + 1) / spread.members * spread.share / topology.in_network_bandwidth
    )
    step = np.where(can, np.where(can, topology.in_network_latency, 0.0), depth * topology.latency)
    latency = 2 * np.where(spread.members > 1, step, 0.0).sum(axis=-1)
    usable = (can & (spread.members > 1)).any(axis=-1)
    return (
        np.where(usable, latency, np.inf),
        slowest(spread, np.where(can, switch_per_byte, tree_per_byte)),
    )
