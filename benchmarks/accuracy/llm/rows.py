"""Rows of measured transformer training, in the planner's terms.

Two kinds of columns are read. In one, a row has a metric and its value: a time, a rate, a memory,
or whether training fitted; rows of one configuration with several metrics are predicted once. In
the other a row has a rate, memory and bus bandwidths, each in a column of its own. A row that says
too little is left out, with the reason. A row without any figure is no measurement, and is only
counted.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.llm.computed import with_computed_marked
from benchmarks.accuracy.llm.machines import BusBandwidths
from benchmarks.accuracy.llm.measurement import Configuration, Measurement, Sizes
from benchmarks.accuracy.llm.words import (
    entry_of,
    metric_words,
    recomputation_of,
    sharding_of,
    training_framework,
)
from benchmarks.accuracy.words import Skip
from costmodels.errors import InputError

BY_METRIC = frozenset({"model", "hidden", "layers", "metric", "value", "unit"})
BY_COLUMN = frozenset({"model", "hidden", "layers", "status", "tokens_per_s_per_gpu"})
GIB = 2.0**30
_SIZES = {"gib": GIB, "gb": GIB, "mib": 2.0**20, "mb": 2.0**20, "b": 1.0}
_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
# What stands where there is no number.
_UNSTATED = ("", "-", "n/a", "na", "none")
# Rates that are turned into seconds once the FLOPs of the network are known.
_FLOP_RATES = ("hardware TFLOP/s a GPU", "model TFLOP/s a GPU")


@dataclass(frozen=True, slots=True)
class LlmRows:
    """Rows by source: measurements, those left out by reason, and how many measured nothing."""

    measurements: tuple[Measurement, ...]
    left_out: Mapping[str, Mapping[str, int]]
    unmeasured: Mapping[str, int]


def is_llm_file(path: Path) -> bool:
    """Whether a file has one of the two kinds of columns."""
    columns = _column_names(path)
    return columns >= BY_METRIC or columns >= BY_COLUMN


def _column_names(path: Path) -> frozenset[str]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return frozenset(next(csv.reader(file), ()))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be readable but is not ({error}); check it") from None


def read_llm_rows(paths: Sequence[Path]) -> LlmRows:
    """All rows of files.

    Raises
    ------
    InputError
        When a file cannot be read, or lacks columns.
    """
    found: list[Measurement] = []
    left: dict[str, dict[str, int]] = {}
    nothing: dict[str, int] = {}
    for path in paths:
        for source, row in _source_rows(path):
            try:
                measured = _measurement_of(row, source)
            except Skip as error:
                reasons = left.setdefault(source, {})
                reasons[str(error)] = reasons.get(str(error), 0) + 1
                continue
            if measured is None:
                nothing[source] = nothing.get(source, 0) + 1
            else:
                found.append(measured)
    return LlmRows(with_computed_marked(_with_fastest_links(found)), left, nothing)


def _with_fastest_links(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Measurements that know the fastest links that any of them measured on the same hosts."""
    fastest: dict[tuple[str, int], BusBandwidths] = {}
    for row in rows:
        of = row.configuration
        if of.measured_links is not None:
            hosts = (of.gpu, min(of.gpus, of.per_host))
            fastest[hosts] = of.measured_links.or_faster(fastest.get(hosts))
    return tuple(
        replace(
            row,
            configuration=replace(
                row.configuration,
                fastest_links=fastest.get(
                    (row.configuration.gpu, min(row.configuration.gpus, row.configuration.per_host))
                ),
            ),
        )
        if row.configuration.measured_links is not None
        else row
        for row in rows
    )


def _source_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    columns = _column_names(path)
    needed = BY_COLUMN if "status" in columns else BY_METRIC
    missing = sorted(needed - columns)
    if missing:
        raise InputError(
            f"{path}: a file of measured transformers must have the columns "
            f"{', '.join(sorted(needed))} but lacks {', '.join(missing)}; add what is missing"
        )
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells = {name: (text or "").strip() for name, text in row.items() if name}
            yield _source_name(cells.get("source") or path.stem), cells


def _source_name(text: str) -> str:
    """A source in brief: what stands before remarks in brackets or after a semicolon."""
    return re.split(r"; | \(", text)[0].strip()


