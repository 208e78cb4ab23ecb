"""Measured training steps as their publications print them, in the planner's terms.

One reader for every table of measured rows: network, machine, precision, schedule, batch and the
time of a step, each from its own column. A row that says too little is left out, with the reason;
no source is known by name. "fp32" on GPUs that have TF32 means TF32, which PyTorch and NVIDIA's
containers then use by default for convolutions.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from benchmarks.accuracy.machines import (
    USUAL_HOST,
    UnknownMachine,
    has_peer_access,
    read_words,
    row_cluster,
)
from benchmarks.accuracy.steps import MeasuredRun
from benchmarks.accuracy.words import (
    Skip,
    constant_given,
    epoch_samples,
    framework_of,
    network_named,
    precision_of,
    runtime_of,
    with_old_libraries,
)
from costmodels.cluster import Cluster
from costmodels.errors import InputError
from costmodels.simulation import Runtime, load_runtime

# Why a row is shown and not counted that agrees with one before in all but its address.
TWICE = "the same measurement at another address"
_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """A measured step and what ran.

    Parameters
    ----------
    source
        Rows that are summed up together.
    run
        What ran.
    runtime
        The framework's runtime.
    seconds
        Measured time of a step. [s]
    whole
        Whether the time includes the weight update.
    kin
        What a row on one GPU must share to calibrate this one: publication, network, GPU,
        precision, framework, system, kind of data and batch a GPU.
    family
        What a row on one GPU of another publication must share to do so where none of the same
        has: network, GPU, precision, framework, and what it fuses and lays out.
    precision
        As the device names it.
    doubt
        Why its schedule tells too little to count; empty where it does not.
    group
        Rows that may be ranked against each other have the same.
    label
        For people.
    """

    source: str
    run: MeasuredRun
    runtime: Runtime
    seconds: float
    whole: bool
    kin: tuple[str, ...]
    family: tuple[str, ...]
    precision: str
    doubt: str
    group: str
    label: str

    @property
    def gpus(self) -> int:
        """Number of GPUs. [items]"""
        return self.run.gpus

    @property
    def batch(self) -> int:
        """Global batch. [samples]"""
        return self.run.batch

    @property
    def cluster(self) -> Cluster:
        """The machine."""
        assert isinstance(self.run.cluster, Cluster), "rows have clusters of their own"
        return self.run.cluster


def source_group(source: str) -> str:
    """A source, all submissions to one round of a benchmark together."""
    words = source.split()
    if source.startswith("MLPerf"):
        return " ".join(words[:3])
    return source.split(" logs")[0].split(" results")[0].split(" (")[0]


def _row_seconds(row: Mapping[str, str], batch: int, gpus: int, model: str) -> float:
    """Time of a step from whatever was published. [s]"""
    metric, unit = row["metric"].lower(), row["unit"].lower().strip()
    try:
        value = float(row["value"])
    except ValueError:
        raise Skip("the value is no number") from None
    if not value > 0.0:
        raise Skip("the value is not above zero")
    if re.search(r"(^|_)ratio|efficiency|speed.?up", metric):
        raise Skip(f"{row['metric']} is no time of a step")
    if "throughput" in metric or "rate" in metric.split("_"):
        if "token" in unit:
            raise Skip("counted in tokens, not in samples")
        each = "per_gpu" in metric or re.search(r"/\s*gpu|per gpu", unit)
        return batch / value / (gpus if each else 1)
    if re.search(r"(iteration|step|batch)_time|time_per_(iteration|step|batch)", metric):
        return value * _SECONDS.get(unit, 1e-3)
    samples = epoch_samples(model)
    if "epoch_time" in metric and "eval" not in metric and samples:
        return value * _SECONDS.get(unit, 1.0) * batch / samples
    raise Skip(f"{row['metric'] or 'no metric'} is no time of a step")


def _stated_size(notes: str) -> int | None:
    """Pixels a side that the notes state, None where they are as published."""
    found = re.search(r"(?:^|; )img (\d+)\b", notes)
    return int(found.group(1)) if found else None


def _alone(framework: str) -> str:
    """What runs on one GPU of the words on a framework: without what joins several."""
    return re.sub(r"(?i)\s*\b(nn\.)?(dataparallel|ddp)\b", "", framework)


def _system(notes: str) -> str:
    """The machine that the notes name, "" for none."""
    found = re.search(r"system ([^;]+)", notes)
    return found.group(1).strip() if found else ""


def aggregates_on_one(runtime: Runtime, cluster: Cluster, framework: str) -> bool:
    """Whether TensorFlow copies gradients to one device to add them up: without peer access.

    Parameters
    ----------
    runtime, cluster, framework
        What runs the step, on which machine.
    """
    own_copies = framework == "tensorflow" and runtime.name == "tf-replicated"
    return own_copies and not has_peer_access(cluster)


def _number_in(row: Mapping[str, str], column: str) -> float:
    """A number of a column; 0 where it is empty."""
    text = row[column].strip()
    try:
        return float(text) if text else 0.0
    except ValueError:
        raise Skip(f"column {column} is no number") from None


def _stated_links(row: Mapping[str, str], gpus: int) -> str:
    """Words on links; those between hosts may stand in the notes."""
    links = row["interconnect"]
    network = re.search(r"(?:^|; )network ([^;]+)", row["notes"])
    if gpus > 1 and network and "+" not in links:
        links = f"{links} + {network.group(1)}"
    return links


def _stated_machine(row: Mapping[str, str], links: str, gpus: int, per_host: int) -> Cluster:
    try:
        cluster = row_cluster(row["gpu"], links, gpus, per_host)
        cluster.shape(gpus)
    except UnknownMachine as error:
        raise Skip(str(error)) from None
    except InputError as error:
        raise Skip(str(error).split(",")[0]) from None
    return cluster


def described_row(given: Mapping[str, str]) -> MeasuredRow:
    """A row in the planner's terms, or `Skip` with the reason."""
    row = {name: given.get(name) or "" for name in COLUMNS}
    model, code = network_named(row["model"], f"{row['source']} {row['framework']}")
    if not model:
        raise Skip(f"no built-in network {row['model']}")
    for mark in read_words("words")["marks"]:
        if re.search(mark["words"], row["notes"].lower()):
            raise Skip(mark["reason"])
    gpus = int(_number_in(row, "gpus"))
    batch = int(_number_in(row, "global_batch") or _number_in(row, "batch_per_gpu") * gpus)
    if gpus < 1 or batch < 1:
        raise Skip("number of GPUs or batch not stated")
    per_host = int(_number_in(row, "gpus_per_node")) or min(gpus, USUAL_HOST)
    links = _stated_links(row, gpus)
    cluster = _stated_machine(row, links, gpus, per_host)
    precision = precision_of(row["precision"], cluster.device)
    precision, old = with_old_libraries(row, precision, cluster.device)
    runtime, doubt = load_runtime("ddp"), ""
    said = ("source", "model", "framework", "precision", "notes")
    words = " ".join(row[name] for name in said).lower()
    framework, changes = framework_of(row["framework"].lower(), words)
    constant = constant_given(row, precision, batch, gpus)
    if gpus > 1:
        runtime, doubt = runtime_of(row["strategy"], row["framework"], -(-gpus // per_host))
        if runtime.name == "byteps" and "rdma" in links.lower():
            runtime = replace(runtime, stack_bandwidth=1e18)
    if runtime.one_process:
        changes = tuple(item for item in changes if item[0] != "launch_time")
    runtime = replace(runtime, **dict(changes))
    if runtime.gradient == "all_reduce" and aggregates_on_one(runtime, cluster, framework):
        runtime = replace(runtime, aggregation="one_device")
    rings = gpus <= read_words("words")["all_reduce"]["rings_up_to"]
    kin = (
        *(row["source"], model, row["gpu"], row["precision"]),
        _alone(row["framework"]),
        *(_system(row["notes"]), "real data" if "real data" in row["notes"] else "", framework),
        str(batch // gpus),
    )
    return MeasuredRow(
        source=source_group(row["source"]),
        run=MeasuredRun(
            model=model,
            cluster=cluster,
            gpus=gpus,
            batch=batch,
            options={
                "precision": precision,
                "all_reduce": "ring" if rings else "auto",
                "input_size": _stated_size(row["notes"]) or code.get("size"),
                "optimizer": code.get("optimizer", "sgd"),
            },
            winograd="chainer" not in row["framework"].lower(),
            runtime=runtime,
        ),
        runtime=runtime,
        seconds=_row_seconds(row, batch, gpus, model),
        whole="fwd_bwd" not in row["metric"].lower(),
        kin=kin,
        family=(
            *(model, re.sub(r"-\d+gb$", "", cluster.device.name), precision),
            *(framework, ", ".join(runtime.fusions(precision)), str(runtime.channels_last)),
        ),
        precision=precision,
        doubt=f"it gave {constant}" if constant else old or doubt,
        group=", ".join(part for part in kin if part),
        label=(
            f"{row['model']}, {gpus} x {row['gpu']}, {batch} samples, {row['precision']}, "
            f"{row['framework']}, {row['strategy']}, {links}"
        ),
    )


COLUMNS = (
    *("source", "url", "model", "gpu", "gpus", "gpus_per_node", "interconnect", "framework"),
    *("strategy", "precision", "batch_per_gpu", "global_batch", "metric", "value", "unit", "notes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of files, and why others were left out.

    Parameters
    ----------
    rows
        Those that can be predicted.
    left_out
        Rows on several GPUs by reason. [items]
    left_out_alone
        Rows on one GPU by reason. [items]
    """

    rows: tuple[MeasuredRow, ...]
    left_out: dict[str, int]
    left_out_alone: dict[str, int]


def read_rows(paths: Sequence[Path], elsewhere: frozenset[str] = frozenset()) -> ReadRows:
    """All rows that can be predicted, and how many were left out for which reason.

    Parameters
    ----------
    paths
        Files with `COLUMNS`.
    elsewhere
        Addresses of logs that another table compares.
    """
    lines: list[dict[str, str]] = []
    for path in paths:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines += list(csv.DictReader(file))
    rows: list[MeasuredRow] = []
    # what was measured, without where it stands
    known: set[tuple[str, ...]] = set()
    left: dict[str, int] = {}
    alone: dict[str, int] = {}
    for line in lines:
        try:
            if line.get("url") and line["url"] in elsewhere:
                raise Skip("the same log is in the table of raw runs")
            row = described_row(line)
            measured = tuple(line.get(name) or "" for name in COLUMNS if name != "url")
            rows.append(
                dataclasses.replace(row, doubt=row.doubt or TWICE) if measured in known else row
            )
            known.add(measured)
        except Skip as skip:
            counts = alone if (line.get("gpus") or "").strip() == "1" else left
            counts[str(skip)] = counts.get(str(skip), 0) + 1
    by_count = [dict(sorted(c.items(), key=lambda item: -item[1])) for c in (left, alone)]
    return ReadRows(rows=tuple(rows), left_out=by_count[0], left_out_alone=by_count[1])
