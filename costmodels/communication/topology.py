"""The part of a cluster that a job uses, as arrays over levels that collectives compute with.

Assumes that all groups of one kind communicate at the same time: a layer that is split over the
GPUs of a host runs its collective in every host, and one that is replicated over hosts runs it for
every GPU of a host at once. What a child can send is then shared fairly by the groups that have
members below it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.curve import CollectiveCurve
from costmodels.cluster.level import Level

Floats = NDArray[np.float64]
# Topologies that are remembered: those of the stages and replicas of a few questions. [items]
MOST_REMEMBERED = 128


class Topology(Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """Links of the used part of a cluster, one entry a level, inside-out.

    Attributes
    ----------
    shape
        Children used per level.
    latency
        Time that one step of a collective adds. [s]
    start_latency
        Paid once by a collective that uses the level. [s]
    ring_pace
        Least time between two steps of a ring that crosses the level, 0 where hops decide. [s]
    ramp
        How slowly the bandwidth is reached, see `costmodels.cluster.cluster`.
    link_bandwidth
        Achievable bandwidth of one link. [B/s]
    child_bandwidth
        What one child can send to its neighbours over all its links. [B/s]
    peer_bandwidth
        What one child can send to *one* other child; infinite behind a switch. [B/s]
    group_bandwidth
        What one child can send for one group of a collective; infinite where it can use all links.
        [B/s]
    core_bandwidth
        What one child can send when all send to all: child_bandwidth over oversubscription. [B/s]
    devices_below
        Devices under one child.
    in_network_latency, in_network_bandwidth
        Latency of a step into a switch that reduces, infinite where there is none, and what a
        child sends into it. [s], [B/s]
    send_recv_latency, send_recv_bandwidth, send_recv_ramp
        The same of point-to-point messages, bandwidth of one link. [s], [B/s]
    links
        Links of one child.
    message_links
        Links that one message can use.
    inside_host
        Whether the level lies inside a host.
    curves
        Measured times of collectives, which come before what the levels say.
    """

    shape: tuple[int, ...]
    latency: Floats
    start_latency: Floats
    ring_pace: Floats
    ramp: Floats
    link_bandwidth: Floats
    child_bandwidth: Floats
    peer_bandwidth: Floats
    group_bandwidth: Floats
    core_bandwidth: Floats
    devices_below: NDArray[np.int64]
    in_network_latency: Floats
    in_network_bandwidth: Floats
    send_recv_latency: Floats
    send_recv_bandwidth: Floats
    send_recv_ramp: Floats
    links: Floats
    message_links: Floats
    inside_host: NDArray[np.bool_]
    curves: tuple[CollectiveCurve, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster, shape: tuple[int, ...]) -> Topology:
        """The topology of a job that uses `shape` children per level of the cluster.

        The same object as long as it is remembered, so that what is known of it is found again.
        """
        return _made(cluster.levels, cluster.host_index, cluster.curves, tuple(map(int, shape)))

    @property
    def num_levels(self) -> int:
        """Levels of the cluster, used or not."""
        return len(self.shape)

    @property
    def num_devices(self) -> int:
        """Devices that the job uses."""
        return math.prod(self.shape)

    def above(self, level: int) -> Topology:
        """The levels from one on, the same object each time: what lies below is one device then."""
        known = _ABOVE.setdefault(self, {})
        if level not in known:
            rows = [name for name in self.__struct_fields__ if name != "curves"]
            known[level] = replace(self, **{name: getattr(self, name)[level:] for name in rows})
        return known[level]


# What `Topology.above` made of each, so that what is known of the result is found again.
_ABOVE: WeakKeyDictionary[Topology, dict[int, Topology]] = WeakKeyDictionary()


@lru_cache(maxsize=MOST_REMEMBERED)
def _made(
    levels: tuple[Level, ...],
    host_index: int,
    curves: tuple[CollectiveCurve, ...],
    shape: tuple[int, ...],
) -> Topology:
    """As of `Topology.of`, by all of a cluster that matters for it."""
    assert len(shape) == len(levels), "a shape has one entry a level"
    links = np.array([level.links for level in levels], dtype=float)
    link_bandwidth = np.array([level.bandwidth for level in levels], dtype=float)
    peer_links = np.array([_or_default(level.peer_links, math.inf) for level in levels])
    wired = np.where([x.send_recv_bandwidth is None for x in levels], peer_links, math.inf)
    below = np.cumprod([1, *shape[:-1]]).astype(np.int64)
    return Topology(
        shape=shape,
        latency=np.array([level.latency for level in levels], dtype=float),
        start_latency=np.array([level.start_latency for level in levels], dtype=float),
        ring_pace=np.array([level.ring_pace or 0.0 for level in levels], dtype=float),
        ramp=np.array([level.ramp for level in levels], dtype=float),
        link_bandwidth=link_bandwidth,
        child_bandwidth=link_bandwidth * links,
        peer_bandwidth=link_bandwidth * peer_links,
        group_bandwidth=link_bandwidth * [_or_default(x.group_links, math.inf) for x in levels],
        core_bandwidth=link_bandwidth * links / [level.oversubscription for level in levels],
        devices_below=below,
        in_network_latency=np.array([_or_default(x.in_network_latency, math.inf) for x in levels]),
        in_network_bandwidth=links
        * np.array([_or_default(x.in_network_bandwidth, 1.0) for x in levels]),
        send_recv_latency=np.array(
            [_or_default(x.send_recv_latency, x.start_latency + x.latency) for x in levels]
        ),
        # Another path belongs to the child as a whole: each of its links stands for a part.
        send_recv_bandwidth=np.array(
            [
                x.bandwidth if x.send_recv_bandwidth is None else x.send_recv_bandwidth / x.links
                for x in levels
            ]
        ),
        send_recv_ramp=np.array([x.ramp if x.send_recv_latency is None else 0.0 for x in levels]),
        links=links,
        # One message uses the links of one device: all of them between devices, its share of
        # them (but at least one) where several devices share the links of a child.
        message_links=np.minimum(np.maximum(1.0, links / below), np.maximum(1.0, wired)),
        inside_host=np.arange(len(levels)) <= host_index,
        curves=curves,
    )


def _or_default(override: float | None, default: float) -> float:
    """The override where there is one, else the default."""
    return default if override is None else override
