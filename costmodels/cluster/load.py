"""Read clusters from TOML files: built-in ones by name, a user's own by path.

A cluster file names a device (`data/devices/*.toml`) or holds a `[device]` table, and lists its
levels from the inside out; one of several kinds of hosts lists these as groups. Quantities are text
with a unit, converted in `build` and nowhere else.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from costmodels.cluster.build import (
    DATA,
    Place,
    build_host,
    build_level,
    built,
    built_in_device,
    convert,
    data_files,
    device_of,
    list_devices,
    unknown,
)
from costmodels.cluster.cluster import Cluster
from costmodels.cluster.device import Device
from costmodels.cluster.files import ClusterFile, GroupLevelFile, LevelFile, MixedClusterFile
from costmodels.cluster.groups import HostGroup
from costmodels.cluster.level import Level
from costmodels.errors import InputError, printable
from costmodels.units.tables import parse_toml, read_text


def list_clusters() -> tuple[str, ...]:
    """Names of the built-in clusters."""
    return data_files("clusters")


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
    return build_level(LevelFile(name=name, size=2, link=name), Place(f"link {name}"))


def _read_cluster(text: str) -> tuple[str, Place]:
    """The text of a cluster's file, and what messages call it."""
    if text in list_clusters():
        content = (DATA / "clusters" / f"{text}.toml").read_text(encoding="utf-8")
        return content, Place(f"cluster {text}")
    path = Path(text)
    # what is no file may still be a pipe
    if path.suffix != ".toml" and not os.path.exists(text):
        raise InputError(
            "the cluster must be a built-in one or a TOML file but is "
            f"{unknown(text, list_clusters())}"
        )
    known = ", ".join(list_clusters())
    content = read_text(text, f"the cluster file {text}", f"check the path, or name one of {known}")
    return content, Place(f"cluster file {text}")


def load_device(name: str) -> Device:
    """Read a built-in device by its name."""
    return built_in_device(name, "the device")


def _build_cluster(content: str, place: Place) -> Cluster:
    document = parse_toml(content, str(place))
    if "groups" in document:
        return _build_mixed(convert(document, MixedClusterFile, place), place)
    data = convert(document, ClusterFile, place)
    device = device_of(data.device, place)
    levels = tuple(
        build_level(level, place.at(f"levels[{index}]")) for index, level in enumerate(data.levels)
    )
    return built(
        place,
        lambda: Cluster(
            name=data.name,
            device=device,
            levels=levels,
            host_level=data.host_level,
            default_precision=data.default_precision,
            host=None if data.host is None else build_host(data.host, place.at("host")),
            description=data.description,
            source=data.source,
        ),
    )


def _build_mixed(data: MixedClusterFile, place: Place) -> Cluster:
    """A cluster of groups; what a group leaves open is as the cluster has it."""
    if not data.levels or not data.groups:
        what = "groups" if data.levels else "levels"
        raise InputError(f"{place}: there must be {what} but there are none; add one")
    total = sum(group.hosts for group in data.groups)
    groups = []
    for index, group in enumerate(data.groups):
        here = place.at(f"groups[{index}]")
        device = data.device if group.device is None else group.device
        if device is None:
            raise InputError(
                f'{here} must have a device but neither it nor the cluster has one; add device = "'
                f'{list_devices()[0]}", or another one of planner devices'
            )
        own = {level.name: (number, level) for number, level in enumerate(group.levels)}
        strange = [name for name in own if name not in {level.name for level in data.levels}]
        if strange or len(own) < len(group.levels):
            known = ", ".join(level.name for level in data.levels)
            raise InputError(
                f"{here}: levels must each be another one of the cluster's, {known}, but are "
                f"{', '.join(level.name for level in group.levels)}; rename one or take it out"
            )
        levels = [
            _group_level(level, own[level.name][1], here.at(f"levels[{own[level.name][0]}]"))
            if level.name in own
            else build_level(level, place.at(f"levels[{number}]"))
            for number, level in enumerate(data.levels)
        ]
        where = here if group.device is not None else place
        groups.append(
            built(
                here,
                partial(
                    HostGroup,
                    name=group.name,
                    hosts=group.hosts,
                    device=device_of(device, where),
                    levels=tuple(levels),
                ),
            )
        )
    if data.levels[-1].size != total:
        rows = " + ".join(str(group.hosts) for group in data.groups)
        raise InputError.rule(
            f"{place.at(f'levels[{len(data.levels) - 1}]')}.size",
            f"be the hosts of all groups, {rows} = {total}",
            data.levels[-1].size,
            "change it, or the hosts of a group",
        )
    return built(
        place,
        lambda: Cluster.mixed(
            groups,
            name=data.name,
            host_level=data.host_level,
            default_precision=data.default_precision,
            host=None if data.host is None else build_host(data.host, place.at("host")),
            description=data.description,
            source=data.source,
        ),
    )


def _group_level(common: LevelFile, own: GroupLevelFile, place: Place) -> Level:
    """A level of a group: as many members as the cluster has there, with links of its own."""
    if own.size not in (None, common.size):
        raise InputError.rule(
            str(place.at("size")),
            "be that of the cluster, since hosts of all groups have as many GPUs,",
            own.size,
            "leave it out, or plan for each kind of hosts by itself",
        )
    fields = {name: getattr(own, name) for name in own.__struct_fields__ if name != "size"}
    return build_level(LevelFile(size=common.size, **fields), place)
