"""Machines of measured rows of transformers.

As for other rows: words, else what is usual for the device. Where a row states the bus bandwidths
that its job measured before it trained, they describe its links: measured apart from the step, they
tell a slow network or a bad link from a good one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.accuracy.llm.words import entry_of
from benchmarks.accuracy.machines import UnknownMachine, device_named, row_cluster
from benchmarks.accuracy.words import Skip
from costmodels.cluster import Cluster, list_devices
from costmodels.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class BusBandwidths:
    """Bus bandwidths that a row measured: of all its devices, and of those of a host. [B/s]"""

    all_gather: float
    reduce_scatter: float
    all_reduce: float
    in_host_all_gather: float
    in_host_reduce_scatter: float
    in_host_all_reduce: float

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> BusBandwidths | None:
        """What a row states, None where it lacks any of them."""
        values = {}
        for name in ("all_gather", "reduce_scatter", "all_reduce"):
            for field, column in ((name, name), (f"in_host_{name}", f"{name}_in_host")):
                try:
                    values[field] = float(row.get(f"{column}_gb_per_s", "")) * 1e9
                except ValueError:
                    return None
        return cls(**values) if min(values.values()) > 0.0 else None


def llm_device(gpu: str) -> str:
    """The built-in device of a row, or `Skip`."""
    entry = entry_of("devices", gpu.lower().strip())
    name = str(entry["device"]) if entry else device_named(gpu)
    if name not in list_devices():
        raise Skip(f"no built-in device {gpu or '(none stated)'}")
    return name


@lru_cache(maxsize=4096)
def llm_cluster(
    gpu: str, gpus: int, per_host: int, links: str, measured: BusBandwidths | None
) -> Cluster:
    """The machine of a row.

    Parameters
    ----------
    gpu
        Words on its device.
    gpus, per_host
        GPUs of the job and of a host. [items]
    links
        Words on links between hosts.
    measured
        Bus bandwidths that it measured.

    Raises
    ------
    Skip
        When there is no such device, or its links are not known.
    """
    device = llm_device(gpu)
    try:
        cluster = row_cluster(device, links, gpus, per_host)
        cluster.shape(gpus)
    except UnknownMachine as error:
        raise Skip(str(error)) from None
    except InputError as error:
        raise Skip(str(error).split(",")[0]) from None
    return cluster if measured is None else _as_measured(cluster, measured, gpus)


def _as_measured(cluster: Cluster, measured: BusBandwidths, gpus: int) -> Cluster:
    """A machine with the bandwidths that were measured on it."""
    return cluster
