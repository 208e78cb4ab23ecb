"""The machines of measured training rows, put together from levels of links.

Built-in clusters where there is one; else levels by the words of a row on its links. GeForce cards
since the RTX 20 series, and cards behind several root ports, reach each other through the memory of
the host: such levels take what was measured on HKBU's hosts of four RTX 2080 Ti. Bridges join pairs
of cards. What a row does not say (which NVLink an A100 in an SXM socket has) follows from the card.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from costmodels.cluster import Cluster, Device, Level, load_cluster, load_device


class UnknownMachine(Exception):
    """Why a machine cannot be put together."""


DEVICES = (
    (
        r"max-q|laptop|m60|radeon|10 ?bit|1080|2070|2080 super|3070|3080|4090|ada|a30\b|not stated",
        "",
    ),
    (r"v100.*32", "v100-32gb"),
    (r"v100", "v100-16gb"),
    (r"p100", "p100"),
    (r"k80", "k80"),
    (r"titan ?xp", "titanxp"),
    (r"titan rtx|rtx ?[68]000", "rtx8000"),
    (r"2080 ti", "2080ti"),
    (r"3090", "3090"),
    (r"a6000", "a6000"),
    (r"a100.*80", "a100-80gb"),
    (r"a100", "a100-40gb"),
    (r"h100", "h100"),
    (r"h200", "h200"),
)
HKBU = ((r"10gbe", "hkbu-10gbe"), (r"100gbe", "hkbu-100gbe"), (r"100gbib", "hkbu-ib"))
# Links between hosts: text, device, cluster whose outer level they are, links of a host.
BETWEEN = (
    (r"dgx-1v\) \+ infiniband|nvlink2 / infiniband edr", "v100", "dgx1-v100", 4),
    (r"infiniband edr 100gb/s|ib edr 100gb", "v100|p100|a100", "dgx1-v100", 1),
    (r"dgx a100\) \+ infiniband|8x connectx-6|8x mellanox|8x hdr", "a100", "dgx-a100", 8),
    (r"4x connectx-6 ib hdr|compute: 4", "a100", "dgx-a100", 4),
    (r"2x connectx-6 ib hdr 200gb", "a100", "dgx-a100", 2),
)
_BRIDGES = {"2080ti": 2, "rtx8000": 2, "3090": 4, "a100-40gb": 12, "a100-80gb": 12}


def device_of(text: str) -> str:
    """The built-in device of a row, "" for none."""
    for pattern, name in DEVICES:
        if re.search(pattern, text, re.IGNORECASE):
            return name
    return ""


def _usual(device: Device) -> str:
    return "fp32" if "fp32" in device.peak_flops else next(iter(device.peak_flops))


def _host_memory(size: int, speed: float = 1.0) -> Level:
    """Cards that reach each other through the memory of their host."""
    host = load_cluster("hkbu-10gbe").levels[0]
    return replace(host, name="host", size=size, bandwidth=host.bandwidth * speed)


def _pcie(device: str, text: str, members: int) -> tuple[Level, ...]:
    """Levels of cards on PCIe: a bridge between pairs where there is one."""
    if device in ("p100", "titanxp", "k80"):
        # these cards reach each other over PCIe switches
        level = load_cluster("titanxp-pcie").levels[0]
        inside: tuple[Level, ...] = (replace(level, name="host", size=members),)
    else:
        inside = (_host_memory(members, 2.0 if device.startswith("a100") else 1.0),)
    if "bridge" in text and members % 2 == 0:
        base = load_cluster("dgx-a100" if device.startswith("a100") else "dgx1-v100").levels[0]
        pair = replace(base, name="pair", size=2, links=_BRIDGES.get(device, 2), peer_links=None)
        inside = (pair, replace(inside[0], size=members // 2)) if members > 2 else (pair,)
    return inside


def _inside(device: str, text: str, gpu: str, members: int) -> tuple[Level, ...]:
    """Levels inside a host."""
    socketed = re.search(r"sxm|dgx", gpu) or re.search(r"nvlink|nvswitch|dgx", text)
    if "bridge" in text or not socketed or re.search(r"-pcie|pcie ", gpu):
        if not re.search(r"pcie|bridge|n/a", text) and "pcie" not in gpu:
            raise UnknownMachine("the links inside a host are not stated")
        return _pcie(device, text, members)
    if device.startswith("v100"):
        level = load_cluster("dgx1-v100").levels[0]
        if "nvswitch" in text or "dgx-2" in text or members > 8:
            level = replace(level, peer_links=None)
    elif device.startswith("a100"):
        level = load_cluster("dgx-a100").levels[0]
    elif device.startswith("h"):
        level = load_cluster("dgx-h100").levels[0]
    elif device == "p100":
        # four links of 20 GB/s a card (NVIDIA P100 datasheet), at the efficiency of NVLink 2
        level = load_cluster("dgx1-v100").levels[0]
        level = replace(level, links=4, peer_links=1.0, bandwidth=level.bandwidth * 20.0 / 25.0)
    else:
        raise UnknownMachine(f"no built-in links inside a host of {device}")
    return (replace(level, name="host", size=members),)


def _between(text: str, device: str) -> Level:
    for pattern, devices, cluster, links in BETWEEN:
        if re.search(pattern, text) and re.search(devices, device):
            network = load_cluster(cluster).levels[-1]
            return replace(network, name="network", size=4096, links=links)
    raise UnknownMachine("the links between hosts are not stated, or not built in")


@lru_cache(maxsize=512)
def machine(gpu: str, interconnect: str, gpus: int, per_host: int) -> Cluster:
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
    device = device_of(gpu)
    if not device:
        raise UnknownMachine(f"no built-in device {gpu}")
    own, text = load_device(device), interconnect.lower()
    if gpus == 1:
        alone = Level(name="host", size=1, latency=0.0, bandwidth=1e12)
        return Cluster(
            name=device,
            device=own,
            levels=(alone,),
            host_level="host",
            default_precision=_usual(own),
        )
    if device == "2080ti" and "pcie3 in the node" in text:
        name = next((n for p, n in HKBU if re.search(p, text)), "hkbu-10gbe")
        return load_cluster(name)
    if "nvlink2 (4 gpus)" in text:
        return replace(load_cluster("abci"), device=own, default_precision="fp32")
    members = min(gpus, per_host)
    levels = _inside(device, text, gpu.lower(), members)
    host = levels[-1].name
    if gpus > per_host:
        levels = (*levels, _between(text, device))
    return Cluster(
        name=f"{device}, {interconnect}",
        device=own,
        levels=levels,
        host_level=host,
        default_precision=_usual(own),
    )
