"""Machines of measured rows of transformers.

As for other rows: words, else what is usual for the device. Where a row states the bus bandwidths
that its job measured before it trained, they describe its links: measured apart from the step, they
tell a slow network or a bad link from a good one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from msgspec.structs import replace

from benchmarks.accuracy.llm.words import entry_of
from benchmarks.accuracy.machines import UnknownMachine, device_named, row_cluster
from benchmarks.accuracy.words import Skip
from costmodels.cluster import Cluster, Level, list_devices, load_device
from costmodels.communication.collectives import all_gather_time, all_reduce_time
from costmodels.communication.topology import Topology
from costmodels.errors import InputError

# Devices that NVLink joins in a GB200 NVL72. [items]
WIDE = 72
# What jobs reduce and gather that measure their links, and how often for one time. No source states
# either: the first makes the links come out as built in, for jobs of 16 to 512 devices; the second
# is usual. [B], [items]
_BUFFER, _REPEATED = 2.0**30, 5
# Checks of hosts make all kinds later by the same time, slow links do not. [s]
_LATE, _ALIKE = 1e-4, 1.7
# That many times what the links take, for all kinds alike, is no matter of links.
_PLAIN = 2.5
# PCIe 5.0 x16: where devices of a host reach less, they do not use NVLink. [B/s]
_PCIE = 64e9


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

    @property
    def over_hosts(self) -> bool:
        """Whether devices of a host reach each other over its memory, slower than PCIe is."""
        return min(self.in_host_all_gather, self.in_host_reduce_scatter) < _PCIE

    def or_faster(self, other: BusBandwidths | None) -> BusBandwidths:
        """The larger of each."""
        if other is None:
            return self
        names = (item.name for item in fields(self))
        return BusBandwidths(**{n: max(getattr(self, n), getattr(other, n)) for n in names})


def llm_device(gpu: str) -> str:
    """The built-in device of a row, or `Skip`."""
    entry = entry_of("devices", gpu.lower().strip())
    name = str(entry["device"]) if entry else device_named(gpu)
    if name not in list_devices():
        raise Skip(f"no built-in device {gpu or '(none stated)'}")
    return name


@lru_cache(maxsize=4096)
def llm_cluster(
    gpu: str,
    gpus: int,
    per_host: int,
    links: str,
    measured: BusBandwidths | None,
    fastest: BusBandwidths | None = None,
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
    measured, fastest
        Bus bandwidths that it measured, and the largest of all jobs on such hosts.

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
    # words on machines know kinds of cards, and not each of them
    cluster = replace(cluster, device=load_device(device))
    if device.endswith("nvl72"):
        cluster = _wide_domain(cluster, gpus)
    if measured is None:
        return cluster
    if fastest is not None and _held_up(_late_inside(cluster, measured, fastest, gpus)):
        # what holds a job up is no matter of its links
        measured = fastest
    return _as_measured(cluster, measured, gpus)


def checks(
    cluster: Cluster, measured: BusBandwidths | None, fastest: BusBandwidths | None, gpus: int
) -> dict[str, float]:
    """What processes take for each rank before they launch a collective, by what a job measured.

    The host launches while the device is at the repetition before, so that repetitions take as long
    as the slower of the two, and the first one both. Inside of a host links are slower, and all
    kinds of collectives are late by the time of one check. Over many hosts checks are slower.

    Parameters
    ----------
    cluster
        The machine of the job.
    measured, fastest
        Its bus bandwidths, and the largest of all jobs on such hosts.
    gpus
        Its devices. [items]
    """
    if measured is None or fastest is None:
        return {}
    near = min(cluster.levels[0].size, gpus)
    late = _late_inside(cluster, measured, fastest, gpus)
    told = _held_up(late)
    inside = _REPEATED * sum(late) / len(late) / near if told else 0.0
    if gpus == near:
        return {"check_near": inside} if told else {}
    shape = cluster.shape(gpus)
    topology, moved = Topology.of(cluster, shape), (1.0 - 1.0 / gpus) * _BUFFER
    alone = float(all_gather_time(topology, shape, _BUFFER / gpus))
    summed = float(all_reduce_time(topology, shape, _BUFFER))
    taken = moved / max(measured.all_gather, measured.reduce_scatter)
    if not told:
        # no job on such hosts ran without, or this one does not; far beyond the links it is plain
        held_up = taken > _PLAIN * alone and 2.0 * moved / measured.all_reduce > _PLAIN * summed
        each = (taken - alone / _REPEATED) / gpus
        return {"check_near": each, "check_far": each} if held_up else {}
    # within a tenth of the links nothing tells what the hosts take
    outside = (taken - alone / _REPEATED - near * inside) / (gpus - near)
    return {"check_near": inside, "check_far": max(outside, 0.0) if taken > 1.1 * alone else 0.0}


def _late_inside(
    cluster: Cluster, measured: BusBandwidths, fastest: BusBandwidths, gpus: int
) -> tuple[float, float, float]:
    """How much longer each kind of collective took in a host than in the fastest jobs. [s]

    Parameters
    ----------
    cluster, measured, fastest, gpus
        As of `checks`.
    """
    near = min(cluster.levels[0].size, gpus)
    moved = _BUFFER * (1.0 - 1.0 / near)
    return (
        2.0 * moved * (1.0 / measured.in_host_all_reduce - 1.0 / fastest.in_host_all_reduce),
        moved * (1.0 / measured.in_host_all_gather - 1.0 / fastest.in_host_all_gather),
        moved * (1.0 / measured.in_host_reduce_scatter - 1.0 / fastest.in_host_reduce_scatter),
    )


def _held_up(late: tuple[float, float, float]) -> bool:
    """Whether all kinds of collectives are late by the same time."""
    return min(late) > _LATE and max(late) < _ALIKE * min(late)


def buffers(measured: BusBandwidths | None) -> dict[str, float]:
    """What communicators hold of a device, where a job's bandwidths tell that: figures of runtimes.

    Where devices cannot reach each other, NCCL has its buffers in the memory of the host
    (NVIDIA/nccl issue 521). That this is so wherever they are slower than PCIe is an inference.

    Parameters
    ----------
    measured
        Bus bandwidths of the job.
    """
    sizes = ("communicator", "communicator_of_two", "switch_buffer", "switch_tree")
    return dict.fromkeys(sizes, 0.0) if measured is not None and measured.over_hosts else {}


def _wide_domain(cluster: Cluster, gpus: int) -> Cluster:
    """A machine whose hosts share NVLink, 72 devices of them, and a network beyond."""
    inner = replace(cluster.levels[0], name="host", size=min(gpus, WIDE))
    if gpus <= WIDE:
        return replace(cluster, levels=(inner,))
    if gpus % WIDE:
        inner = replace(inner, size=next(n for n in range(WIDE, 0, -1) if gpus % n == 0))
    outer = cluster.levels[-1]
    return replace(cluster, levels=(inner, replace(outer, links=inner.size)))


def _as_measured(cluster: Cluster, measured: BusBandwidths, gpus: int) -> Cluster:
    """A machine over whose links inside a host a buffer takes as long as the row measured.

    Those between hosts stay as they are built in: what was measured over all devices at once is a
    ring's latency more than a bandwidth, and no group of a step is that large.
    """
    inner, members = cluster.levels[0], min(cluster.levels[0].size, gpus)
    ring = min(measured.in_host_all_gather, measured.in_host_reduce_scatter)
    if measured.over_hosts:
        inner = replace(inner, bandwidth=min(inner.bandwidth, ring / inner.links))
        return replace(cluster, levels=(_without_switches(inner), *cluster.levels[1:]))
    if members == 1:
        return cluster
    moved = (1.0 - 1.0 / members) * _BUFFER
    taken = moved / ring - copied_beside(cluster)
    latency = inner.start_latency + (members - 1) * inner.latency
    bandwidth = moved / _flowing(taken, latency, inner.ramp) / inner.links
    inner = replace(inner, bandwidth=min(inner.bandwidth, bandwidth))
    if inner.in_network_bandwidth is not None:
        # bus bandwidth counts 2 (p - 1) / p of the buffer, a switch that adds up gets (p + 1) / p
        assert inner.in_network_latency is not None, "switches that add up have a latency"
        latency = inner.start_latency + 2.0 * inner.in_network_latency
        taken = 2.0 * moved / measured.in_host_all_reduce
        added = (1.0 + 1.0 / members) * _BUFFER / _flowing(taken, latency, inner.ramp)
        added = min(inner.in_network_bandwidth, added / inner.links)
        inner = replace(inner, in_network_bandwidth=added)
    return replace(cluster, levels=(inner, *cluster.levels[1:]))


def copied_beside(cluster: Cluster) -> float:
    """What a measured all-gather or reduce-scatter takes besides its transfer. [s]

    PyTorch gathers into, and scatters from, a list of tensors through one flat tensor: the buffer
    is read and written once more on the device (c10d, ProcessGroupNCCL, allgather and
    reduce_scatter). That jobs measured so is an inference: over the same NVLink all-gathers reach
    57 % of the bus bandwidth of all-reduces here and 75 % in nccl-tests, and this is the rest.

    Parameters
    ----------
    cluster
        The machine of the job.
    """
    return 2.0 * _BUFFER / cluster.device.memory_bandwidth


def _flowing(taken: float, latency: float, ramp: float) -> float:
    """How long bytes flow in a collective of that time: it is `collective_time` backwards. [s]

    Parameters
    ----------
    taken, latency
        Of the whole, and of that its latencies. [s]
    ramp
        How slowly the bandwidth is reached.
    """
    rising = ramp * math.sqrt(latency)
    root = (math.sqrt(rising**2 + 4.0 * max(taken - latency, latency)) - rising) / 2.0
    return root**2


def _without_switches(level: Level) -> Level:
    """Links of a host whose switches do not add up."""
    return replace(level, in_network_latency=None, in_network_bandwidth=None)
