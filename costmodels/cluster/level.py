"""One level of links, which joins devices, hosts or groups of them.

Bandwidths are *achievable* ones, in one direction. A collective takes `a + b + ramp * sqrt(a * b)`
where a is its latency part and b its bandwidth part: ramp 0 is the plain alpha-beta model, ramp 2
is what remains when a message is cut into the best number of segments; libraries that switch
between a quick and a wide protocol lie in between, and are fitted.
"""

from __future__ import annotations

import math

from msgspec import Struct, structs

from costmodels.cluster.ranges import PLAUSIBLE, require_plausible
from costmodels.errors import (
    InputError,
    printable,
    require_name,
    require_not_negative,
    require_positive,
)


class Level(Struct, frozen=True, kw_only=True):
    """One level of links: `size` children joined by the same kind of link.

    Attributes
    ----------
    name
        Name of the level ("host", "network").
    size
        Children that one parent has at this level.
    latency
        Time that one step of a collective, an empty message between two children, adds. [s]
    bandwidth
        Achievable bandwidth of one link in one direction. [B/s]
    links
        Links that one child has into this level, shared by all devices below that child.
    peer_links
        Links that lead directly to one other child, where children are wired to each other
        without a switch: a group of g children then uses at most `peer_links * (g - 1)` links.
        May be a fraction where some pairs have more links than others. None behind a switch.
    group_links
        Links of a child that one group of a collective can use, where a ring passes from child to
        child in one place while several groups side by side use more of them. None for all.
    start_latency
        Paid once by a collective that uses this level, however many take part. [s]
    ring_pace
        Least time between two steps of a reduce-scatter or an all-gather whose ring crosses this
        level, hops inside of a child too, where messages of steps do not overlap; None where
        latencies of the hops add up. [s]
    ramp
        How slowly the bandwidth is reached as messages grow, see above.
    in_network_latency, in_network_bandwidth
        Latency of a step into a switch that adds up and multicasts by itself (NVLink SHARP), and
        bandwidth of one link then; None where switches only forward. [s], [B/s]
    oversubscription
        How many times less than all children's links the core of this level can carry, at least
        one. Traffic between neighbours (rings, trees) does not feel it, traffic from all to all
        does.
    send_recv_latency, send_recv_bandwidth
        Latency of a point-to-point message and bandwidth that those out of one child share, where
        they take another path than collectives. [s], [B/s]
    one_way_bandwidth
        Bandwidth of a collective whose bytes flow one way from child to child, such as a broadcast,
        where sending and receiving at once is slower than either; None where it is not. [B/s]
    source
        Where the figures are from.
    """

    name: str
    size: int
    latency: float
    bandwidth: float
    links: int = 1
    peer_links: float | None = None
    group_links: float | None = None
    start_latency: float = 0.0
    ring_pace: float | None = None
    ramp: float = 0.0
    in_network_latency: float | None = None
    in_network_bandwidth: float | None = None
    oversubscription: float = 1.0
    send_recv_latency: float | None = None
    send_recv_bandwidth: float | None = None
    one_way_bandwidth: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        require_name("the name of a level", self.name)
        label = f"level {self.name}"
        require_positive(f"{label}: size", self.size)
        require_positive(f"{label}: links", self.links)
        require_positive(f"{label}: bandwidth", self.bandwidth, "B/s")
        seconds = ("latency", "start_latency", "ring_pace")
        for field in (*seconds, "in_network_latency", "send_recv_latency"):
            if getattr(self, field) is not None:
                require_not_negative(f"{label}: {field}", getattr(self, field), "s")
        for field in ("in_network_bandwidth", "send_recv_bandwidth", "one_way_bandwidth"):
            if getattr(self, field) is not None:
                require_positive(f"{label}: {field}", getattr(self, field), "B/s")
        require_not_negative(f"{label}: ramp", self.ramp)
        for field in ("peer_links", "group_links"):
            if getattr(self, field) is not None:
                require_positive(f"{label}: {field}", getattr(self, field))
        if (self.in_network_latency is None) != (self.in_network_bandwidth is None):
            raise InputError(
                f"{label}: in_network_latency and in_network_bandwidth must be given together but "
                "only one of them is; add the other one"
            )
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise InputError.rule(
                f"{label}: oversubscription",
                "be at least 1",
                f"{self.oversubscription:g}",
                "write 3 for a network whose core carries a third of what its leaves can send",
            )
        structs.force_setattr(self, "source", printable(self.source))
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in PLAUSIBLE and value is not None:
                require_plausible(label, name, value)
