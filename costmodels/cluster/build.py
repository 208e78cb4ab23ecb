"""Devices, hosts and levels from what files say of them; quantities become numbers here.

A level may name a link technology of `data/links.toml`, whose latencies and efficiency were fitted
once for all machines that use it; what the level states itself comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from costmodels.cluster.device import Device
from costmodels.cluster.files import DeviceFile, HostFile, LevelFile, LinkFile
from costmodels.cluster.host import HostMemory
from costmodels.cluster.level import Level
from costmodels.errors import InputError, closest
from costmodels.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from costmodels.units.tables import field_faults, parse_toml, refuse_faults

DATA = files("costmodels.cluster") / "data"
_T = TypeVar("_T")


class FilePlace(Struct, frozen=True):
    """Where in which file a value stands, for messages."""

    file: str
    path: str = ""

    def at(self, part: str) -> FilePlace:
        return FilePlace(self.file, f"{self.path}.{part}" if self.path else part)

    def __str__(self) -> str:
        return f"{self.file}: {self.path}" if self.path else self.file


def list_devices() -> tuple[str, ...]:
    """Names of the built-in devices."""
    return data_files("devices")


def list_links() -> tuple[str, ...]:
    """Names of the link technologies that a level can use."""
    return tuple(_links())


def device_of(device: str | DeviceFile, place: FilePlace) -> Device:
    """The device of a cluster or a group, named or written out."""
    if isinstance(device, str):
        return device_of_name(device, str(place.at("device")))
    return build_device(device, place.at("device"))


def device_of_name(name: str, what: str) -> Device:
    """A built-in device; messages call it as they are told."""
    if name not in list_devices():
        raise InputError(
            f"{what} must be a built-in one or a [device] table but is "
            f"{unknown(name, list_devices())}"
        )
    place = FilePlace(f"device {name}")
    content = (DATA / "devices" / f"{name}.toml").read_text(encoding="utf-8")
    return build_device(convert(parse_toml(content, str(place)), DeviceFile, place), place)


def build_device(data: DeviceFile, place: FilePlace) -> Device:
    """A device as it is written."""
    return built(
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


def build_host(data: HostFile, place: FilePlace) -> HostMemory:
    """The memory of a host as it is written."""
    return built(
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


def build_level(data: LevelFile, place: FilePlace) -> Level:
    """Fill what the level leaves open from its link technology, and convert the units."""
    link = LinkFile()
    if data.link is not None:
        if data.link not in _links():
            raise InputError(
                f"{place.at('link')} must be a known link technology but is "
                f"{unknown(data.link, list_links())}"
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
    return built(
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


def _achievable(data: LevelFile, link: LinkFile, place: FilePlace) -> float:
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
    place = FilePlace("links.toml")
    content = (DATA / "links.toml").read_text(encoding="utf-8")
    return convert(parse_toml(content, str(place)), dict[str, LinkFile], place)


@lru_cache(maxsize=2)
def data_files(folder: str) -> tuple[str, ...]:
    """Names of the built-in machines of a folder."""
    found = (entry.name for entry in (DATA / folder).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def unknown(name: str, known: tuple[str, ...]) -> str:
    """Quote an unknown name and list the known ones, the closest first."""
    return f"'{name}'; use one of {closest(name, known)}"


def convert(data: object, kind: type[_T], place: FilePlace) -> _T:
    """What a file holds, in its structure; messages name the fields that are not.

    Parameters
    ----------
    data, kind
        What it holds, and the structure.
    place
        Where it stands.
    """
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


def built(place: FilePlace, build: Callable[[], _T]) -> _T:
    """Build a noun; where its own check fails, say in which file."""
    try:
        return build()
    except InputError as error:
        message = str(error)
        raise InputError(
            message if message.startswith(place.file) else f"{place.file}: {message}"
        ) from None
