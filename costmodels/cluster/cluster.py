"""What a machine is: devices, and the levels of links that join them from the inside out.

A cluster is a tree whose leaves are devices. One level joins `size` children: the innermost level
joins devices, the next one joins groups of devices, and so on. All children of a level are alike,
and so are their links; a job that uses a part of the machine uses the same number of children
everywhere, because collectives run at the pace of the slowest member. Hosts of different kinds are
groups of one such tree, and what the cluster says of its device and its links is the slowest of
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from costmodels.cluster.curve import CollectiveCurve
from costmodels.cluster.device import Device
from costmodels.cluster.groups import (
    HostGroup,
    check_groups,
    fastest_first,
    merged_groups,
    slowest_device,
    slowest_levels,
)
from costmodels.cluster.host import HostMemory
from costmodels.cluster.level import Level
from costmodels.cluster.ranges import require_plausible
from costmodels.errors import InputError, printable, require_name


class Cluster(Struct, frozen=True, kw_only=True):
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
    host
        The memory of a host, where anything is known of it.
    description
        One line that tells machines apart.
    source
        Where the figures are from.
    groups
        Hosts of different kinds, the fastest first; none where all are alike. Use `mixed` to make
        such a cluster.
    curves
        Measured times of collectives, which come before what the levels say.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    host_level: str
    default_precision: str
    host: HostMemory | None = None
    description: str = ""
    source: str = ""
    groups: tuple[HostGroup, ...] = ()
    curves: tuple[CollectiveCurve, ...] = ()

    def __post_init__(self) -> None:
        require_name("the name of a cluster", self.name)
        for text in ("description", "source"):
            force_setattr(self, text, printable(getattr(self, text)))
        label = f"cluster {self.name}"
        names = [level.name for level in self.levels]
        if not names:
            raise InputError(f"{label}: there must be levels but there are none; add one")
        if len(set(names)) != len(names):
            raise InputError(
                f"{label}: levels must have different names but have {', '.join(names)}; rename one"
            )
        require_plausible(label, "num_devices", self.num_devices)
        if self.host_level not in names:
            raise InputError.rule(
                f"{label}: host_level",
                "be one of its levels",
                f"'{self.host_level}'",
                f"use {' or '.join(names)}",
            )
        if self.default_precision not in self.device.peak_flops:
            raise InputError.rule(
                f"{label}: default_precision",
                f"be one that {self.device.name} has",
                f"'{self.default_precision}'",
                f"use {' or '.join(self.device.peak_flops)}",
            )
        if self.groups:
            check_groups(label, self.groups, self.levels)

    @classmethod
    def mixed(
        cls,
        groups: Sequence[HostGroup],
        *,
        name: str,
        host_level: str,
        default_precision: str,
        host: HostMemory | None = None,
        description: str = "",
        source: str = "",
    ) -> Cluster:
        """A cluster of groups of hosts under one network.

        Its devices are numbered host by host, those of the fastest group first. Where all groups
        are of one kind it is a plain cluster.

        Parameters
        ----------
        groups
            The groups; the size of their outermost level is not read.
        name, host_level, default_precision, host, description, source
            As of the cluster.

        Raises
        ------
        InputError
            When they make no such cluster.
        """
        label = f"cluster {name}"
        for group in groups:
            if default_precision not in group.device.peak_flops:
                raise InputError.rule(
                    f"{label}: default_precision",
                    f"be one that {group.device.name} of group {group.name} has",
                    f"'{default_precision}'",
                    f"use {' or '.join(group.device.peak_flops)}",
                )
        check_groups(label, groups, groups[0].levels)
        names = [level.name for level in groups[0].levels]
        if host_level not in names[:-1] or names.index(host_level) != len(names) - 2:
            raise InputError(
                f"{label}: groups of hosts must be joined by one level, the network, above the "
                f"host_level, but the levels are {', '.join(names)} and host_level is "
                f"'{host_level}'; leave the others out"
            )
        sizes = {group.name: [level.size for level in group.levels[:-1]] for group in groups}
        odd = next((n for n in sizes if sizes[n] != sizes[groups[0].name]), None)
        if odd is not None:
            raise InputError(
                f"{label}: hosts of all groups must have as many GPUs, level by level, but those "
                f"of {groups[0].name} have {_times_text(sizes[groups[0].name])} and those of {odd} "
                f"{_times_text(sizes[odd])}; plan for each kind of hosts by itself"
            )
        ordered = fastest_first(groups, default_precision)
        hosts = sum(group.hosts for group in ordered)
        ordered = merged_groups(
            [
                replace(group, levels=_with_hosts(group.levels, hosts), hosts=group.hosts)
                for group in ordered
            ]
        )
        return cls(
            name=name,
            device=slowest_device([group.device for group in ordered]),
            levels=slowest_levels([group.levels for group in ordered]),
            host_level=host_level,
            default_precision=default_precision,
            host=host,
            description=description,
            source=source,
            groups=ordered if len(ordered) > 1 else (),
        )

    def _of_groups(self, groups: Sequence[HostGroup]) -> Cluster:
        """The cluster of some of its groups: a plain one where it is one group."""
        hosts = sum(group.hosts for group in groups)
        levels = slowest_levels([group.levels for group in groups])
        return replace(
            self,
            device=slowest_device([group.device for group in groups]),
            levels=_with_hosts(levels, hosts),
            groups=tuple(groups) if len(groups) > 1 else (),
        )

    def alone(self, *names: str) -> Cluster:
        """The hosts of groups of these names, as a cluster of their own."""
        return self._of_groups([group for group in self.groups if group.name in names])

    def groups_of(self, first: int, count: int) -> tuple[HostGroup, ...]:
        """The groups that some neighbouring devices belong to; none in a plain cluster.

        Parameters
        ----------
        first, count
            The first device, and how many they are. [items]
        """
        found, start = [], 0
        for group in self.groups:
            end = start + group.hosts * self.devices_per_host
            if first < end and start < first + count:
                found.append(group)
            start = end
        return tuple(found)

    def under(self, *groups: HostGroup) -> Cluster:
        """The cluster as devices of these groups see it: itself where it is plain."""
        return self._of_groups(groups) if groups else self

    def used(self, num_gpus: int) -> Cluster:
        """The part that a job gets: the hosts of the fastest groups first.

        Raises
        ------
        InputError
            When it cannot use so many GPUs.
        """
        if not self.groups:
            return self
        left = math.prod(self.shape(num_gpus)[self.host_index + 1 :])
        taken = []
        for group in self.groups:
            hosts = min(group.hosts, left)
            left -= hosts
            taken += [replace(group, hosts=hosts)] if hosts else []
        return self._of_groups(taken)

    def with_memory(self, memory: float) -> Cluster:
        """The same machine with devices of so much memory. [B]"""
        groups = [replace(one, device=replace(one.device, memory=memory)) for one in self.groups]
        device = replace(self.device, memory=memory)
        return replace(self, device=device, groups=tuple(groups))

    def mean_peak_flops(self, precision: str) -> float:
        """Peak rate of a device, the mean over all. [FLOP/s]"""
        if not self.groups:
            return self.device.peak_flops[precision]
        total = sum(group.hosts * group.device.peak_flops[precision] for group in self.groups)
        return total / sum(group.hosts for group in self.groups)

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
            raise InputError.rule(
                "the congestion between hosts",
                "be from 1 to 1000",
                f"{factor:g}",
                "4 means that other jobs leave a quarter of the bandwidth",
            )
        inner = self.host_index + 1

        def slower(levels: Sequence[Level]) -> tuple[Level, ...]:
            outer = (
                replace(
                    level,
                    bandwidth=level.bandwidth / factor,
                    send_recv_bandwidth=level.send_recv_bandwidth
                    and level.send_recv_bandwidth / factor,
                )
                for level in levels[inner:]
            )
            return (*levels[:inner], *outer)

        groups = tuple(replace(group, levels=slower(group.levels)) for group in self.groups)
        alone = tuple(curve for curve in self.curves if curve.hosts == 1 or factor == 1.0)
        return replace(self, levels=slower(self.levels), groups=groups, curves=alone)

    def shape(self, num_gpus: int) -> tuple[int, ...]:
        """Return how many children of every level a job of `num_gpus` uses, inside-out.

        Within a host the number must divide the host, so that hosts can be cut into equal parts;
        beyond a host it must fill hosts, and outer levels are used equally, as few parents as
        possible (64 hosts in racks of 17 are 4 racks of 16).
        """
        shape = self._try_shape(num_gpus)
        if shape is None:
            raise self._misfit(num_gpus)
        return shape

    def can_use(self, num_gpus: int) -> bool:
        """Whether a job can use that many of its GPUs."""
        return self._try_shape(num_gpus) is not None

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

    def _misfit(self, num_gpus: int) -> InputError:
        """Why the number of GPUs does not fit, and which ones nearby do."""
        start = max(1, min(num_gpus, self.num_devices))
        smaller = next((n for n in range(start, 0, -1) if self._try_shape(n)), None)
        larger = next((n for n in range(start, self.num_devices + 1) if self._try_shape(n)), None)
        fits = " or ".join(str(n) for n in sorted({n for n in (smaller, larger) if n is not None}))
        if num_gpus < 1 or num_gpus > self.num_devices:
            rule = f"be from 1 to {self.num_devices} on {self.name}"
        else:
            rule = (
                f"divide or fill the hosts of {self.name} equally "
                f"({self.devices_per_host} GPUs a host)"
            )
        return InputError.rule("the number of GPUs", rule, num_gpus, f"use {fits}")


def _times_text(sizes: Sequence[int]) -> str:
    """Such as "2 x 4"."""
    return " x ".join(map(str, sizes))


def _with_hosts(levels: Sequence[Level], hosts: int) -> tuple[Level, ...]:
    """Levels whose outermost one joins so many hosts."""
    return (*levels[:-1], replace(levels[-1], size=hosts))


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
