"""Compare predicted collectives with measured ones: `python -m benchmarks.collectives CSV`.

The table holds published results of nccl-tests and of profilers like it, one row a message size,
collected from public repositories (its `source` and `url` columns say which). Every row is
predicted with the built-in cluster that has the same links. "fitted" systems gave the constants of
their link technology (costmodels/cluster/data/links.toml), "blind" ones did not.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
)
from costmodels.communication.topology import Floats, Topology

LARGE = 1e6


# Only all-reduces of V100 are fitted: the published profile of its reduce-scatter falls short of
# them by a constant third, which is taken for copies that the framework makes.
REDUCE = ("allreduce",)
ALL = ("allreduce", "allgather", "reducescatter")
EFFICIENCY = 0.95


@dataclass(frozen=True, slots=True)
class System:
    """Rows that one cluster predicts: those whose source, GPU and software contain the texts.

    `network_cards` is the number and the bandwidth [B/s] of a host's network cards where they
    differ from the cluster's.
    """

    name: str
    source: str
    gpu: str
    num_hosts: int
    cluster: str
    fitted: tuple[str, ...] = ()
    software: str = ""
    network_cards: tuple[int, float] | None = None


SYSTEMS = (
    System("8x V100 SXM2, nccl-tests 2019", "blog repo deep_", "V100", 1, "dgx1-v100", REDUCE),
    System("8x V100 32 GB, Aceso", "Aceso", "V100", 1, "dgx1-v100", REDUCE),
    System("8x A100, aiconfigurator", "aiconfigurator", "A100", 1, "dgx-a100", ALL),
    System("8x A100, SuperBench", "superbenchmark", "A100", 1, "dgx-a100", ALL),
    System("8x A100, ml-engineering", "stas00", "A100", 1, "dgx-a100", ALL),
    System("8x A100, Hetu-Galvatron", "configs sp_time", "A100", 1, "dgx-a100"),
    System("8x H100, aiconfigurator", "aiconfigurator", "H100", 1, "dgx-h100", ALL),
    System("8x H100, aws-samples", "aws-batch", "H100", 1, "dgx-h100", ALL),
    System("8x H200, ml-engineering", "all_reduce_bench", "H200", 1, "dgx-h200", ALL),
    System("8x Titan X Pascal", "TitanX_Pascal", "TitanX", 1, "titanxp-pcie", REDUCE, "NCCL"),
    System("8x GTX 1080 Ti", "1080Ti", "1080", 1, "titanxp-pcie", REDUCE, "NCCL"),
    System(
        "2x 8 A100, EFA 4x 100 Gb/s",
        "awsome-distributed",
        "A100",
        2,
        "dgx-a100",
        network_cards=(4, EFFICIENCY * 12.5e9),
    ),
    System("2x 8 H100, EFA 8x 400 Gb/s", "awsome-distributed", "H100", 2, "dgx-h100"),
    System(
        "2x 8 H100, TCPX 8x 200 Gb/s",
        "a3-megagpu",
        "H100",
        2,
        "dgx-h100",
        network_cards=(8, EFFICIENCY * 25e9),
    ),
    System("8x 8 H100, NDR with SHARP", "coreweave", "H100", 8, "dgx-h100"),
)


def predicted_time(cluster: Cluster, num_gpus: int, collective: str, size: float) -> Floats:
    """Predict the time of a collective over the first `num_gpus` devices. [s]"""
    num_hosts = -(-num_gpus // cluster.devices_per_host)
    topology = Topology.of(cluster, cluster.shape(num_hosts * cluster.devices_per_host))
    group, rest = [], num_gpus
    for used in topology.shape:
        group.append(min(used, rest))
        rest //= group[-1]
    if collective == "allreduce":
        return all_reduce_time(topology, group, size)
    if collective == "allgather":
        # nccl-tests counts what every rank ends up with.
        return all_gather_time(topology, group, size / num_gpus)
    if collective == "reducescatter":
        return reduce_scatter_time(topology, group, size)
    return all_to_all_time(topology, group, size)


# Bus bandwidth counts this many times (p-1)/p of the buffer (PERFORMANCE.md of nccl-tests).
SHARE = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0, "alltoall": 1.0}


def measured(path: str, system: System) -> Iterator[tuple[str, int, float, float]]:
    """Collective, GPUs, message size [B] and time [s] of the rows that belong to a system."""
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            collective, num_gpus = row["collective"], int(row["gpus"])
            hosts = int(row["nodes"] or (1 if num_gpus <= 8 else 0))
            if (
                system.source not in row["source"]
                or system.gpu not in row["gpu"]
                or hosts != system.num_hosts
                or collective not in SHARE
                or system.software not in row["software"]
                or not float(row["bytes"] or 0)
            ):
                continue
            size, time = float(row["bytes"]), float(row["time_us"] or 0) * 1e-6
            moved = SHARE[collective] * (num_gpus - 1) / num_gpus
            bus_bandwidth = float(row["busbw_GBps"] or 0) * 1e9
            if not time and not bus_bandwidth:
                continue
            time = time or size * moved / bus_bandwidth
            if collective == "allgather" and bus_bandwidth * time > LARGE:
                # Sources differ in whether they count a contribution or the result.
                size = bus_bandwidth * time / moved
            yield collective, num_gpus, size, time


def errors(path: str, system: System) -> dict[tuple[str, str], list[float]]:
    """Relative errors of the predictions, by collective and by "large" or "small"."""
    cluster = load_cluster(system.cluster)
    if system.network_cards is not None:
        links, bandwidth = system.network_cards
        outer = replace(cluster.levels[-1], links=links, bandwidth=bandwidth)
        cluster = replace(cluster, levels=(*cluster.levels[:-1], outer))
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for collective, num_gpus, size, time in measured(path, system):
        error = float(predicted_time(cluster, num_gpus, collective, size)) / time - 1
        found[collective, "large" if size >= LARGE else "small"].append(error)
    return found


def _errors_text(values: list[float]) -> str:
    """Rows, median absolute error, bias (median error)."""
    if not values:
        return f"{'-':>22s}"
    return f"{len(values):6d} {np.median(np.abs(values)):7.0%} {np.median(values):+7.0%}"


def main(arguments: list[str]) -> int:
    """Print the table of all systems."""
    if len(arguments) != 1:
        print("usage: python -m benchmarks.collectives PATH_TO_collectives.csv", file=sys.stderr)
        return 2
    print(__doc__.split("\n\n")[1].replace("\n", " "), "\n")
    print(f"{'':44s}{'':8s}{'1 MB and more':>22s}  {'less than 1 MB':>22s}")
    head = f"{'rows':>6s} {'|error|':>7s} {'bias':>7s}"
    print(f"{'system':30s}{'collective':14s}{'':8s}{head}  {head}")
    for system in SYSTEMS:
        found = errors(arguments[0], system)
        for collective in sorted({key[0] for key in found}):
            kind = "fitted" if collective in system.fitted else "blind"
            large, small = found[collective, "large"], found[collective, "small"]
            texts = f"{_errors_text(large)}  {_errors_text(small)}"
            print(f"{system.name:30s}{collective:14s}{kind:8s}{texts}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
