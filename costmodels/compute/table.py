"""Measured seconds of local work, looked up by shape and interpolated between shapes.

A table is a CSV file as `benchmarks/measure_device.py` writes it. Lines that start with `#` hold
`key = value` pairs of provenance (device, software, date); then come the columns

    operation, direction, precision, samples, channels, filters, in_extents, out_extents,
    kernel, stride, groups, seconds

with extents, kernel and stride written as `56x56` (empty for none) and any further columns
ignored. Shapes are *local*: what one device computes.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.compute.work import ELEMENT_SIZE, Work
from costmodels.errors import InputError, plain, printable
from costmodels.units.tables import read_text

FloatArray = NDArray[np.float64]

COLUMNS: Final = (
    *("operation", "direction", "precision", "samples", "channels", "filters"),
    *("in_extents", "out_extents", "kernel", "stride", "groups", "seconds"),
)

LARGEST: Final = 2.0**40
"""Largest extent that a table may state. [items]"""

LONGEST: Final = 1e6
"""Longest time of one layer that a table may state. [s]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured time: line of the file, precision, local work, seconds."""

    line: int
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
    """

    def __init__(
        self, name: str, provenance: Mapping[str, str], rows: Iterable[Row], text: str = ""
    ) -> None:
        self.name = name
        self.text = text
        self.provenance = dict(provenance)
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostTable:
        """Read a table from a CSV file.

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
        provenance: dict[str, str] = {}
        lines: list[tuple[int, str]] = []
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            if line.startswith("#"):
                key, _, value = line[1:].partition("=")
                provenance[key.strip()] = value.strip()
            elif line.strip():
                lines.append((number, line))
        rows = [
            _parse_row(name, number, cells)
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
        reader = csv.DictReader(line for _, line in lines)
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{file} must be a CSV table but is none ({error}); correct it") from None
    if missing:
        raise InputError(
            f"{file} must have the columns {', '.join(COLUMNS)} but lacks "
            f"{', '.join(missing)}; write it with benchmarks/measure_device.py"
        )
    if len(rows) != len(lines) - 1:
        raise InputError(
            f"{file} must have one row a line but a cell goes over several; correct the quotes"
        )
    return rows


def _parse_row(file: str, line: int, cells: Mapping[str, str | None]) -> Row:
    def number(column: str) -> float:
        return _positive_cell(file, line, column, cells[column] or "", whole=column != "seconds")

    def numbers(column: str) -> tuple[float, ...]:
        text = (cells[column] or "").strip()
        return tuple(_positive_cell(file, line, column, part) for part in text.split("x") if text)

    precision = (cells["precision"] or "").strip()
    if precision not in ELEMENT_SIZE:
        raise InputError.rule(
            f"line {line}, column precision of {file}",
            f"be one of {', '.join(ELEMENT_SIZE)}",
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
        )
    except InputError as error:
        if str(error).startswith("line "):
            raise
        raise InputError(f"line {line} of {file}: {error}") from None
    return Row(line=line, precision=precision, work=work, seconds=number("seconds"))


def _positive_cell(file: str, line: int, column: str, text: str, whole: bool = True) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    most = LARGEST if whole else LONGEST
    if not 0 < value <= most or (whole and value != int(value)):
        kind = "whole" if whole else "finite"
        raise InputError.rule(
            f"line {line}, column {column} of {file}",
            f"be a {kind} number above 0 and at most {most:g}",
            f"'{text.strip()}'",
            "correct or remove the line",
        )
    return value
