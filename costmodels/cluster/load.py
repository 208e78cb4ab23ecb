"""Read clusters from TOML files: built-in ones by name, a user's own by path.

A cluster file names a device (`data/devices/*.toml`) or holds a `[device]` table, and lists its
levels from the inside out. A level may name a link technology of `data/links.toml`, whose
latencies and efficiency were fitted once for all machines that use it; what the level states itself
comes first. Quantities are text with a unit, converted here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.device import Device
from costmodels.cluster.files import ClusterFile, DeviceFile, HostFile, LevelFile, LinkFile
from costmodels.cluster.host import HostMemory
from costmodels.cluster.level import Level
from costmodels.errors import InputError, closest, printable
from costmodels.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from costmodels.units.tables import field_faults, parse_toml, read_text, refuse_faults

_DATA = files("costmodels.cluster") / "data"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in which file a value stands, for messages."""

    file: str
    path: str = ""

    def at(self, part: str) -> _Place:
        return _Place(self.file, f"{self.path}.{part}" if self.path else part)

    def __str__(self) -> str:
        return f"{self.file}: {self.path}" if self.path else self.file


def list_clusters() -> tuple[str, ...]:
    """Names of the built-in clusters."""
    return _data_files("clusters")


def list_devices() -> tuple[str, ...]:
    """Names of the built-in devices."""
    return _data_files("devices")


def list_links() -> tuple[str, ...]:
    """Names of the link technologies that a level can use."""
    return tuple(_links())


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Read a built-in cluster by its name, or a user's from a TOML file."""
    return _build_cluster(*_read_cluster(str(name_or_path)))


def cluster_text(name_or_path: str | Path) -> str:
    """The file of a cluster, as it is written: devices and links keep their names.

    Raises
    ------
    InputError
        When there is no such cluster, or its file is wrong.
    """
    content, place = _read_cluster(str(name_or_path))
    _build_cluster(content, place)
    return printable(content)


def link_level(name: str) -> Level:
    """A level of two children that one link of a technology joins."""
    return _build_level(LevelFile(name=name, size=2, link=name), _Place(f"link {name}"))


def _read_cluster(text: str) -> tuple[str, _Place]:
    """The text of a cluster's file, and what messages call it."""
    if text in list_clusters():
        content = (_DATA / "clusters" / f"{text}.toml").read_text(encoding="utf-8")
        return content, _Place(f"cluster {text}")
    path = Path(text)
    # what is no file may still be a pipe
    if path.suffix != ".toml" and not os.path.exists(text):
        raise InputError(
            "the cluster must be a built-in one or a TOML file but is "
            f"{_unknown(text, list_clusters())}"
        )
    known = ", ".join(list_clusters())
    content = read_text(text, f"the cluster file {text}", f"check the path, or name one of {known}")
    return content, _Place(f"cluster file {text}")


def load_device(name: str) -> Device:
    """Read a built-in device by its name."""
    return _device_named(name, "the device")


def _build_cluster(content: str, place: _Place) -> Cluster:
    data = _convert(parse_toml(content, str(place)), ClusterFile, place)
    if isinstance(data.device, str):
        device = _device_named(data.device, str(place.at("device")))
    else:
        device = _build_device(data.device, place.at("device"))
    levels = tuple(
        _build_level(level, place.at(f"levels[{index}]")) for index, level in enumerate(data.levels)
    )
    return _built(
        place,
        lambda: Cluster(
            name=data.name,
            device=device,
            levels=levels,
            host_level=data.host_level,
            default_precision=data.default_precision,
            host=None if data.host is None else _build_host(data.host, place.at("host")),
            description=data.description,
            source=data.source,
        ),
    )


def _device_named(name: str, what: str) -> Device:
    if name not in list_devices():
        raise InputError(
            f"{what} must be a built-in one or a [device] table but is "
            f"{_unknown(name, list_devices())}"
        )
    place = _Place(f"device {name}")
    content = (_DATA / "devices" / f"{name}.toml").read_text(encoding="utf-8")
    return _build_device(_convert(parse_toml(content, str(place)), DeviceFile, place), place)


def _build_device(data: DeviceFile, place: _Place) -> Device:
    return _built(
        place,
        lambda: Device(
            name=data.name,
            memory=parse_bytes(data.memory, what=str(place.at("memory"))),
            reserved_memory=parse_bytes(
                data.reserved_memory, what=str(place.at("reserved_memory")), allow_zero=True
            ),
            peak_flops={
                precision: parse_flops(rate, what=str(place.at(f"peak_flops.{precision}")))
                for precision, rate in data.peak_flops.items()
            },
            memory_bandwidth=parse_bandwidth(
                data.memory_bandwidth, what=str(place.at("memory_bandwidth"))
            ),
            num_sms=data.num_sms,
            kernel_latency=parse_seconds(
                data.kernel_latency, what=str(place.at("kernel_latency")), allow_zero=True
            ),
            sustained=data.sustained,
            source=data.source,
        ),
    )


