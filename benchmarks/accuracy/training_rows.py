"""Rows of measured distributed CNN training, in the planner's terms.

A row becomes a run where its network, machine, precision, batch and schedule are known here, else
it is left out with the reason. What a row on one GPU must share with one on several to calibrate
its computation is `kin`: publication, network, GPU, precision, framework, machine and batch a GPU.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy.rows import IMAGENET_SAMPLES, NETWORKS, Skip, precision_of, source_group
from benchmarks.accuracy.training_machines import UnknownMachine, machine
from costmodels.cluster import Cluster
from costmodels.errors import InputError
from costmodels.simulation import Runtime, load_runtime

# Rows that cannot say how fast a step is, by their notes.
MARKS = (
    (r"suspicious", "marked as suspicious"),
    (r"loader bound|input-bound", "bound by its data loader, as its notes say"),
    (r"start-up", "includes the start of the run, as its notes say"),
)
# Schedules: strategy, framework, runtime.
SCHEDULES = (
    (r"no overlap \(bsp\)", "", "horovod-fused"),
    (r"overlapped \(wfbp", "", "horovod"),
    (r"merged gradients \(mg-wfbp\)", "", "mg-wfbp"),
    (r"allreduce, bytescheduler", "", "horovod-partitioned"),
    (r"parameter server(, no overlap| \(byteps\))", "byteps", "byteps"),
    (r"parameter_server", "", "tf-parameter-server"),
    (r"replicated", "", "tf-replicated"),
    (r"^dp( allreduce| ring allreduce| ddp)?$", "horovod", "horovod"),
    (r"^dp( allreduce| ring allreduce| ddp)?$", "", "ddp"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A measured step.

    Parameters
    ----------
    source
        Rows that are summed up together.
    model, cluster, gpus, batch, precision
        What ran; the batch is that of all GPUs.
    runtime
        The framework's runtime.
    seconds
        Measured time of a step. [s]
    winograd
        Whether the framework lets its library use Winograd's algorithm.
    kin
        What a row on one GPU must share to calibrate this one.
    family
        What a row on one GPU of another publication must share to do so where none of the same
        has: network, GPU, precision and framework.
    group
        Rows that may be ranked against each other have the same.
    label
        For people.
    """

    source: str
    model: str
    cluster: Cluster
    gpus: int
    batch: int
    precision: str
    runtime: Runtime
    seconds: float
    winograd: bool
    kin: tuple[str, ...]
    family: tuple[str, ...]
    group: str
    label: str


def _model(text: str) -> str:
    for pattern, answer in NETWORKS:
        found = re.search(pattern, text, re.IGNORECASE)
        if found:
            return found.expand(answer) if answer else ""
    return ""


def _seconds(row: Mapping[str, str], batch: int, model: str) -> float:
    value, metric = float(row["value"]), row["metric"]
    if metric == "throughput":
        return batch / value
    if metric == "iteration_time_min_over_epochs":
        return value / 1e3
    if metric == "train_epoch_time_median" and model.startswith("resnet"):
        return value * batch / IMAGENET_SAMPLES
    raise Skip(f"{metric} is no time of a step")


def runtime_of(strategy: str, framework: str, hosts: int) -> Runtime:
    """The runtime of a row, or `Skip`."""
    strategy, framework = strategy.lower(), framework.lower()
    name = next(
        (n for p, f, n in SCHEDULES if re.search(p, strategy) and re.search(f, framework)), ""
    )
    if not name:
        if "nn.dataparallel" in strategy:
            raise Skip("one process scatters and gathers (nn.DataParallel)")
        raise Skip(f"schedule not known: {strategy.split(':')[0]}")
    runtime = load_runtime(name)
    if name == "horovod" and "horovod 0.19" in framework:
        # defaults until Horovod 0.21 (horovod pull request 2468)
        return replace(runtime, cycle=5e-3, fusion=64 * 2.0**20)
    if name != "byteps":
        return runtime
    overlap = "no overlap" not in strategy
    if hosts == 1:
        # without other hosts nothing is sent to a server: partitions are reduced inside the host
        return replace(load_runtime("ddp"), bucket=runtime.bucket, overlap=overlap, name="byteps")
    return replace(runtime, servers=hosts, overlap=overlap)


def _system(notes: str) -> str:
    """The machine that the notes name, "" for none."""
    found = re.search(r"system ([^;]+)", notes)
    return found.group(1).strip() if found else ""


def _framework(text: str) -> str:
    """The framework without its version; the first that is named."""
    found = re.search(r"mxnet|pytorch|tensorflow|tf|oneflow|paddle|chainer|mindspore", text.lower())
    return found.group(0) if found else text


def read(row: Mapping[str, str]) -> TrainingRow:
    """A row in the planner's terms, or `Skip` with the reason."""
    model = _model(row["model"])
    if not model:
        raise Skip(f"no built-in network {row['model']}")
    if not row["gpus"] or not (row["global_batch"] or row["batch_per_gpu"]):
        raise Skip("number of GPUs or batch not stated")
    for pattern, reason in MARKS:
        if re.search(pattern, row["notes"], re.IGNORECASE):
            raise Skip(reason)
    gpus = int(row["gpus"])
    per_host = int(float(row["gpus_per_node"] or gpus))
    links = row["interconnect"]
    network = re.search(r"network ([^;]+)", row["notes"])
    if gpus > 1 and network and "PCIe3 in the node" in links:
        links = f"PCIe3 in the node + {network.group(1)}"
    try:
        cluster = machine(row["gpu"], links, gpus, per_host)
        cluster.shape(gpus)
    except UnknownMachine as error:
        raise Skip(str(error)) from None
    except InputError as error:
        raise Skip(str(error).split(",")[0]) from None
    batch = int(float(row["global_batch"] or float(row["batch_per_gpu"]) * gpus))
    precision = precision_of(row["precision"], cluster.device)
    runtime = load_runtime("ddp")
    if gpus > 1:
        runtime = runtime_of(row["strategy"], row["framework"], -(-gpus // per_host))
        if runtime.name == "byteps" and "RDMA" in links:
            runtime = replace(runtime, stack_bandwidth=float("inf"))
    real = "real data" if "real data" in row["notes"] else ""
    kin = (
        *(row["source"], model, row["gpu"], row["precision"], row["framework"]),
        *(_system(row["notes"]), real, str(batch // gpus)),
    )
    return TrainingRow(
        source=source_group(row["source"]),
        model=model,
        cluster=cluster,
        gpus=gpus,
        batch=batch,
        precision=precision,
        runtime=runtime,
        seconds=_seconds(row, batch, model),
        winograd="chainer" not in row["framework"].lower(),
        kin=kin,
        family=(
            *(model, re.sub(r"-\d+gb$", "", cluster.device.name), precision),
            _framework(row["framework"]),
        ),
        group=", ".join(part for part in kin if part),
        label=(
            f"{row['model']}, {gpus} x {row['gpu']}, {batch} samples, {row['precision']}, "
            f"{row['framework']}, {row['strategy']}, {links}"
        ),
    )


def read_rows(path: Path) -> tuple[list[TrainingRow], dict[str, int]]:
    """All rows that can be read, and how many were left out for which reason."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows: list[TrainingRow] = []
    left: dict[str, int] = {}
    for line in lines:
        if line["source"].startswith("ParaDL"):
            reason = "raw runs on ABCI: of their own table"
        else:
            try:
                rows.append(read(line))
                continue
            except Skip as skip:
                reason = str(skip)
        if line["gpus"] != "1":
            left[reason] = left.get(reason, 0) + 1
    return rows, dict(sorted(left.items(), key=lambda item: -item[1]))
