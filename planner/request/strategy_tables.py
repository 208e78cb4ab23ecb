"""The tables of a strategy file, and the text of one, as `docs/strategy-files.md` describes them.

The parser of TOML tells no lines, so headers of tables are looked for in the text: error messages
can then point at the two places that contradict each other.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from costmodels.errors import InputError, require_name
from costmodels.strategy import Description, LayerEntry, StageEntry, SubgraphEntry
from costmodels.strategy.place import device_text
from costmodels.units.tables import FieldFault, field_faults, parse_toml, refuse_faults
from planner.models.files import toml_rows, validation_reason

FORMAT = "planner-strategy"

Part = Literal["sharded", "whole"]


class _ScheduleTable(msgspec.Struct, forbid_unknown_fields=True):
    kind: str | None = None
    micro_batches: int = 1
    max_in_flight: int | None = None
    stages: int = 1
    chunks: int = 1


class _StageTable(msgspec.Struct, forbid_unknown_fields=True):
    layers: list[str] = []
    devices: str | None = None
    recompute: list[list[str]] = []


class _LayerTable(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partition: dict[str, int | list[int]]
    devices: str | None = None


class _SubgraphTable(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    recompute: bool | None = None
    zero: int | None = None
    weights: Part | None = None
    gradients: Part | None = None
    state: Part | None = None
    shard_size: int | None = None


class _StrategyTables(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    model: str | None = None
    gpus: int | None = None
    cluster: str | None = None
    global_batch_size: int | None = None
    precision: str | None = None
    default: str = "data"
    gather_again: bool = False
    ring_attention: bool = False
    keep_products: bool = False
    offload: list[str] = []
    schedule: dict[str, Any] = {}
    stage: list[dict[str, Any]] = []
    layer: list[dict[str, Any]] = []
    subgraph: list[dict[str, Any]] = []


_ROWS = {"stage": _StageTable, "layer": _LayerTable, "subgraph": _SubgraphTable}
Table = TypeVar("Table", bound=msgspec.Struct)


class StrategyFile(Struct, frozen=True, kw_only=True):
    """What a strategy file says.

    Parameters
    ----------
    description
        The strategy, for any network that has the layers it names.
    model, cluster, gpus, global_batch_size, precision
        What the file is for, None where it does not say. [items]
    """

    description: Description = field(default_factory=Description)
    model: str | None = None
    cluster: str | None = None
    gpus: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None


def _header_lines(text: str, table: str) -> list[int]:
    """Line numbers of the headers of an array of tables, which the parser does not tell."""
    header = re.compile(rf"\s*\[\[\s*\"?{table}\"?\s*\]\]")
    return [n for n, line in enumerate(text.splitlines(), start=1) if header.match(line)]


def _table_labels(text: str, table: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What error messages call the tables, such as `[[layer]] 2 ("h.*.attn", line 14)`."""
    lines = _header_lines(text, table)
    labels = []
    for number, row in enumerate(rows):
        name = row.get("name")
        facts = [f'"{name}"'] if isinstance(name, str) else []
        # tables that are written inline have no header to point at
        facts += [f"line {lines[number]}"] if len(lines) == len(rows) else []
        labels.append(f"[[{table}]] {number + 1}" + (f" ({', '.join(facts)})" if facts else ""))
    return labels


def _all_faults(raw: Mapping[str, object], text: str) -> Iterator[FieldFault]:
    """Fields that are missing or unknown, in all tables of a file."""
    yield from field_faults(raw, _StrategyTables, "the file")
    yield from field_faults(raw.get("schedule"), _ScheduleTable, "[schedule]")
    for table, kind in _ROWS.items():
        rows = raw.get(table)
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            for row, label in zip(rows, _table_labels(text, table, rows), strict=True):
                yield from field_faults(row, kind, label)


def _convert_table(row: object, expected: type[Table], label: str) -> Table:
    try:
        return msgspec.convert(row, expected)
    except msgspec.ValidationError as error:
        raise InputError(f"{label} {validation_reason(error, expected)}") from None


def _device_range(text: str | None, label: str) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text, re.ASCII)
    # numbers of thousands of digits are no devices, and are not converted
    short = match is not None and len(text) < 100
    first, last = (int(match[1]), int(match[2] or match[1])) if match and short else (1, 0)
    if last < first:
        raise InputError(
            f'{label} must have neighbouring devices as "0-7", or one as "3", but has "{text}"; '
            "correct it"
        )
    return first, last + 1


def _stage_entry(row: Mapping[str, Any], label: str) -> StageEntry:
    table = _convert_table(row, _StageTable, label)
    return StageEntry(
        layers=tuple(table.layers),
        devices=_device_range(table.devices, label),
        recompute=tuple(tuple(segment) for segment in table.recompute),
        label=label,
    )


def _layer_entry(row: Mapping[str, Any], label: str) -> LayerEntry:
    table = _convert_table(row, _LayerTable, label)
    partition = {d: w if isinstance(w, int) else tuple(w) for d, w in table.partition.items()}
    return LayerEntry(
        name=table.name,
        partition=partition,
        devices=_device_range(table.devices, label),
        label=label,
    )


