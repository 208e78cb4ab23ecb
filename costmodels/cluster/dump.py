"""Write a cluster as TOML that reads back as the same cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.device import Device
from costmodels.cluster.host import HostMemory
from costmodels.cluster.level import Level
from costmodels.units import (
    BANDWIDTH_UNITS,
    BYTE_UNITS,
    FLOPS_UNITS,
    SECOND_UNITS,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_seconds,
)


def dump_cluster(cluster: Cluster) -> str:
    """Write a cluster as the text of a TOML file that needs no other file."""
    lines = [
        f"name = {_quoted(cluster.name)}",
        f"description = {_quoted(cluster.description)}",
        f"host_level = {_quoted(cluster.host_level)}",
        f"default_precision = {_quoted(cluster.default_precision)}",
        f"source = {_quoted(cluster.source)}",
    ]
    if not cluster.groups:
        lines += ["", "[device]", *_device_lines(cluster.device)]
    if cluster.host is not None:
        lines += ["", "[host]", *_host_lines(cluster.host)]
    for level in cluster.levels:
        lines += ["", "[[levels]]", *_level_lines(level)]
    for group in cluster.groups:
        lines += ["", "[[groups]]", f"name = {_quoted(group.name)}", f"hosts = {group.hosts}"]
        lines += ["", "[groups.device]", *_device_lines(group.device)]
        for level in group.levels:
            own = [line for line in _level_lines(level) if not line.startswith("size = ")]
            lines += ["", "[[groups.levels]]", *own]
    return "\n".join(lines) + "\n"


def _device_lines(device: Device) -> list[str]:
    rates = ", ".join(f"{name} = {_flops(rate)}" for name, rate in device.peak_flops.items())
    return [
        f"name = {_quoted(device.name)}",
        f"memory = {_bytes(device.memory)}",
        f"reserved_memory = {_bytes(device.reserved_memory)}",
        f"peak_flops = {{ {rates} }}",
        f"memory_bandwidth = {_bandwidth(device.memory_bandwidth)}",
        f"num_sms = {device.num_sms}",
        f"kernel_latency = {_seconds(device.kernel_latency)}",
        *([f"sustained = {device.sustained!r}"] if device.sustained < 1.0 else []),
        f"source = {_quoted(device.source)}",
    ]


def _host_lines(host: HostMemory) -> list[str]:
    return [
        f"memory = {_bytes(host.memory)}",
        f"memory_bandwidth = {_bandwidth(host.memory_bandwidth)}",
        f"link_bandwidth = {_bandwidth(host.link_bandwidth)}",
        f"devices_per_link = {host.devices_per_link}",
        f"source = {_quoted(host.source)}",
    ]


def _level_lines(level: Level) -> list[str]:
    """Write one level, leaving out what it does not have."""
    writers: dict[str, Callable[[float], str]] = {
        "size": repr,
        "latency": _seconds,
        "bandwidth": _bandwidth,
        "links": repr,
        "peer_links": repr,
        "group_links": repr,
        "start_latency": _seconds,
        "ring_pace": _seconds,
        "ramp": repr,
        "in_network_latency": _seconds,
        "in_network_bandwidth": _bandwidth,
        "oversubscription": repr,
        "send_recv_latency": _seconds,
        "send_recv_bandwidth": _bandwidth,
        "one_way_bandwidth": _bandwidth,
    }
    values = ((field, write, getattr(level, field)) for field, write in writers.items())
    lines = [f"{field} = {write(value)}" for field, write, value in values if value is not None]
    return [f"name = {_quoted(level.name)}", *lines, f"source = {_quoted(level.source)}"]


def _quoted(value: str) -> str:
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _quantity(
    units: Mapping[str, float], parse: Callable[[str], float], base: str, value: float
) -> str:
    """Write a value in the unit that is shortest and reads back as exactly the same number."""
    written = (f"{value / factor!r} {unit}" for unit, factor in units.items() if value)
    exact = [text for text in written if "e" not in text.split()[0] and parse(text) == value]
    return _quoted(min([f"{value!r} {base}", *exact], key=len).replace(".0 ", " "))


_bytes = partial(_quantity, BYTE_UNITS, parse_bytes, "B")
_seconds = partial(_quantity, SECOND_UNITS, parse_seconds, "s")
_bandwidth = partial(
    _quantity,
    {unit: f for unit, f in BANDWIDTH_UNITS.items() if "B" in unit},
    parse_bandwidth,
    "B/s",
)
_flops = partial(
    _quantity, {unit: f for unit, f in FLOPS_UNITS.items() if "/" in unit}, parse_flops, "FLOP/s"
)