def _build_host(data: HostFile, place: _Place) -> HostMemory:
    return _built(
        place,
        lambda: HostMemory(
            memory=parse_bytes(data.memory, what=str(place.at("memory"))),
            memory_bandwidth=parse_bandwidth(
                data.memory_bandwidth, what=str(place.at("memory_bandwidth"))
            ),
            link_bandwidth=parse_bandwidth(
                data.link_bandwidth, what=str(place.at("link_bandwidth"))
            ),
            devices_per_link=data.devices_per_link,
            source=data.source,
        ),
    )


def _build_level(data: LevelFile, place: _Place) -> Level:
    """Fill what the level leaves open from its link technology, and convert the units."""
    link = LinkFile()
    if data.link is not None:
        if data.link not in _links():
            raise InputError(
                f"{place.at('link')} must be a known link technology but is "
                f"{_unknown(data.link, list_links())}"
            )
        link = _links()[data.link]

    def own_or_link(field: str) -> Any:
        own = getattr(data, field)
        return getattr(link, field) if own is None else own

    def seconds(field: str) -> float | None:
        text = own_or_link(field)
        if text is None:
            return None
        return parse_seconds(text, what=str(place.at(field)), allow_zero=True)

    def bandwidth(field: str) -> float | None:
        text = own_or_link(field)
        return None if text is None else parse_bandwidth(text, what=str(place.at(field)))

    latency = seconds("latency")
    if latency is None:
        raise InputError(
            f'{place} must have a latency but has none; add latency = "5 us" or name a link, one '
            f"of {', '.join(list_links())}"
        )
    return _built(
        place,
        lambda: Level(
            name=data.name,
            size=data.size,
            latency=latency,
            bandwidth=_achievable(data, link, place),
            links=data.links,
            peer_links=data.peer_links,
            group_links=data.group_links,
            start_latency=seconds("start_latency") or 0.0,
            ring_pace=seconds("ring_pace"),
            ramp=own_or_link("ramp") or 0.0,
            in_network_latency=seconds("in_network_latency"),
            in_network_bandwidth=bandwidth("in_network_bandwidth"),
            oversubscription=data.oversubscription,
            send_recv_latency=seconds("send_recv_latency"),
            send_recv_bandwidth=bandwidth("send_recv_bandwidth"),
            one_way_bandwidth=bandwidth("one_way_bandwidth"),
            source=" ".join(part for part in (data.source, link.source) if part),
        ),
    )


def _achievable(data: LevelFile, link: LinkFile, place: _Place) -> float:
    """Bandwidth of one link: as stated, or the nominal one times the efficiency. [B/s]"""
    if data.bandwidth is not None:
        if data.nominal_bandwidth is not None or data.efficiency is not None:
            raise InputError(
                f"{place} must have either bandwidth or nominal_bandwidth with efficiency but has "
                "both; remove one"
            )
        return parse_bandwidth(data.bandwidth, what=str(place.at("bandwidth")))
    nominal = data.nominal_bandwidth or link.nominal_bandwidth
    efficiency = link.efficiency if data.efficiency is None else data.efficiency
    if nominal is None or efficiency is None:
        raise InputError(
            f'{place} must have a bandwidth but has none; add bandwidth = "12.5 GB/s", or '
            "nominal_bandwidth and efficiency, or name a link"
        )
    if not 0 < efficiency <= 1:
        raise InputError.rule(
            str(place.at("efficiency")),
            "be above 0 and at most 1",
            f"{efficiency:g}",
            "write 0.85 for 85 %",
        )
    return parse_bandwidth(nominal, what=str(place.at("nominal_bandwidth"))) * efficiency


@lru_cache(maxsize=1)
def _links() -> dict[str, LinkFile]:
    place = _Place("links.toml")
    content = (_DATA / "links.toml").read_text(encoding="utf-8")
    return _convert(parse_toml(content, str(place)), dict[str, LinkFile], place)


@lru_cache(maxsize=2)
def _data_files(folder: str) -> tuple[str, ...]:
    found = (entry.name for entry in (_DATA / folder).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def _unknown(name: str, known: tuple[str, ...]) -> str:
    """Quote an unknown name and list the known ones, the closest first."""
    return f"'{name}'; use one of {closest(name, known)}"


def _convert(data: Any, kind: type[_T], place: _Place) -> _T:
    """Check the structure of a file; the message names the fields."""
    refuse_faults(str(place), field_faults(data, kind))
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        field = path.rstrip("`").removeprefix("$").removeprefix(".")
        hint = "correct it"
        if "Expected `str" in reason:
            hint = 'write it as text, a quantity with its unit like "12.5 GB/s"'
        reason = reason[0].lower() + reason[1:].replace("`", "'")
        raise InputError(f"{place.at(field) if field else place}: {reason}; {hint}") from None


def _built(place: _Place, build: Callable[[], _T]) -> _T:
    """Build a noun; where its own check fails, say in which file."""
    try:
        return build()
    except InputError as error:
        message = str(error)
        raise InputError(
            message if message.startswith(place.file) else f"{place.file}: {message}"
        ) from None
