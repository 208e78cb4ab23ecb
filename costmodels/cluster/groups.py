"""Groups of hosts of different kinds in one cluster, and what they have in common: the slowest.

Devices that do the same together go at the pace of the slowest of them, and messages between
groups at that of the slower links. Where nothing says which devices are meant, a cluster of several
groups stands for that: a device with the least memory and rates, and the slowest links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from costmodels.cluster.device import Device
from costmodels.cluster.level import Level
from costmodels.errors import InputError, require_name, require_positive


class HostGroup(Struct, frozen=True, kw_only=True):
    """Hosts of one kind.

    Attributes
    ----------
    name
        Name of the group.
    hosts
        How many there are. [items]
    device
        What their GPUs are.
    levels
        Levels from the inside out: as those of the cluster, with the links of these hosts.
    """

    name: str
    hosts: int
    device: Device
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        require_name("the name of a group of hosts", self.name)
        require_positive(f"group {self.name}: hosts", self.hosts)

    def alike(self, other: HostGroup) -> bool:
        """Whether the hosts of two groups are of one kind."""
        mine, theirs = (
            [replace(level, size=1, source="") for level in group.levels] for group in (self, other)
        )
        return mine == theirs and replace(self.device, source="") == replace(
            other.device, source=""
        )


def fastest_first(groups: Sequence[HostGroup], precision: str) -> tuple[HostGroup, ...]:
    """Groups by the rates of their devices; of equally fast ones the first stays first.

    Parameters
    ----------
    groups
        The groups, whose devices all have that precision.
    precision
        Of the rates that are compared.
    """

    def rate(group: HostGroup) -> tuple[float, ...]:
        device = group.device
        return device.peak_flops[precision], device.memory_bandwidth, device.memory

    return tuple(sorted(groups, key=rate, reverse=True))


def merged_groups(groups: Sequence[HostGroup]) -> tuple[HostGroup, ...]:
    """Groups in which neighbours of one kind are one, called as the first of them."""
    found: list[HostGroup] = []
    for group in groups:
        if found and found[-1].alike(group):
            found[-1] = replace(found[-1], hosts=found[-1].hosts + group.hosts)
        else:
            found.append(group)
    return tuple(found)


def slowest_device(devices: Sequence[Device]) -> Device:
    """A device that is in nothing better than any of these: the one itself where there is one.

    The fixed cost of a kernel, which is taken off where kernels are fused, is the least.
    """
    if len(devices) == 1:
        return devices[0]
    precisions = [p for p in devices[0].peak_flops if all(p in d.peak_flops for d in devices)]
    usable = min(device.usable_memory for device in devices)
    reserved = max(device.reserved_memory for device in devices)
    return Device(
        name=" + ".join(dict.fromkeys(device.name for device in devices)),
        memory=usable + reserved,
        reserved_memory=reserved,
        peak_flops={p: min(d.peak_flops[p] for d in devices) for p in precisions},
        memory_bandwidth=min(device.memory_bandwidth for device in devices),
        num_sms=min(device.num_sms for device in devices),
        kernel_latency=min(device.kernel_latency for device in devices),
        sustained=min(device.sustained for device in devices),
        source=" ".join(dict.fromkeys(device.source for device in devices if device.source)),
    )


def slowest_levels(
    groups: Sequence[Sequence[Level]], sizes: Sequence[int] | None = None
) -> tuple[Level, ...]:
    """Links that are in nothing better than those of any group.

    Parameters
    ----------
    groups
        The levels of each group, of the same names.
    sizes
        Members of each level; those of the first group by default. [items]
    """
    sizes = [level.size for level in groups[0]] if sizes is None else sizes
    return tuple(
        replace(_slowest_level(rows), size=size)
        for rows, size in zip(zip(*groups, strict=True), sizes, strict=True)
    )


def _slowest_level(levels: Sequence[Level]) -> Level:
    """The level whose children can send the least, with the longest latencies of all."""
    base = min(levels, key=lambda level: level.bandwidth * level.links / level.oversubscription)
    if all(
        replace(level, size=1, source="") == replace(base, size=1, source="") for level in levels
    ):
        return base
    in_network = all(level.in_network_latency is not None for level in levels)

    def of_all(field: str, choose: Callable[[Sequence[float]], float]) -> float | None:
        values = [value for level in levels if (value := getattr(level, field)) is not None]
        return choose(values) if values else None

    latencies = [
        level.latency + level.start_latency
        if level.send_recv_latency is None
        else level.send_recv_latency
        for level in levels
    ]
    own_path = any(level.send_recv_latency is not None for level in levels)
    return replace(
        base,
        latency=max(level.latency for level in levels),
        start_latency=max(level.start_latency for level in levels),
        ring_pace=of_all("ring_pace", max),
        ramp=max(level.ramp for level in levels),
        in_network_latency=of_all("in_network_latency", max) if in_network else None,
        in_network_bandwidth=of_all("in_network_bandwidth", min) if in_network else None,
        send_recv_latency=max(latencies) if own_path else None,
    )


def check_groups(label: str, groups: Sequence[HostGroup], levels: Sequence[Level]) -> None:
    """Refuse groups that make no cluster.

    Parameters
    ----------
    label
        What error messages call the cluster.
    groups, levels
        Its groups, and the levels it has in common.

    Raises
    ------
    InputError
        When names are not different, levels are other ones, or the hosts are not those of the
        cluster.
    """
    names = [group.name for group in groups]
    if len(set(names)) != len(names):
        raise InputError(
            f"{label}: groups must have different names but have {', '.join(names)}; rename one"
        )
    own = [level.name for level in levels]
    for group in groups:
        if [level.name for level in group.levels] != own:
            raise InputError(
                f"{label}: levels of group {group.name} must be those of the cluster, "
                f"{', '.join(own)}, but are {', '.join(level.name for level in group.levels)}; "
                "rename them"
            )