def _measurement_of(row: Mapping[str, str], source: str) -> Measurement | None:
    """A row in the planner's terms, None where it measured nothing; or `Skip` with the reason."""
    if re.search("SUSPICIOUS|INCONSISTENT", row.get("notes", "")):
        raise Skip("marked as suspicious or inconsistent")
    figures = _by_column(row) if "status" in row else _by_metric(row)
    if not figures:
        return None
    configuration = _configuration(row, source)
    return Measurement(
        source=source,
        workload=_workload(configuration),
        configuration=configuration,
        doubt=_doubt(row, configuration),
        **_with_batch(figures, configuration),
    )


def _workload(of: Configuration) -> tuple[object, ...]:
    return (of.sizes, of.gpu, of.gpus, of.precision, of.global_batch * of.sizes.sequence)


def _doubt(row: Mapping[str, str], of: Configuration) -> str:
    """Why a row tells of something else than what the framework is today."""
    if _slow_pipeline(row) and of.pp > 1:
        return "a slower implementation of the pipeline, since mended"
    return ""


def _slow_pipeline(row: Mapping[str, str]) -> bool:
    """Whether a row is from before a pipeline was mended."""
    return row.get("after_pipeline_fix", "").lower() == "false"


# what is measured, before the batch is known


def _by_column(row: Mapping[str, str]) -> dict[str, Any]:
    """Figures of a row that has a column for each."""
    status = row["status"].lower()
    if re.search(r"out of memory|\boom\b", status):
        return {"fits": False}
    rate = _number(row, "tokens_per_s_per_gpu")
    if not re.fullmatch(r"ok|success|successful|succeeded|completed?|done", status) or not rate:
        return {}
    found: dict[str, Any] = {"fits": True, "rate": ("tokens a GPU", rate)}
    reserved = _number(row, "memory_reserved_gib")
    # of the process that logs: with one micro-batch in two stages it is what the first one holds
    return {**found, "memory": reserved * GIB, "of_first": True} if reserved else found


def _by_metric(row: Mapping[str, str]) -> dict[str, Any]:
    """Figures of a row that names its metric."""
    words = metric_words(row["metric"])
    # "throughput" is told by its unit
    told = (words, f"{words}_{metric_words(row['unit'])}")
    entry = next(filter(None, (entry_of("metrics", text) for text in told)), None)
    if entry is None or "reason" in entry:
        raise Skip(entry["reason"] if entry else f"unknown metric {row['metric'] or '(none)'}")
    kind, unit = entry["kind"], row["unit"].lower()
    if re.fullmatch(r"oom|out of memory|fits|yes|no", row["value"].lower()) or kind == "fits":
        return {"fits": row["value"].lower() in ("fits", "yes", "true", "1", "ok")}
    value = _number(row, "value")
    if not value > 0.0:
        raise Skip("the value is not above zero")
    if kind == "memory":
        if unit not in _SIZES:
            raise Skip(f"memory in the unknown unit {row['unit'] or '(none)'}")
        whole = "nvidia-smi" in row.get("notes", "").lower()
        return {"fits": True, "memory": value * _SIZES[unit], "whole_device": whole}
    if kind == "seconds":
        # a metric may end with its unit
        unit = unit or words.rsplit("_", 1)[-1]
        if unit not in _SECONDS:
            raise Skip(f"time in the unknown unit {row['unit'] or '(none)'}")
        return {"fits": True, "seconds": value * _SECONDS[unit]}
    if kind in _FLOP_RATES:
        return {"fits": True, "flop_rate": (value * 1e12, kind == _FLOP_RATES[0])}
    return {"fits": True, "rate": (kind, value)}


def _with_batch(figures: dict[str, Any], of: Configuration) -> dict[str, Any]:
    """Figures with a rate turned into the time of a step."""
    if "rate" not in figures:
        return figures
    kind, value = figures.pop("rate")
    count = of.global_batch * (of.sizes.sequence if "tokens" in kind else 1)
    return {**figures, "seconds": count / value / (of.gpus if kind.endswith("a GPU") else 1)}


# what ran


def _number(row: Mapping[str, str], column: str, unstated: float = 0.0) -> float:
    text = row.get(column, "").replace(",", "")
    if text.lower() in _UNSTATED:
        return unstated
    try:
        value = float(text)
    except ValueError:
        raise Skip(f"column {column} is no number") from None
    if not math.isfinite(value):
        raise Skip(f"column {column} is no number")
    return value


