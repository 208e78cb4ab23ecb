"""Levels of links of a machine that was found: NVLink or PCIe inside a host, adapters outside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from costmodels.cluster import Cluster, Device, Level
from costmodels.cluster.load import link_level
from planner.request.machine.nvidia import Gpu, Wiring

# NVLink of a device by what its name begins with: technology, and links of one GPU in all.
_NVLINKS: Final[Mapping[str, tuple[str, int]]] = {
    "b200": ("nvlink5", 18),
    "h100": ("nvlink4", 18),
    "h200": ("nvlink4", 18),
    "a100": ("nvlink3", 12),
    "a30": ("nvlink3", 4),
    "a40": ("nvlink3", 4),
    "a6000": ("nvlink3", 4),
    "a5000": ("nvlink3", 4),
    "3090": ("nvlink3", 4),
    "v100": ("nvlink2", 6),
    "titanv": ("nvlink2", 2),
    "rtx8000": ("nvlink2", 2),
    "2080ti": ("nvlink2", 2),
    "2080": ("nvlink2", 2),
}
# Technologies whose switches add up by themselves, from so many GPUs on.
_ADDING: Final[Mapping[str, str]] = {"nvlink4": "nvlink4-sharp", "nvlink5": "nvlink5-sharp"}
_FEWEST_ADDING: Final = 4
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec", re.ASCII)
_NETWORKS: Final = ((100.0, "infiniband-edr"), (200.0, "infiniband-hdr"), (400.0, "infiniband-ndr"))


def host_levels(
    device: Device,
    per_host: int,
    wiring: Wiring,
    gpus: Sequence[Gpu],
    akin: Cluster,
    notes: list[str],
) -> tuple[Level, ...]:
    """Levels of a host.

    Parameters
    ----------
    device, per_host
        The GPUs, and how many a host has. [items]
    wiring, gpus
        What nvidia-smi says of them.
    akin
        A machine like it.
    notes
        Takes what was not found.
    """
    matrix = [row[:per_host] for row in wiring.links[:per_host]]
    if per_host == 1:
        return (_pcie(1, gpus, across=False),)
    if not matrix:
        return _as_akin(per_host, akin, notes)
    known = next((value for name, value in _NVLINKS.items() if device.name.startswith(name)), None)
    counts = {sum(row) for row in matrix}
    if counts == {0}:
        generation = gpus[0].pcie or 3
        if generation > 3:
            notes.append(
                f"PCIe {generation}.0 as PCIe 3.0 was measured, but {2 ** (generation - 3)} times "
                "as fast"
            )
        return _over_pcie(per_host, wiring, gpus)
    link, full = known or ("nvlink3", max(counts))
    if known is None:
        notes.append(f"NVLink of {device.name} as nvlink3, since its own is not known")
    peers = {n for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j}
    partners = {sum(n > 0 for n in row) for row in matrix}
    if len(peers) == 1 and peers == {full} and per_host > 2:
        behind = _ADDING.get(link, link) if per_host >= _FEWEST_ADDING else link
        return (replace(link_level(behind), name="host", size=per_host, links=full),)
    if len(peers) == 1:
        (each,) = peers
        level = replace(link_level(link), name="host", size=per_host, links=each * (per_host - 1))
        return (replace(level, peer_links=float(each)) if per_host > 2 else level,)
    if (
        partners == {1}
        and per_host % 2 == 0
        and all(matrix[i][i + 1] for i in range(0, per_host, 2))
    ):
        pair = replace(link_level(link), name="pair", size=2, links=max(counts))
        return (pair, *_over_pcie(per_host // 2, wiring, gpus))
    notes.append("NVLinks that join some GPUs and not others as spread evenly over all neighbours")
    links = max(min(counts), 1)
    level = replace(link_level(link), name="host", size=per_host, links=links)
    return (replace(level, peer_links=links / max(partners)),)


def _as_akin(per_host: int, akin: Cluster, notes: list[str]) -> tuple[Level, ...]:
    inner = akin.levels[: akin.host_index + 1]
    notes.append(
        f"links within a host as those of {akin.name}, since there is no matrix of nvidia-smi"
    )
    if per_host == akin.devices_per_host:
        return inner
    return (replace(inner[0], name="host", size=per_host),)


def _over_pcie(children: int, wiring: Wiring, gpus: Sequence[Gpu]) -> tuple[Level, ...]:
    if wiring.across and children >= 4 and children % 2 == 0:
        inner = replace(_pcie(children // 2, gpus, across=False), name="socket")
        return inner, _pcie(2, gpus, across=True)
    return (_pcie(children, gpus, across=wiring.across),)


def _pcie(children: int, gpus: Sequence[Gpu], *, across: bool) -> Level:
    level = link_level("pcie3-sockets" if across else "pcie3")
    faster = 2.0 ** max(((gpus[0].pcie if gpus else None) or 3) - 3, 0)
    return replace(level, name="host", size=children, bandwidth=level.bandwidth * faster)


def network_level(
    hosts: int, per_host: int, rates: Sequence[str], akin: Cluster, notes: list[str]
) -> Level:
    """The level that joins hosts.

    Parameters
    ----------
    hosts, per_host
        Hosts, and GPUs of each. [items]
    rates
        Rates of the active ports of the network adapters of this host.
    akin
        A machine like it.
    notes
        Takes what was not found.
    """
    found = [float(match[1]) for match in map(_RATE.search, rates) if match]
    if not found:
        outer = akin.levels[-1]
        notes.append(
            f"the network between hosts as that of {akin.name}, since no adapters are found"
        )
        return replace(outer, name="network", size=hosts)
    fastest = max(found)
    known, link = min(_NETWORKS, key=lambda one: abs(one[0] - fastest))
    ports = sum(rate == fastest for rate in found)
    if ports > per_host:
        notes.append(f"{per_host} of {ports} network adapters, one a GPU: others may be for files")
    level = replace(link_level(link), name="network", size=hosts, links=min(ports, per_host))
    if known != fastest:
        notes.append(f"adapters of {fastest:g} Gb/s as {link}, at their own rate")
        level = replace(level, bandwidth=level.bandwidth * fastest / known)
    return level
