"""What collectives and point-to-point messages cost on a network of several levels.

Every algorithm has a latency part a and a bandwidth part b, and takes `a + b + ramp * sqrt(a * b)`;
with ramp and start latency at zero and one level, the ring forms are exactly those of Kahira et
al. 2021 (ParaDL), section IV: `T_ar = 2 (p-1) (alpha + m/p beta)`, `T_ag = (p-1) (alpha + m beta)`.

A group is given by how many members it has per level (`group[..., l]`); all devices outside it run
the same collective in groups of their own at the same time, so what a child can send is shared
by the groups below it. All levels carry their traffic at once (pipelined) except where an
algorithm is made of phases. The arithmetic of reductions is neglected: a GPU adds faster than
any link delivers.

Time per byte never grows with the size: `T(m) / m` is non-increasing, which lower bounds rely on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.communication.network import Floats, Network

# What a communication library chooses from. Recursive halving-doubling is in MPI libraries but not
# in NCCL, whose latencies the clusters carry, so it is only used where it is asked for by name.
AUTO_ALGORITHMS = ("ring", "tree", "hierarchical", "in_network")
ALL_REDUCE_ALGORITHMS = (*AUTO_ALGORITHMS, "halving_doubling")
SCATTER_ALGORITHMS = ("ring", "hierarchical")


def all_reduce_time(
    network: Network, group: ArrayLike, num_bytes: ArrayLike, algorithm: str = "auto"
) -> Floats:
    """Time until every member has the sum of the members' buffers. [s]

    Parameters
    ----------
    network
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        Buffer of each member. [B]
    algorithm
        "auto" for the cheapest of `AUTO_ALGORITHMS`, or one of `ALL_REDUCE_ALGORITHMS`.
    """
    spread = _Spread.of(network, group)
    if algorithm == "auto":
        cheapest: Floats = _all_reduce_times(spread, num_bytes).min(axis=0)
        return cheapest
    return _time(spread, *_ALL_REDUCE[algorithm](spread), num_bytes)


def all_reduce_choice(network: Network, group: ArrayLike, num_bytes: ArrayLike) -> NDArray[np.str_]:
    """Name of the algorithm that "auto" takes for an all-reduce; the first of equals."""
    times = _all_reduce_times(_Spread.of(network, group), num_bytes)
    names: NDArray[np.str_] = np.array(AUTO_ALGORITHMS)[times.argmin(axis=0)]
    return names


def reduce_scatter_time(
    network: Network, group: ArrayLike, num_bytes: ArrayLike, algorithm: str = "auto"
) -> Floats:
    """Time until every member has its part of the sum of the members' buffers. [s]

    Parameters
    ----------
    network
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        Full buffer of each member. [B]
    algorithm
        "auto" for the cheapest, or one of `SCATTER_ALGORITHMS`.
    """
    spread = _Spread.of(network, group)
    names = SCATTER_ALGORITHMS if algorithm == "auto" else (algorithm,)
    times = [_time(spread, *_ONE_PASS[name](spread), num_bytes) for name in names]
    cheapest: Floats = np.minimum.reduce(times)
    return cheapest


def all_gather_time(
    network: Network, group: ArrayLike, num_bytes: ArrayLike, algorithm: str = "auto"
) -> Floats:
    """Time until every member has what all members contribute. [s]

    It is a reduce-scatter run backwards.

    Parameters
    ----------
    network
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        What each member contributes. [B]
    algorithm
        "auto" for the cheapest, or one of `SCATTER_ALGORITHMS`.
    """
    size = np.asarray(group).prod(axis=-1)
    return reduce_scatter_time(network, group, np.asarray(num_bytes) * size, algorithm)


def all_to_all_time(network: Network, group: ArrayLike, num_bytes: ArrayLike) -> Floats:
    """Time until every member has sent an equal part of its buffer to every other. [s]

    Pairwise exchange: one message a peer (Thakur et al. 2005, section 3.3). Oversubscribed levels
    are felt in full, as most peers are far away.

    Parameters
    ----------
    network
        The used part of the cluster.
    group
        Members of the group per level, last axis over levels.
    num_bytes
        Full buffer of each member, of which it keeps one part for itself. [B]
    """
    spread = _Spread.of(network, group)
    within = spread.below * spread.members
    latency = ((within - spread.below) * network.latency).sum(axis=-1)
    # A host's own links and its network cards are different wires, while what leaves a rack has
    # left a host too: outside hosts, a level carries all that goes further out as well.
    reach = np.where(network.inside_host, within, spread.size[..., None])
    leaving = (reach - spread.below) / spread.size[..., None]
    return _time(spread, latency, _slowest(spread, leaving / spread.core_bandwidth), num_bytes)


def send_recv_time(
    network: Network,
    level: ArrayLike,
    num_bytes: ArrayLike,
    num_concurrent: ArrayLike | None = None,
) -> Floats:
    """Time of one message between devices under different children of a level. [s]

    Parameters
    ----------
    network
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
    flows = network.devices_below[index] if num_concurrent is None else np.asarray(num_concurrent)
    links = np.minimum(network.message_links[index], network.links[index] / flows)
    bandwidth = network.send_recv_bandwidth[index] * links
    latency = network.send_recv_latency[index]
    transfer = size / bandwidth
    time = latency + transfer + network.send_recv_ramp[index] * np.sqrt(latency * transfer)
    return np.where(size > 0, time, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Spread:
    """How groups lie over the levels; arrays over [..., level] unless said otherwise.

    `below` counts the members under one child, `share` the groups that share its links,
    `bandwidth` what a child can send for one of them (`core_bandwidth` when all send to all), and
    `size` [...] the members of the whole group.
    """

    network: Network
    members: NDArray[np.int64]
    below: NDArray[np.int64]
    size: NDArray[np.int64]
    bandwidth: Floats
    core_bandwidth: Floats
    share: Floats

    @classmethod
    def of(cls, network: Network, group: ArrayLike) -> _Spread:
        members = np.asarray(group, dtype=np.int64)
        assert members.shape[-1] == network.num_levels, "a group has one entry a level"
        assert ((members >= 1) & (members <= network.shape)).all(), "a group lies in its network"
        upto = members.cumprod(axis=-1)
        below = upto // members
        share = network.devices_below / below
        wired = network.peer_bandwidth * np.maximum(members - 1, 1)
        return cls(
            network=network,
            members=members,
            below=below,
            size=upto[..., -1],
            bandwidth=np.minimum(network.child_bandwidth, wired) / share,
            core_bandwidth=np.minimum(network.core_bandwidth, wired) / share,
            share=share,
        )


# Latency and seconds per byte of an algorithm, each [...].
_Parts = tuple[Floats, Floats]


def _time(spread: _Spread, latency: Floats, per_byte: Floats, num_bytes: ArrayLike) -> Floats:
    """Put the parts together; a group of one has nothing to do. [s]"""
    active = spread.members > 1
    start = np.where(active, spread.network.start_latency, 0.0).max(axis=-1)
    ramp = np.where(active, spread.network.ramp, 0.0).max(axis=-1)
    fixed = start + latency
    transfer = per_byte * np.asarray(num_bytes, dtype=float)
    # An algorithm that the network cannot run has infinite latency, also for an empty message.
    overlap = np.where(transfer > 0, fixed, 0.0) * transfer
    return np.where(spread.size > 1, fixed + transfer + ramp * np.sqrt(overlap), 0.0)


def _slowest(spread: _Spread, per_byte: Floats) -> Floats:
    """Seconds per byte where all levels carry their part at once."""
    slowest: Floats = np.where(spread.members > 1, per_byte, 0.0).max(axis=-1)
    return slowest


def _ring_pass(spread: _Spread) -> _Parts:
    """One trip around a ring that visits the members of a child before it leaves it.

    Each of the `p - 1` steps moves `1/p` of the buffer out of every child of every level. The
    ring has `p` hops, of which it takes all but one: latency is their mean.
    """
    children = spread.size[..., None] // spread.below
    leaving = np.where(children > 1, children, 0)
    further = np.concatenate([leaving[..., 1:], np.zeros_like(leaving[..., :1])], axis=-1)
    fraction = (spread.size - 1) / spread.size
    latency = fraction * ((leaving - further) * spread.network.latency).sum(axis=-1)
    return latency, fraction * _slowest(spread, 1 / spread.bandwidth)


def _hierarchical_pass(spread: _Spread) -> _Parts:
    """Rings level by level: reduce-scatter inside, then its shard across, and so on outwards.

    The shard is smaller by the members below, and all of them send at once: the product is the
    buffer again at every level. The phases follow each other.
    """
    steps = spread.members - 1
    latency = (steps * spread.network.latency).sum(axis=-1)
    return latency, (steps / spread.members / spread.bandwidth).sum(axis=-1)


def _ring(spread: _Spread) -> _Parts:
    """Reduce-scatter and all-gather around one ring (Kahira et al. 2021, section IV)."""
    latency, per_byte = _ring_pass(spread)
    return 2 * latency, 2 * per_byte


def _hierarchical(spread: _Spread) -> _Parts:
    """Reduce-scatter inwards to outwards, and all-gather back."""
    latency, per_byte = _hierarchical_pass(spread)
    return 2 * latency, 2 * per_byte


def _halving_doubling(spread: _Spread) -> _Parts:
    """Recursive halving, then doubling: Rabenseifner's algorithm (Thakur et al. 2005, section 4).

    `2 log2(p) alpha + 2 (p-1)/p m beta` for powers of two; otherwise the ranks beyond the largest
    power of two give their buffer to another one first and get the result last. Partners are far
    apart, so oversubscription is felt, and in pairs, so only the links of one pair are used.
    """
    doublings = np.floor(np.log2(spread.members))
    power = 2.0**doublings
    rest = spread.members > power
    pair = np.minimum(spread.network.core_bandwidth, spread.network.peer_bandwidth) / spread.share
    latency = 2 * ((doublings + rest) * spread.network.latency).sum(axis=-1)
    return latency, 2 * (((power - 1) / power + rest) / pair).sum(axis=-1)


def _tree(spread: _Spread) -> _Parts:
    """Reduce up and broadcast down two complementary trees, pipelined, as in NCCL.

    Sanders, Speck and Traeff 2009: each rank is an inner one in one tree and a leaf in the other,
    so it sends the buffer twice, or once where there are only two. Inside a host the members form
    a chain (Jeaugey 2019, "Massively scale your deep learning training with NCCL 2.4"); a group
    inside one host has no tree.
    """
    depth, per_byte = _tree_levels(spread)
    latency = 2 * (depth * spread.network.latency).sum(axis=-1)
    across = ((spread.members > 1) & ~spread.network.inside_host).any(axis=-1)
    return np.where(across, latency, np.inf), _slowest(spread, per_byte)


def _tree_levels(spread: _Spread) -> _Parts:
    """Depth of the tree and seconds per byte, [..., level]."""
    inside = spread.network.inside_host
    depth = np.where(inside, spread.members - 1, np.ceil(np.log2(spread.members)))
    sent = np.where(
        inside, 2 * (spread.members - 1) / spread.members, np.minimum(spread.members - 1, 2)
    )
    return depth, sent / spread.bandwidth


def _in_network(spread: _Spread) -> _Parts:
    """Reduce and multicast in the switches that can, and in a tree beyond them (NVLink SHARP).

    A member sends its buffer once and multicasts its part of the sum: `(p+1)/p` of the buffer,
    against `2 (p-1)/p` of a ring.
    """
    network = spread.network
    can = np.isfinite(network.in_network_latency)
    depth, tree_per_byte = _tree_levels(spread)
    switch_per_byte = (
        (spread.members + 1) / spread.members * spread.share / network.in_network_bandwidth
    )
    step = np.where(can, np.where(can, network.in_network_latency, 0.0), depth * network.latency)
    latency = 2 * np.where(spread.members > 1, step, 0.0).sum(axis=-1)
    usable = (can & (spread.members > 1)).any(axis=-1)
    return (
        np.where(usable, latency, np.inf),
        _slowest(spread, np.where(can, switch_per_byte, tree_per_byte)),
    )


_ONE_PASS: dict[str, Callable[[_Spread], _Parts]] = {
    "ring": _ring_pass,
    "hierarchical": _hierarchical_pass,
}
_ALL_REDUCE: dict[str, Callable[[_Spread], _Parts]] = {
    "ring": _ring,
    "tree": _tree,
    "hierarchical": _hierarchical,
    "in_network": _in_network,
    "halving_doubling": _halving_doubling,
}


def _all_reduce_times(spread: _Spread, num_bytes: ArrayLike) -> Floats:
    """Time of every algorithm of AUTO_ALGORITHMS, stacked. [s]"""
    parts = (_ALL_REDUCE[name](spread) for name in AUTO_ALGORITHMS)
    return np.stack([_time(spread, *part, num_bytes) for part in parts])
