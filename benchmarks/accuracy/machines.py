"""The machines of measured rows, put together from levels of links by the words of a row.

Nothing is looked up by the name of a source: the card says whether it sits in a socket with NVLink
or on PCIe, else the words on links do, else what is usual for the card. Words and links by kind
stand with their sources in `data/machines.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from costmodels.cluster import (
    Cluster,
    Device,
    Level,
    list_devices,
    load_cluster,
    load_device,
)

DATA = Path(__file__).parent / "data"
# Cards that sit in sockets joined by NVLink unless a row says otherwise; all others are on PCIe.
SOCKETED = re.compile(r"[vpahb][12]00")
# Hosts of cards in sockets where a row does not say how many they have. [items]
USUAL_HOST = 8
# A network between hosts no faster than that carries no gradients of their GPUs. [Gb/s]
MANAGEMENT = 1.0
_UNSAID = re.compile(r"not stated|n/a|todo")
_RATE = re.compile(r"(?:(\d+) ?x ?)?(\d+) ?(?:gb(?:ps|it/s|/s|/sec|e|ib)?|gige)\b")
_FABRIC = re.compile(r"infiniband|ib\b|connectx|[efhn]dr|roce|rdma|omni.?path|\bopa\b|\befa\b")
_COUNT = re.compile(r"\b(\d+) ?x\b|\bx ?(\d+)\b|\b(\d+) rails?\b")


class UnknownMachine(Exception):
    """Why a machine cannot be put together."""


@lru_cache(maxsize=4)
def read_words(name: str) -> Mapping[str, Any]:
    """A file of `data`."""
    return tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))


def entry_by_words(entries: str, text: str) -> Mapping[str, Any] | None:
    """The first entry of the machines' file whose words are found."""
    found = (entry for entry in read_words("machines")[entries] if re.search(entry["words"], text))
    return next(found, None)


def _entry_by_device(entries: str, device: str, kind: str | None = None) -> Mapping[str, Any]:
    for entry in read_words("machines")[entries]:
        if kind in (None, entry.get("kind")) and re.search(entry["devices"], device):
            return dict(entry)
    raise UnknownMachine(f"no built-in links of this kind for {device}")


@lru_cache(maxsize=512)
def device_named(text: str) -> str:
    """The built-in device of a row, "" for none."""
    lowered = text.lower()
    entry = entry_by_words("devices", lowered)
    name = entry["device"] if entry else lowered.strip()
    return name if name in list_devices() else ""


def usual_precision(device: Device) -> str:
    """What networks train in unless told otherwise."""
    return "fp32" if "fp32" in device.peak_flops else next(iter(device.peak_flops))


def _derived(level: Level, entry: Mapping[str, Any], **changes: Any) -> Level:
    """A level with the links that an entry states."""
    if "links" in entry:
        changes["links"] = entry["links"]
    if "peer_links" in entry or entry.get("switched"):
        changes["peer_links"] = entry.get("peer_links")
    return replace(level, bandwidth=level.bandwidth * entry.get("nominal_ratio", 1.0), **changes)


def _form(device: str, gpu: str, links: str) -> str:
    """How cards of a host are joined: "nvlink", "bridge" or "pcie"."""
    said = "" if _UNSAID.search(links) else links
    wired = re.search(r"nvlink|nvswitch|sxm|dgx|hgx", said)
    if re.search(r"sxm|dgx|hgx", gpu) and "bridge" not in said:
        return "nvlink"
    if "pcie" in gpu or not SOCKETED.search(device):
        return "bridge" if "bridge" in said or (wired and "nvl" in said) else "pcie"
    if "bridge" in said:
        return "bridge"
    if wired or "pcie" not in said:
        return "nvlink"
    return "pcie"


