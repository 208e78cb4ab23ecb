"""Measured seconds of local work, looked up by shape and interpolated between shapes.

A table is a CSV file as `benchmarks/measure_device.py` writes it. Lines that start with `#` hold
`key = value` pairs of provenance (device, software, date); then come the columns

    operation, direction, precision, samples, channels, filters, in_extents, out_extents,
    kernel, stride, groups, seconds

with extents, kernel and stride written as `56x56` (empty for none) and any further columns
ignored. Shapes are *local*: what one device computes.

Between measured shapes of the same operation, direction, kernel, stride and groups the *ratio* of
measured to modelled time is interpolated, on logarithmic scales, weighted by the inverse fourth
power of the distance between shapes. A power law between two rows is followed in this way, while
the model's own idea of small pieces is kept. Nothing is said about a shape that is further than a
factor of `REACH` from the nearest row in any dim.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.compute.work import ELEMENT_SIZE, Work
from costmodels.errors import InputError, plain, printable
from costmodels.units.tables import read_text

FloatArray = NDArray[np.float64]

REACH: Final = 4.0
"""Largest factor between a shape and the nearest measured one, in each dim."""

COLUMNS: Final = (
    *("operation", "direction", "precision", "samples", "channels", "filters"),
    *("in_extents", "out_extents", "kernel", "stride", "groups", "seconds"),
)

LARGEST: Final = 2.0**40
"""Largest extent that a table may state. [items]"""

LONGEST: Final = 1e6
"""Longest time of one layer that a table may state. [s]"""

# operation, direction, precision, kernel, stride, number of input and of output extents
_Key = tuple[str, str, str, tuple[int, ...], tuple[int, ...], int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    precision: str
    work: Work
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Rows that differ in their extents alone: logarithms of the extents, groups, seconds."""

    work: Work
    shapes: FloatArray
    groups: FloatArray
    seconds: FloatArray


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
        self, name: str, provenance: Mapping[str, str], rows: Iterable[_Row], text: str = ""
    ) -> None:
        self.name = name
        self.text = text
        self.provenance = dict(provenance)
        collected: dict[_Key, list[_Row]] = {}
        for row in rows:
            collected.setdefault(_block_key(row.work, row.precision), []).append(row)
        self._blocks = {key: _gathered_block(members) for key, members in collected.items()}

    def __len__(self) -> int:
        return sum(block.seconds.size for block in self._blocks.values())

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

    def lookup(
        self,
        work: Work,
        precision: str,
        modelled: FloatArray,
        model: Callable[[Work], FloatArray],
    ) -> tuple[FloatArray, NDArray[np.bool_]] | None:
        """Measured or interpolated times and whether each was measured; None without any row.

        Parameters
        ----------
        work
            Local work of the candidates.
        precision
            Precision that is computed in.
        modelled
            The model's time of each candidate, which fixes the shape of the answer. [s]
        model
            The model itself, asked for its time of the measured shapes. [s]

        Returns
        -------
        tuple
            Seconds, NaN where the table says nothing, and whether the entry is exact.
        """
        block = self._blocks.get(_block_key(work, precision))
        if block is None:
            return None
        shapes = _shapes(work, modelled.size)
        apart = np.abs(shapes[:, None, :] - block.shapes[None, :, :])
        same_groups = np.broadcast_to(work.groups, modelled.size)[:, None] == block.groups
        near = (apart.max(axis=2) <= math.log(REACH) + 1e-12) & same_groups
        distance = np.where(near, np.square(apart).sum(axis=2), np.inf)
        nearest = distance.argmin(axis=1)
        exact = distance[np.arange(nearest.size), nearest] < 1e-18
        ratio = np.log(block.seconds / np.broadcast_to(model(block.work), block.seconds.shape))
        weights = 1.0 / np.square(np.maximum(distance, 1e-18))
        total = weights.sum(axis=1)
        reached = near.any(axis=1)
        correction = (weights @ ratio) / np.where(reached, total, 1.0)
        seconds = np.where(reached, modelled * np.exp(correction), np.nan)
        seconds = np.where(exact, block.seconds[nearest], seconds)
        return seconds, exact


def _block_key(work: Work, precision: str) -> _Key:
    ranks = len(work.in_extents), len(work.out_extents)
    return (work.operation, work.direction, precision, work.kernel, work.stride, *ranks)


def _shapes(work: Work, count: int) -> FloatArray:
    dims = (work.samples, work.channels, work.filters, *work.in_extents, *work.out_extents)
    columns = [np.broadcast_to(dim, count) for dim in dims]
    extents: FloatArray = np.stack(columns, axis=1)
    return np.log(np.maximum(extents, np.finfo(np.float64).tiny))


def _gathered_block(rows: list[_Row]) -> _Block:
    first = rows[0].work

    def gather(pick: Callable[[Work], FloatArray]) -> FloatArray:
        return np.array([float(pick(row.work)) for row in rows])

    work = Work(
        operation=first.operation,
        direction=first.direction,
        samples=gather(lambda w: w.samples),
        channels=gather(lambda w: w.channels),
        filters=gather(lambda w: w.filters),
        in_extents=tuple(
            gather(lambda w, i=i: w.in_extents[i])  # type: ignore[misc]
            for i in range(len(first.in_extents))
        ),
        out_extents=tuple(
            gather(lambda w, i=i: w.out_extents[i])  # type: ignore[misc]
            for i in range(len(first.out_extents))
        ),
        kernel=first.kernel,
        stride=first.stride,
        groups=gather(lambda w: np.asarray(w.groups, dtype=np.float64)),
    )
    return _Block(
        work=work,
        shapes=_shapes(work, len(rows)),
        groups=np.asarray(work.groups, dtype=np.float64),
        seconds=np.array([row.seconds for row in rows]),
    )


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


def _parse_row(file: str, line: int, cells: Mapping[str, str | None]) -> _Row:
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
    return _Row(line=line, precision=precision, work=work, seconds=number("seconds"))


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
