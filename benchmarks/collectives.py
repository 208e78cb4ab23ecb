"""Compare predicted collectives with measured ones: `python -m benchmarks.collectives CSV`.

The table holds published results of nccl-tests and of profilers like it, one row a message size,
collected from public repositories (its `source` and `url` columns say which). Every row is
predicted with the built-in cluster that has the same links. "fitted" systems gave the constants of
their link technology (costmodels/cluster/data/links.toml), "blind" ones did not. All-reduces of 2
to 32 hosts over EFA lie with the project: `benchmarks/published/data/efa_all_reduce.csv`.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodels.cluster import load_cluster
from costmodels.communication.calibration import MeasuredCollective, collective_times

LARGE = 1e6


# Only all-reduces of V100 are fitted: the published profile of its reduce-scatter falls short of
# them by a constant third, which is taken for copies that the framework makes.
REDUCE = ("allreduce",)
ALL = ("allreduce", "allgather", "reducescatter")


@dataclass(frozen=True, slots=True)
class System:
    """Rows that one cluster predicts: those whose source, GPU and software contain the texts."""

    name: str
    source: str
    gpu: str
    num_hosts: int
    cluster: str
    fitted: tuple[str, ...] = ()
    software: str = ""


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
    System("2x 8 A100, EFA 4x 100 Gb/s", "awsome-dist", "A100", 2, "aws-p4de.24xlarge", REDUCE),
    System("2x 8 H100, EFA 32x 100 Gb/s", "awsome-dist", "H100", 2, "aws-p5.48xlarge", REDUCE),
    System("2x 8 H100, TCPX 8x 200 Gb/s", "a3-megagpu", "H100", 2, "gcp-a3-megagpu", REDUCE),
    System("8x B200, ml-engineering", "P6-B200", "B200", 1, "aws-p6-b200.48xlarge", REDUCE),
    System("4x 8 B200, EFA 8x 400 Gb/s", "P6-B200", "B200", 4, "aws-p6-b200.48xlarge", REDUCE),
    System("8x B200, Vultr", "Vultr", "B200", 1, "dgx-b200"),
    System("2x 8 B200, NDR, Vultr", "Vultr", "B200", 2, "dgx-b200"),
    System("8x 8 H100, NDR with SHARP", "coreweave", "H100", 8, "dgx-h100"),
    *(
        System(f"{hosts}x 8 H100, EFA, NCCL 2.28", "crazyguitar", "H100", hosts, "aws-p5.48xlarge")
        for hosts in (2, 4, 8, 16, 32)
    ),
)


# Bus bandwidth counts this many times (p-1)/p of the buffer (PERFORMANCE.md of nccl-tests).
_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
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
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for collective, num_gpus, size, time in measured(path, system):
        row = MeasuredCollective(
            collective=_NAMES[collective],
            num_hosts=system.num_hosts,
            num_gpus=num_gpus,
            num_bytes=size,
            seconds=time,
        )
        error = float(collective_times(cluster, [row])[0]) / time - 1
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