def inside_host(device: str, gpu: str, links: str, members: int) -> tuple[Level, ...]:
    """Levels inside a host.

    Parameters
    ----------
    device
        A built-in device.
    gpu, links
        Words of the row on the card, and on links, in lower case.
    members
        GPUs of a host that work. [items]
    """
    form = _form(device, gpu, links)
    if form == "nvlink":
        switched = re.search(r"nvswitch|[dh]gx-2", f"{gpu} {links}") or members > 8
        kind = "nvswitch" if switched and "v100" in device else "nvlink"
        entry = _entry_by_device("hosts", device, kind)
        level = load_cluster(entry["cluster"]).levels[0]
        return (_derived(level, entry, name="host", size=members),)
    entry = _entry_by_device("hosts", f"{device}, {gpu}", "pcie")
    level = load_cluster(entry["cluster"]).levels[entry.get("level", 0)]
    level = _derived(level, entry, name="host", size=members)
    if form == "pcie" or members % 2:
        return (level,)
    entry = _entry_by_device("bridges", device)
    pair = replace(load_cluster(entry["cluster"]).levels[0], peer_links=None)
    pair = _derived(pair, entry, name="pair", size=2)
    if members == 2:
        return (pair,)
    # a ring enters a pair by one card and leaves it by the other: each crosses its slot one way
    one_way = level.one_way_bandwidth or level.bandwidth
    return pair, replace(level, size=members // 2, bandwidth=one_way)


def _nearest(entries: str, rate: float) -> Level:
    """The outermost level of the machine whose rate is nearest, scaled to a rate. [Gb/s]"""
    known = read_words("machines")[entries]
    entry = min(known, key=lambda e: max(e["rate"] / rate, rate / e["rate"]))
    level = load_cluster(entry["cluster"]).levels[-1]
    bandwidth = level.bandwidth * rate / entry["rate"]
    return replace(level, name="network", size=4096, bandwidth=bandwidth, links=1)


def _network_part(links: str) -> str:
    """What a row says of links between hosts; storage and management only where nothing else."""
    parts = [part for part in re.split(r"\s/\s?|,|;|\+", links) if part.strip()]
    known = re.compile(rf"{_FABRIC.pattern}|ethernet|gbe|gige|tcp|hdr100|gb")
    found = [p for p in parts if known.search(p) and not re.search(r"nvlink|nvswitch|pcie", p)]
    useful = [p for p in found if not re.search(r"storage|management|\bmana", p)]
    fabric = [p for p in useful if _FABRIC.search(p)]
    return " ".join(fabric or useful)


def between_hosts(device: str, gpu: str, links: str, per_host: int) -> Level:
    """Links between hosts.

    Parameters
    ----------
    device, gpu, links
        As of `inside_host`.
    per_host
        GPUs of a host. [items]

    Raises
    ------
    UnknownMachine
        When a row names none, and none are usual for its machine.
    """
    part = _network_part(links)
    if not part and (known := entry_by_words("instances", f"{gpu} {links}")):
        part = known["network"].lower()
    fabric = _FABRIC.search(part)
    if not part or (fabric and not _RATE.search(part) and not _COUNT.search(part)):
        if not part and (_form(device, gpu, links) != "nvlink" or _UNSAID.search(links)):
            raise UnknownMachine("the links between hosts are not stated")
        entry = entry_by_words("rates", part)
        if not SOCKETED.search(device):
            return _nearest("through_memory", entry["rate"] if entry else 100)
        usual = _entry_by_device("adapters", device)
        alone = _form(device, gpu, links) != "nvlink"
        count = 1 if alone else max(1, per_host // usual["gpus_each"])
        return replace(_nearest("fabrics", entry["rate"] if entry else usual["rate"]), links=count)
    stated, several = _RATE.search(part), _COUNT.search(part)
    entry = entry_by_words("rates", part)
    rate = float(stated[2]) if stated else float(entry["rate"] if entry else 10)
    if rate <= MANAGEMENT:
        raise UnknownMachine(f"only a network for management is stated ({rate:g} Gb/s)")
    count = next((int(n) for n in several.groups() if n), 1) if several else 1
    if stated and stated[1]:
        count = int(stated[1])
    if not fabric or "tcp" in part:
        return replace(_nearest("tcp", rate), links=count)
    if not SOCKETED.search(device):
        return replace(_nearest("through_memory", rate), links=count)
    return replace(_nearest("efa" if "efa" in part else "fabrics", rate), links=count)


@lru_cache(maxsize=512)
def row_cluster(gpu: str, interconnect: str, gpus: int, per_host: int) -> Cluster:
    """The machine of a row.

    Parameters
    ----------
    gpu, interconnect
        Words of the row.
    gpus, per_host
        GPUs of the job and of a host. [items]

    Raises
    ------
    UnknownMachine
        When there is no such device, or its links are not known.
    """
    device = device_named(gpu)
    if not device:
        raise UnknownMachine(f"no built-in device {gpu}")
    own, text = load_device(device), interconnect.lower()
    precision = usual_precision(own)
    if gpus == 1:
        level = Level(name="host", size=1, latency=0.0, bandwidth=1e12)
        levels: tuple[Level, ...] = (level,)
        name = device
    else:
        whole = entry_by_words("clusters", text)
        if whole is not None:
            cluster = load_cluster(whole["cluster"])
            return replace(cluster, device=own, default_precision=precision)
        levels = inside_host(device, gpu.lower(), text, min(gpus, per_host))
        name = f"{gpu}, {interconnect}"
    host = levels[-1].name
    if gpus > per_host:
        levels = (*levels, between_hosts(device, gpu.lower(), text, per_host))
    return Cluster(
        name=name, device=own, levels=levels, host_level=host, default_precision=precision
    )


def has_peer_access(cluster: Cluster) -> bool:
    """Whether the cards of a host reach each other's memory, by NVLink or over PCIe."""
    words: str = read_words("machines")["no_peer_access"]["devices"]
    return cluster.levels[0].name == "pair" or not re.fullmatch(words, cluster.device.name)