def _whole_number(row: Mapping[str, str], column: str, unstated: int = 0) -> int:
    value = _number(row, column, unstated)
    if value != int(value) or value < 0:
        raise Skip(f"column {column} is no whole number")
    return int(value)


def _configuration(row: Mapping[str, str], source: str) -> Configuration:
    text = f"{row.get('source') or source} {row.get('table', '')} {row.get('notes', '')}".lower()
    told = "nanotron" if "after_pipeline_fix" in row and "source" not in row else ""
    told += ", slow pipeline" if told and _slow_pipeline(row) else ""
    framework = training_framework(f"{row.get('framework', '')} {told} {text}".lower())
    gpus = _needed(row, "gpus")
    ways = {name: _whole_number(row, name, 1) or 1 for name in ("tp", "pp", "cp")}
    taken = math.prod(ways.values())
    dp = _whole_number(row, "dp") or max(gpus // taken, 1)
    if dp * taken != gpus:
        raise Skip("the degrees of parallelism are not the number of GPUs")
    zero, fsdp = sharding_of(row.get("zero_or_fsdp") or row.get("zero", ""), dp)
    host = _whole_number(row, "gpus_per_node") or min(gpus, 8)
    return Configuration(
        sizes=_stated_sizes(row, framework),
        framework=framework["words"],
        gpu=row.get("gpu", ""),
        gpus=gpus,
        per_host=host,
        links=_network_words(f"{text} {told} {row.get('gpu', '').lower()}"),
        measured_links=BusBandwidths.of_row(row),
        dp=dp,
        ep=_whole_number(row, "ep", 1) or 1,
        chunks=_whole_number(row, "vpp", 1) or 1,
        zero=zero,
        fsdp=fsdp,
        micro_batch=_needed(row, "micro_batch"),
        global_batch=_global_batch(row, dp),
        recompute=recomputation_of(row.get("recompute", ""), framework),
        precision=_stated_precision(row, framework),
        sequence_parallel=_sequence_parallel(text, framework, ways["tp"]),
        **ways,
    )


def _needed(row: Mapping[str, str], column: str) -> int:
    value = _whole_number(row, column)
    if value < 1:
        raise Skip(f"{column.replace('_', ' ')} not stated")
    return value


def _global_batch(row: Mapping[str, str], dp: int) -> int:
    """Sequences of a step, from its micro-batches where a row states these instead. [items]"""
    count = _whole_number(row, "gradient_accumulation")
    if count and not _whole_number(row, "global_batch"):
        return count * dp * _needed(row, "micro_batch")
    return _needed(row, "global_batch")


def _stated_sizes(row: Mapping[str, str], framework: Mapping[str, Any]) -> Sizes:
    tied = row.get("tied_embeddings", "").lower()
    vocabulary = _whole_number(row, "vocab") or int(framework.get("vocabulary", 0))
    if not vocabulary:
        raise Skip("vocab not stated")
    return Sizes(
        name=row["model"] or "unnamed",
        hidden=_needed(row, "hidden"),
        layers=_needed(row, "layers"),
        heads=_needed(row, "heads"),
        kv_heads=_whole_number(row, "kv_heads") or _needed(row, "heads"),
        ffn=_whole_number(row, "ffn"),
        vocabulary=vocabulary,
        sequence=_needed(row, "seq_len"),
        experts=_whole_number(row, "experts"),
        top_k=_whole_number(row, "top_k"),
        tied=tied == "true" if tied in ("true", "false") else None,
    )


def _network_words(text: str) -> str:
    entry = entry_of("networks", text)
    return str(entry["links"]) if entry else ""


def _stated_precision(row: Mapping[str, str], framework: Mapping[str, Any]) -> str:
    stated = row.get("precision", "").lower()
    if not stated:
        return str(framework["precision"])
    entry = entry_of("precisions", stated)
    if entry is None:
        raise Skip(f"unknown precision {row['precision']}")
    return str(entry["precision"])


def _sequence_parallel(text: str, framework: Mapping[str, Any], tp: int) -> bool:
    """Whether activations between tensor-parallel parts are cut along the sequence."""
    if tp == 1 or re.search(r"no sequence parallel|sequence parallel off", text):
        return False
    if re.search(r"sequence parallel(ism)?", text):
        return True
    return bool(framework.get("sequence_parallel", False))
