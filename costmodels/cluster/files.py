"""How devices, link technologies and clusters are written in TOML; quantities carry their units.

Unknown keys are refused, so that a misspelt one cannot be overlooked.
"""

from __future__ import annotations

import msgspec


class DeviceFile(msgspec.Struct, forbid_unknown_fields=True):
    """A device as it is written; quantities still carry their units."""

    name: str
    memory: str
    reserved_memory: str
    peak_flops: dict[str, str]
    memory_bandwidth: str
    num_sms: int
    kernel_latency: str
    sustained: float = 1.0
    source: str = ""


class HostFile(msgspec.Struct, forbid_unknown_fields=True):
    """The memory of a host as it is written."""

    memory: str
    memory_bandwidth: str
    link_bandwidth: str
    devices_per_link: int = 1
    source: str = ""


class LinkFile(msgspec.Struct, forbid_unknown_fields=True):
    """A link technology as it is written: what all levels that use it have in common."""

    latency: str | None = None
    bandwidth: str | None = None
    nominal_bandwidth: str | None = None
    efficiency: float | None = None
    start_latency: str | None = None
    ring_pace: str | None = None
    ramp: float | None = None
    in_network_latency: str | None = None
    in_network_bandwidth: str | None = None
    send_recv_latency: str | None = None
    send_recv_bandwidth: str | None = None
    one_way_bandwidth: str | None = None
    source: str | None = None


class LevelFile(LinkFile, forbid_unknown_fields=True, kw_only=True):
    """A level as it is written."""

    name: str
    size: int
    link: str | None = None
    links: int = 1
    peer_links: float | None = None
    group_links: float | None = None
    oversubscription: float = 1.0


class GroupLevelFile(LinkFile, forbid_unknown_fields=True, kw_only=True):
    """A level of a group of hosts as it is written: its size may be left to the cluster."""

    name: str
    size: int | None = None
    link: str | None = None
    links: int = 1
    peer_links: float | None = None
    group_links: float | None = None
    oversubscription: float = 1.0


class GroupFile(msgspec.Struct, forbid_unknown_fields=True):
    """A group of hosts as it is written; what it leaves open is as the cluster has it."""

    name: str
    hosts: int
    device: str | DeviceFile | None = None
    levels: list[GroupLevelFile] = []


class ClusterFile(msgspec.Struct, forbid_unknown_fields=True):
    """A cluster as it is written."""

    name: str
    device: str | DeviceFile
    levels: list[LevelFile]
    host_level: str
    default_precision: str
    host: HostFile | None = None
    description: str = ""
    source: str = ""


class MixedClusterFile(msgspec.Struct, forbid_unknown_fields=True):
    """A cluster of groups of hosts as it is written."""

    name: str
    levels: list[LevelFile]
    groups: list[GroupFile]
    host_level: str
    default_precision: str
    device: str | DeviceFile | None = None
    host: HostFile | None = None
    description: str = ""
    source: str = ""
