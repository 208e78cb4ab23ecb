"""The machine of a job as a cluster: its hosts and GPUs, NVLink or PCIe, and the network.

What could not be found is taken from a built-in cluster with the same GPUs, or else from the one
that is used where none is given; each such thing is said in a sentence. Assumes that all hosts of
the job are like this one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from costmodels.cluster import Cluster, Device, list_clusters, load_cluster, load_device
from costmodels.errors import InputError, plain
from costmodels.units import format_items
from planner.request.inputs.question import AUTO, DEFAULT_CLUSTER
from planner.request.machine.environment import JobSize, read_job
from planner.request.machine.links import host_levels, network_level
from planner.request.machine.nvidia import (
    QUERY,
    TOPOLOGY,
    Gpu,
    Wiring,
    built_in_device,
    read_gpus,
    read_topology,
)

__all__ = ["AUTO", "Detected", "Probe", "detect_cluster"]

_PATIENCE: Final = 30.0
_ADAPTERS: Final = Path("/sys/class/infiniband")


def _run(command: Sequence[str]) -> str:
    """What a command prints; nothing where it is missing or fails."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _port_rates() -> list[str]:
    """The rate of the active ports of each network adapter, such as `200 Gb/sec (4X HDR)`."""
    found = []
    try:
        for rate in sorted(_ADAPTERS.glob("*/ports/*/rate")):
            if "ACTIVE" in rate.with_name("state").read_text(encoding="utf-8"):
                found.append(rate.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        pass
    return found


class Probe(Struct, frozen=True, kw_only=True):
    """Where a machine is asked what it is.

    Parameters
    ----------
    environment
        Variables of the job.
    run
        What a command prints, empty where it is missing or fails.
    port_rates
        Rates of the active ports of network adapters.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Callable[[Sequence[str]], str] = _run
    port_rates: Callable[[], Sequence[str]] = _port_rates


class Detected(Struct, frozen=True, kw_only=True):
    """A cluster that was found, and what of it was not, a sentence each."""

    cluster: Cluster
    notes: tuple[str, ...]


def detect_cluster(probe: Probe | None = None) -> Detected:
    """The machine that the job runs on.

    Raises
    ------
    InputError
        When nothing says what it is, its GPUs are not built in, or what is said does not fit.
    """
    probe = probe or Probe()
    job = read_job(probe.environment)
    gpus = _gpus_of_job(read_gpus(probe.run(QUERY)), probe.environment)
    if not gpus and not job.source:
        raise InputError(
            "the cluster auto must be told by SLURM, torchrun or nvidia-smi but none of them is "
            "there; give --cluster with a name of 'planner clusters' or a cluster file"
        )
    wiring = read_topology(probe.run(TOPOLOGY)) if gpus else Wiring()
    notes: list[str] = []
    device = _device(gpus, job, notes)
    akin = _akin(device)
    hosts, per_host = _hosts_and_gpus(job, gpus, akin, notes)
    levels = host_levels(device, per_host, wiring, gpus, akin, notes)
    if hosts > 1:
        levels = (*levels, network_level(hosts, per_host, probe.port_rates(), akin, notes))
    told = [f"{len(gpus)} GPUs in nvidia-smi"] if gpus else []
    told += [job.source] if job.source else []
    cluster = Cluster(
        name=f"auto-{hosts}x{per_host}-{device.name}",
        device=device,
        levels=levels,
        host_level=levels[-2 if hosts > 1 else -1].name,
        default_precision=_usual_precision(device, akin),
        host=akin.host if akin.device == device else None,
        description=f"{format_items(hosts, 'host')} of {per_host} {device.name}, found",
        source=f"Found by {' and '.join(told)}.",
    )
    return Detected(cluster=cluster, notes=(_found(hosts, per_host, device, told), *notes))


def _found(hosts: int, per_host: int, device: Device, told: Sequence[str]) -> str:
    places = f"{hosts} hosts of {per_host}" if hosts > 1 else f"one host of {per_host}"
    return f"cluster of {places} x {device.name}, told by {' and '.join(told)}"


def _gpus_of_job(gpus: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that the job may use."""
    named = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = [int(text) for text in named if re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII)]
    if len(chosen) == len(named) and chosen and max(chosen) < len(gpus):
        return [gpus[number] for number in chosen]
    return gpus


def _device(gpus: Sequence[Gpu], job: JobSize, notes: list[str]) -> Device:
    """The built-in device that the GPUs are."""
    names = Counter(gpu.name for gpu in gpus)
    if len(names) > 1:
        several = ", ".join(f"{count} x {plain(name)}" for name, count in names.items())
        raise InputError.rule(
            "the GPUs of a host",
            "be alike",
            several,
            "choose some of them by CUDA_VISIBLE_DEVICES, or give a cluster file",
        )
    if gpus:
        known = built_in_device(gpus[0].name, gpus[0].memory)
        if known is None:
            raise InputError(
                f"the GPU {plain(gpus[0].name)} must be a built-in device but is none; give a "
                "cluster file with a [device] table (docs/cluster-files.md)"
            )
        return load_device(known)
    known = built_in_device(job.gpu_type) if job.gpu_type else None
    if known is not None:
        notes.append(f"device {known} for '{plain(job.gpu_type)}' of SLURM, without nvidia-smi")
        return load_device(known)
    usual = load_cluster(DEFAULT_CLUSTER)
    notes.append(
        f"device {usual.device.name} of {usual.name}, since there is no nvidia-smi to say which GPU"
    )
    return usual.device


def _akin(device: Device) -> Cluster:
    """A built-in cluster with such devices, or else the one where none is given."""
    usual = load_cluster(DEFAULT_CLUSTER)
    if device.name == usual.device.name:
        return usual
    named = [load_cluster(name) for name in list_clusters()]
    alike = [cluster for cluster in named if cluster.device.name == device.name]
    # those of NVIDIA stand for what most machines are made of
    alike.sort(key=lambda cluster: (not cluster.name.startswith("dgx"), cluster.name))
    return alike[0] if alike else usual


def _hosts_and_gpus(
    job: JobSize, gpus: Sequence[Gpu], akin: Cluster, notes: list[str]
) -> tuple[int, int]:
    """Hosts, and GPUs of each.

    Parameters
    ----------
    job, gpus, akin
        What the environment and nvidia-smi say, and a machine like it.
    notes
        Takes what they do not say.
    """
    per_host = job.gpus_per_host
    if per_host is not None and gpus and per_host > len(gpus):
        raise InputError.rule(
            f"the GPUs of a host, as {job.source} says,",
            f"be at most {len(gpus)}, those of nvidia-smi",
            per_host,
            "start one rank a GPU, or give a cluster file",
        )
    if per_host is None:
        per_host = len(gpus) or akin.devices_per_host
        if not gpus:
            notes.append(f"{per_host} GPUs a host, as {akin.name} has, since nothing says how many")
    if job.hosts is None:
        notes.append("one host, since neither SLURM nor torchrun says how many")
    return job.hosts or 1, per_host


def _usual_precision(device: Device, akin: Cluster) -> str:
    if akin.device == device:
        return akin.default_precision
    rates = device.peak_flops
    fast = [name for name in ("bf16", "fp16") if rates.get(name, 0.0) > rates.get("fp32", 0.0)]
    return (fast or ["fp32"])[0]