def _subgraph_entry(row: Mapping[str, Any], label: str) -> SubgraphEntry:
    table = _convert_table(row, _SubgraphTable, label)
    parts = {what: getattr(table, what) for what in ("weights", "gradients", "state")}
    cut = {what: None if part is None else part == "sharded" for what, part in parts.items()}
    if table.zero is not None:
        given = next((what for what, part in parts.items() if part is not None), None)
        if given is not None:
            raise InputError(
                f"{label} must say what is cut once but gives 'zero' and '{given}'; remove one"
            )
        if not 0 <= table.zero <= 3:
            raise InputError(
                f"{label} must have a ZeRO stage from 0 to 3 but has {table.zero}; correct 'zero'"
            )
        cut = {"weights": table.zero > 2, "gradients": table.zero > 1, "state": table.zero > 0}
    if table.shard_size is not None and table.shard_size < 1:
        raise InputError.rule(
            f"{label}: 'shard_size'", "be at least 1", table.shard_size, "raise it"
        )
    return SubgraphEntry(
        name=table.name,
        recompute=table.recompute,
        shard_size=table.shard_size,
        label=label,
        **cut,
    )


def parse_strategy(text: str) -> StrategyFile:
    """What the text of a strategy file says.

    Raises
    ------
    InputError
        When the text is malformed or a field is unknown or wrong.
    """
    return strategy_file_of(parse_toml(text, "it"), text)


def strategy_file_of(raw: Mapping[str, object], text: str) -> StrategyFile:
    """What a strategy file says.

    Parameters
    ----------
    raw
        The tables of the file.
    text
        Its text, in which error messages point at lines.

    Raises
    ------
    InputError
        When a field is unknown or wrong.
    """
    refuse_faults("", _all_faults(raw, text))
    file = _convert_table(raw, _StrategyTables, "the file")
    if file.format != FORMAT:
        raise InputError(
            f"its 'format' must be '{FORMAT}' but is '{file.format}'; change it, or give the path "
            "of a strategy file"
        )
    _require_names(file, text)
    for what in ("gpus", "global_batch_size"):
        value = getattr(file, what)
        if value is not None and value < 1:
            raise InputError.rule(f"'{what}'", "be at least 1", value, "correct it")
    schedule = _convert_table(file.schedule, _ScheduleTable, "[schedule]")
    if schedule.kind == "":
        raise InputError("[schedule] must have a kind that is named but it is ''; leave it out")
    subgraph_labels = _table_labels(text, "subgraph", file.subgraph)
    description = Description(
        stages=tuple(map(_stage_entry, file.stage, _table_labels(text, "stage", file.stage))),
        layers=tuple(map(_layer_entry, file.layer, _table_labels(text, "layer", file.layer))),
        subgraphs=tuple(map(_subgraph_entry, file.subgraph, subgraph_labels)),
        kind=schedule.kind or "",
        micro_batches=schedule.micro_batches,
        max_in_flight=schedule.max_in_flight,
        groups=schedule.stages,
        chunks=schedule.chunks,
        default=file.default,
        gather_again=file.gather_again,
        ring_attention=file.ring_attention,
        keep_products=file.keep_products,
        offload=tuple(file.offload),
    )
    return StrategyFile(
        description=description,
        model=file.model,
        cluster=file.cluster,
        gpus=file.gpus,
        global_batch_size=file.global_batch_size,
        precision=file.precision,
    )


def _require_names(file: _StrategyTables, text: str) -> None:
    """Refuse names of what is elsewhere that nobody can see.

    Names of files are read without their control characters, but what is left of a name must not
    find anything else. A file holds them as escapes only.
    """
    raw = tomllib.loads(text) if "\\" in text else {}
    for what in ("model", "cluster", "precision"):
        name = getattr(file, what)
        if name is not None:
            require_name(f"'{what}'", raw.get(what, name))


def _filled_rows(fields: Mapping[str, object]) -> str:
    return toml_rows({k: v for k, v in fields.items() if v is not None and v != ()})


def _subgraph_fields(entry: SubgraphEntry) -> dict[str, object]:
    cut = (entry.state, entry.gradients, entry.weights)
    fields: dict[str, object] = {
        "name": entry.name or None,
        "recompute": entry.recompute,
        "shard_size": entry.shard_size,
    }
    # what is cut in the order state, gradients, weights is a ZeRO stage and has a number
    if None not in cut and list(cut) == sorted(cut, reverse=True, key=bool):
        return {**fields, "zero": sum(map(bool, cut))}
    names = {True: "sharded", False: "whole", None: None}
    return {**fields, **{w: names[getattr(entry, w)] for w in ("weights", "gradients", "state")}}


def format_strategy(file: StrategyFile) -> str:
    """The text of a strategy file, which `parse_strategy` turns into an equal description."""
    what = file.description
    head = {
        "format": FORMAT,
        "model": file.model,
        "gpus": file.gpus,
        "cluster": file.cluster,
        "global_batch_size": file.global_batch_size,
        "precision": file.precision,
        "default": None if what.default == "data" else what.default,
        "gather_again": what.gather_again or None,
        "ring_attention": what.ring_attention or None,
        "keep_products": what.keep_products or None,
        "offload": what.offload,
    }
    schedule = {
        "kind": what.kind or None,
        "micro_batches": what.micro_batches,
        "max_in_flight": what.max_in_flight,
        "stages": what.groups if what.groups > 1 else None,
        "chunks": what.chunks if what.chunks > 1 else None,
    }
    tables = [_filled_rows(head), "[schedule]\n" + _filled_rows(schedule)]
    for stage in what.stages:
        devices = None if stage.devices is None else device_text(stage.devices)
        row = {"layers": stage.layers, "devices": devices, "recompute": stage.recompute}
        tables.append("[[stage]]\n" + _filled_rows(row))
    for layer in what.layers:
        devices = None if layer.devices is None else device_text(layer.devices)
        split = {"name": layer.name, "partition": layer.partition, "devices": devices}
        tables.append("[[layer]]\n" + _filled_rows(split))
    tables += ["[[subgraph]]\n" + _filled_rows(_subgraph_fields(entry)) for entry in what.subgraphs]
    return "\n".join(tables)
