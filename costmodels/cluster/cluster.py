"""What a machine is: devices, and the levels of links that join them from the inside out.

A cluster is a tree whose leaves are devices. One level joins `size` children: the innermost level
joins devices, the next one joins groups of devices, and so on. All children of a level are alike,
and so are their links; a job that uses a part of the machine uses the same number of children
everywhere, because collectives run at the pace of the slowest member.

Bandwidths are *achievable* ones, in one direction. A collective takes `a + b + ramp * sqrt(a * b)`
where a is its latency part and b its bandwidth part: ramp 0 is the plain alpha-beta model, ramp 2
is what remains when a message is cut into the best number of segments; libraries that switch
between a quick and a wide protocol lie in between, and are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from costmodels.errors import InputError
from costmodels.units import format_bytes

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU.

    Attributes
    ----------
    name
        Name of the device.
    memory
        Memory that a process can see. [B]
    reserved_memory
        Part of it that is gone before the first tensor: CUDA context, framework, buffers of the
        communication library. [B]
    peak_flops
        Peak rate of every precision that the device has. [FLOP/s]
    memory_bandwidth
        Nominal bandwidth of the device memory. [B/s]
    num_sms
        Streaming multiprocessors.
    kernel_latency
        Fixed cost of one kernel, however small its work. [s]
    source
        Where the figures are from.
    """

    name: str
    memory: float
    reserved_memory: float
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    num_sms: int
    kernel_latency: float
    source: str = ""

    def __post_init__(self) -> None:
        label = f"device {self.name}"
        _require_positive(label, "memory", self.memory, "B")
        _require_positive(label, "memory_bandwidth", self.memory_bandwidth, "B/s")
        _require_positive(label, "num_sms", self.num_sms, "")
        _require_not_negative(label, "kernel_latency", self.kernel_latency, "s")
        _require_not_negative(label, "reserved_memory", self.reserved_memory, "B")
        if self.reserved_memory >= self.memory:
            raise InputError(
                f"{label}: reserved_memory must be less than memory "
                f"({format_bytes(self.memory)}), got {format_bytes(self.reserved_memory)}: "
                "lower it."
            )
        if not self.peak_flops:
            raise InputError(
                f"{label}: peak_flops must name a precision, got none: give at least one of "
                f"{', '.join(PRECISIONS)}."
            )
        for precision, rate in self.peak_flops.items():
            if precision not in PRECISIONS:
                raise InputError(
                    f'{label}: peak_flops must name known precisions, got "{precision}": '
                    f"use {', '.join(PRECISIONS)}."
                )
            _require_positive(label, f"peak_flops.{precision}", rate, "FLOP/s")
        # A mapping that the caller keeps could otherwise change under a frozen object.
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))

    @property
    def usable_memory(self) -> float:
        """Memory left for tensors. [B]"""
        return self.memory - self.reserved_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
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
    ramp: float = 0.0
    in_network_latency: float | None = None
    in_network_bandwidth: float | None = None
    oversubscription: float = 1.0
    send_recv_latency: float | None = None
    send_recv_bandwidth: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        label = f"level {self.name}"
        _require_positive(label, "size", self.size, "")
        _require_positive(label, "links", self.links, "")
        _require_positive(label, "bandwidth", self.bandwidth, "B/s")
        for field in ("latency", "start_latency", "in_network_latency", "send_recv_latency"):
            if getattr(self, field) is not None:
                _require_not_negative(label, field, getattr(self, field), "s")
        for field in ("in_network_bandwidth", "send_recv_bandwidth"):
            if getattr(self, field) is not None:
                _require_positive(label, field, getattr(self, field), "B/s")
        _require_not_negative(label, "ramp", self.ramp, "")
        for field in ("peer_links", "group_links"):
            if getattr(self, field) is not None:
                _require_positive(label, field, getattr(self, field), "")
        if (self.in_network_latency is None) != (self.in_network_bandwidth is None):
            raise InputError(
                f"{label}: in_network_latency and in_network_bandwidth must be given together, "
                "got one of them: add the other one."
            )
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise InputError(
                f"{label}: oversubscription must be at least 1, got {self.oversubscription:g}: "
                "write 3 for a network whose core carries a third of what its leaves can send."
            )
        if self.send_recv_latency is not None:
            _require_not_negative(label, "send_recv_latency", self.send_recv_latency, "s")
        if self.send_recv_bandwidth is not None:
            _require_positive(label, "send_recv_bandwidth", self.send_recv_bandwidth, "B/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A machine: one kind of device, joined by levels of links from the inside out.

    Attributes
    ----------
    name
        Name of the cluster.
    device
        What every leaf of the tree is.
    levels
        Levels from the inside out.
    host_level
        Name of the level whose parent is a host: what lies inside it is one machine.
    default_precision
        Precision that a network trains in unless told otherwise.
    description
        One line that tells machines apart.
    source
        Where the figures are from.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    host_level: str
    default_precision: str
    description: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        label = f"cluster {self.name}"
        names = [level.name for level in self.levels]
        if not names:
            raise InputError(f"{label}: levels must not be empty, got none: add at least one.")
        if len(set(names)) != len(names):
            raise InputError(
                f"{label}: levels must have different names, got {', '.join(names)}: rename one."
            )
        if self.host_level not in names:
            raise InputError(
                f'{label}: host_level must be one of its levels, got "{self.host_level}": '
                f"use {' or '.join(names)}."
            )
        if self.default_precision not in self.device.peak_flops:
            raise InputError(
                f"{label}: default_precision must be one that {self.device.name} has, got "
                f'"{self.default_precision}": use {" or ".join(self.device.peak_flops)}.'
            )

    @property
    def num_devices(self) -> int:
        """Devices of the whole cluster."""
        return math.prod(level.size for level in self.levels)

    @property
    def host_index(self) -> int:
        """Index of the level whose parent is a host."""
        return [level.name for level in self.levels].index(self.host_level)

    @property
    def devices_per_host(self) -> int:
        """Devices of one host."""
        return math.prod(level.size for level in self.levels[: self.host_index + 1])

    def congested(self, factor: float) -> Cluster:
        """The cluster when other jobs leave one part in `factor` of what links between hosts carry.

        Kahira et al. 2021 (section V.B.1) saw all-reduces take up to four times as long.
        """
        if not 1.0 <= factor <= 1000.0:
            raise InputError(
                f"the congestion between hosts must be from 1 to 1000 but is {factor:g}; 4 means "
                "that other jobs leave a quarter of the bandwidth"
            )
        inner = self.host_index + 1
        outer = tuple(
            replace(
                level,
                bandwidth=level.bandwidth / factor,
                send_recv_bandwidth=level.send_recv_bandwidth
                and level.send_recv_bandwidth / factor,
            )
            for level in self.levels[inner:]
        )
        return replace(self, levels=(*self.levels[:inner], *outer))

    def shape(self, num_gpus: int) -> tuple[int, ...]:
        """Return how many children of every level a job of `num_gpus` uses, inside-out.

        Within a host the number must divide the host, so that hosts can be cut into equal parts;
        beyond a host it must fill hosts, and outer levels are used equally, as few parents as
        possible (64 hosts in racks of 17 are 4 racks of 16).
        """
        shape = self._try_shape(num_gpus)
        if shape is None:
            raise InputError(self._shape_message(num_gpus))
        return shape

    def _try_shape(self, num_gpus: int) -> tuple[int, ...] | None:
        """Return the shape, or None where the number does not fit."""
        per_host, inner = self.devices_per_host, self.host_index + 1
        if not 1 <= num_gpus <= self.num_devices:
            return None
        if num_gpus < per_host:
            if per_host % num_gpus:
                return None
            used, rest = [], num_gpus
            for level in self.levels[:inner]:
                used.append(math.gcd(rest, level.size))
                rest //= used[-1]
            return (*used, *(1 for _ in self.levels[inner:]))
        if num_gpus % per_host:
            return None
        outer = _equal_use(num_gpus // per_host, [level.size for level in self.levels[inner:]])
        if outer is None:
            return None
        return (*(level.size for level in self.levels[:inner]), *outer)

    def _shape_message(self, num_gpus: int) -> str:
        """Say why the number of GPUs does not fit, and which ones nearby do."""
        start = max(1, min(num_gpus, self.num_devices))
        smaller = next((n for n in range(start, 0, -1) if self._try_shape(n)), None)
        larger = next((n for n in range(start, self.num_devices + 1) if self._try_shape(n)), None)
        fits = " or ".join(str(n) for n in sorted({n for n in (smaller, larger) if n is not None}))
        if num_gpus < 1 or num_gpus > self.num_devices:
            rule = f"must be from 1 to {self.num_devices} on {self.name}"
        else:
            rule = (
                f"must divide or fill the hosts of {self.name} equally "
                f"({self.devices_per_host} GPUs a host)"
            )
        return f"the number of GPUs {rule}, got {num_gpus}: use {fits}."


def _equal_use(num_children: int, sizes: list[int]) -> tuple[int, ...] | None:
    """Split a number of children over levels, as many as possible inside; None if impossible."""
    if not sizes:
        return () if num_children == 1 else None
    for used in range(min(sizes[0], num_children), 0, -1):
        if num_children % used == 0:
            rest = _equal_use(num_children // used, sizes[1:])
            if rest is not None:
                return (used, *rest)
    return None


def _require_positive(label: str, field: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"{label}: {field} must be greater than zero and finite, got {value:g} {unit}".rstrip()
            + ": correct it."
        )


def _require_not_negative(label: str, field: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(
            f"{label}: {field} must not be negative and must be finite, got {value:g} "
            f"{unit}".rstrip()
            + ": correct it."
        )
