"""Measured seconds of local work, looked up by shape and interpolated between shapes.

A table is a CSV file. Lines that start with `#` hold
`key = value` pairs of provenance (device, software, date); then come the columns

    operation, direction, precision, samples, channels, filters, in_extents, out_extents,
    kernel, stride, groups, seconds

with extents, kernel and stride written as `56x56` (empty for none), `visible` where attention is
masked, and any further columns ignored. Shapes are *local*: what one device computes.

A JSON file, as `planner profile` and `planner tables import` write it, holds the same with the
columns once, and may hold measured collectives, and curves that are fitted to them, besides.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.cluster.curve import CollectiveCurve
from costmodels.communication.calibration import COLLECTIVES, MeasuredCollective
from costmodels.compute.windows import check_windows
from costmodels.compute.work import ELEMENT_SIZE, Work
from costmodels.errors import InputError, plain, printable
from costmodels.units.tables import parse_json, read_text

FloatArray = NDArray[np.float64]

COLUMNS: Final = (
    *("operation", "direction", "precision", "samples", "channels", "filters"),
    *("in_extents", "out_extents", "kernel", "stride", "groups", "seconds"),
)

FORMAT: Final = "planner-table"
"""What a JSON file says in `format` if it is a table."""

COLLECTIVE_COLUMNS: Final = ("collective", "hosts", "gpus", "bytes", "seconds")

LARGEST: Final = 2.0**40
"""Largest extent that a table may state. [items]"""

LONGEST: Final = 1e6
"""Longest time of one layer that a table may state. [s]"""

# Precisions that rows may be in: products in FP8 are timed with casts that differ.
_TIMED = tuple(name for name in ELEMENT_SIZE if name != "fp8")


class Row(Struct, frozen=True, kw_only=True):
    """A measured time: where it stands in the file, precision, local work, seconds."""

    place: str
    precision: str
    work: Work
    seconds: float


class CostTable:
    """Measured times of one device.

    Parameters
    ----------
    name
        Name for messages and reports.
    provenance
        Device, software and whatever else says where the figures are from.
    rows
        Parsed rows; use `load` for a file.
    text
        The file that they are from, without control characters.
    collectives, curves
        Measured collectives of such devices, and curves of their times.
    """

    def __init__(
        self,
        name: str,
        provenance: Mapping[str, str],
        rows: Iterable[Row],
        text: str = "",
        collectives: Iterable[MeasuredCollective] = (),
        curves: Iterable[CollectiveCurve] = (),
    ) -> None:
        self.name = name
        self.collectives = tuple(collectives)
        self.curves = tuple(curves)
        self.text = text
        self.provenance = dict(provenance)
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostTable:
        """Read a table from a CSV or JSON file.

        Raises
        ------
        InputError
            When it cannot be read, or a line is wrong.
        """
        text = read_text(path, f"the table {os.fspath(path)}")
        return cls.of_text(printable(text), plain(os.path.basename(path)))

    @classmethod
    def of_text(cls, text: str, name: str) -> CostTable:
        """A table from the text of its file, without control characters.

        Raises
        ------
        InputError
            When a line is wrong.
        """
        if text.lstrip().startswith("{"):
            return _of_json(name, text)
        provenance: dict[str, str] = {}
        lines: list[tuple[int, str]] = []
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            if line.startswith("#"):
                key, _, value = line[1:].partition("=")
                provenance[key.strip()] = value.strip()
            elif line.strip():
                lines.append((number, line))
        rows = [
            _parse_row(name, f"line {number}", cells)
            for (number, _), cells in zip(lines[1:], _cells_of(name, lines), strict=True)
        ]
        return cls(name, provenance, rows, text)

    def describe(self) -> str:
        """Name, number of rows and provenance in one line."""
        parts = [f"{key} {value}" for key, value in self.provenance.items() if value]
        return f"{self.name}: {len(self)} measured times" + "".join(f"; {part}" for part in parts)


def _cells_of(file: str, lines: Sequence[tuple[int, str]]) -> list[dict[str, str | None]]:
    """Cells of the rows by column."""
    try:
        reader = csv.DictReader((line for _, line in lines), skipinitialspace=True)
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{file} must be a CSV table but is none ({error}); correct it") from None
    if missing:
        raise InputError(
            f"{file} must have the columns {', '.join(COLUMNS)} but lacks "
            f"{', '.join(missing)}; write it with 'planner profile'"
        )
    if len(rows) != len(lines) - 1:
        raise InputError(
            f"{file} must have one row a line but a cell goes over several; correct the quotes"
        )
    for (number, _), cells in zip(lines[1:], rows, strict=True):
        # under None is what goes beyond the columns
        if None in cells:
            raise InputError(
                f"line {number} of {file} must have a cell for each of the columns but has more; "
                "correct or remove it"
            )
    return rows


def _of_json(file: str, text: str) -> CostTable:
    """A table from the text of a JSON file."""
    document = parse_json(text, file, "correct it")
    if not isinstance(document, dict):
        raise InputError(f"{file} must be a JSON object but is none; correct it")
    if document.get("format") != FORMAT:
        raise InputError.rule(
            f"'format' of {file}",
            f"be '{FORMAT}'",
            f"'{document.get('format')}'",
            "give a CSV table, or one that 'planner tables import' wrote",
        )
    provenance = document.get("provenance", {})
    if not isinstance(provenance, dict):
        raise InputError(f"'provenance' of {file} must be an object but is none; correct it")
    rows = _json_rows(file, document, COLUMNS)
    collectives = _json_rows(file, document.get("collectives", {}), COLLECTIVE_COLUMNS)
    return CostTable(
        file,
        {str(key): str(value) for key, value in provenance.items()},
        [_parse_row(file, f"row {i}", cells) for i, cells in enumerate(rows, start=1)],
        text,
        [
            _parse_collective(file, f"row {i} of the collectives", cells)
            for i, cells in enumerate(collectives, start=1)
        ],
        _curves(file, document.get("curves", [])),
    )


def _curves(file: str, part: object) -> list[CollectiveCurve]:
    """Curves of collectives, as `planner profile --links` writes them."""
    try:
        return msgspec.convert(part, list[CollectiveCurve])
    except (msgspec.ValidationError, InputError) as error:
        reason = plain(str(error))
        raise InputError(
            f"'curves' of {file} must be what 'planner profile --links' writes but are not "
            f"({reason}); measure them again"
        ) from None


def _json_rows(file: str, part: object, columns: Sequence[str]) -> list[dict[str, str | None]]:
    """Cells of the rows by column."""
    named = part.get("columns", []) if isinstance(part, dict) else None
    rows = part.get("rows", []) if isinstance(part, dict) else None
    if not isinstance(named, list) or not isinstance(rows, list):
        raise InputError(f"{file} must list its columns and rows but does not; correct it")
    missing = [column for column in columns if column not in named]
    if rows and missing:
        raise InputError(
            f"{file} must have the columns {', '.join(columns)} but lacks {', '.join(missing)}; "
            "write it with 'planner tables import'"
        )
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list) or len(row) != len(named):
            raise InputError(
                f"row {number} of {file} must have a cell for each of {len(named)} columns but has "
                "not; correct or remove it"
            )
    return [{str(name): str(cell) for name, cell in zip(named, row, strict=True)} for row in rows]


def _parse_collective(file: str, place: str, cells: Mapping[str, str | None]) -> MeasuredCollective:
    def number(column: str) -> float:
        return positive_cell(file, place, column, cells[column] or "", whole=column != "seconds")

    collective = cells["collective"] or ""
    if collective not in COLLECTIVES:
        raise InputError.rule(
            f"{place}, column collective of {file}",
            f"be one of {', '.join(COLLECTIVES)}",
            f"'{collective}'",
            "correct or remove the row",
        )
    hosts, gpus = int(number("hosts")), int(number("gpus"))
    if gpus < 2 or gpus % hosts:
        raise InputError(
            f"{place} of {file} must have at least 2 GPUs, the same number on every host, but has "
            f"{gpus} on {hosts}; correct or remove the row"
        )
    return MeasuredCollective(
        collective=collective,
        num_hosts=hosts,
        num_gpus=gpus,
        num_bytes=number("bytes"),
        seconds=number("seconds"),
    )


def _parse_row(file: str, place: str, cells: Mapping[str, str | None]) -> Row:
    def number(column: str) -> float:
        return positive_cell(file, place, column, cells[column] or "", whole=column != "seconds")

    def numbers(column: str) -> tuple[float, ...]:
        text = (cells[column] or "").strip()
        return tuple(positive_cell(file, place, column, part) for part in text.split("x") if text)

    precision = (cells["precision"] or "").strip()
    if precision not in _TIMED:
        raise InputError.rule(
            f"{place}, column precision of {file}",
            f"be one of {', '.join(_TIMED)}",
            f"'{precision}'",
            "correct or remove the line",
        )
    try:
        work = Work(
            operation=(cells["operation"] or "").strip(),
            direction=(cells["direction"] or "").strip(),
            samples=np.float64(number("samples")),  # type: ignore[arg-type]
            channels=np.float64(number("channels")),  # type: ignore[arg-type]
            filters=np.float64(number("filters")),  # type: ignore[arg-type]
            in_extents=tuple(np.asarray(extent) for extent in numbers("in_extents")),
            out_extents=tuple(np.asarray(extent) for extent in numbers("out_extents")),
            kernel=tuple(int(size) for size in numbers("kernel")),
            stride=tuple(int(step) for step in numbers("stride")),
            groups=np.asarray(number("groups")),
            visible=_visible(file, place, cells.get("visible") or "1"),
        )
    except InputError as error:
        if str(error).startswith(place):
            raise
        raise InputError(f"{place} of {file}: {error}") from None
    check_windows(file, place, work)
    return Row(place=place, precision=precision, work=work, seconds=number("seconds"))


def _visible(file: str, place: str, text: str) -> float:
    share = positive_cell(file, place, "visible", text, whole=False)
    if share > 1:
        raise InputError.rule(
            f"{place}, column visible of {file}",
            "be at most 1, the whole",
            f"'{text}'",
            "correct or remove it",
        )
    return share


def positive_cell(file: str, place: str, column: str, text: str, whole: bool = True) -> float:
    """The figure in a cell of a table.

    Parameters
    ----------
    file, place, column
        Where it stands, for messages.
    text
        The cell.
    whole
        Whether it counts something, instead of being a time in seconds or a part.

    Raises
    ------
    InputError
        When it is none that a table may state.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    most = LARGEST if whole else LONGEST
    if not 0 < value <= most or (whole and value != int(value)):
        kind = "whole" if whole else "finite"
        raise InputError.rule(
            f"{place}, column {column} of {file}",
            f"be a {kind} number above 0 and at most {most:g}",
            f"'{text.strip()}'",
            "correct or remove the line",
        )
    return value
