"""What a reader of a public form finds in a file, and how it reads cells."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from costmodels.errors import InputError, plain, printable
from costmodels.units.tables import read_text

Cells = Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class Found:
    """Times of one device: rows of a table, and how many were left out by reason."""

    device: str
    provenance: dict[str, str] = field(default_factory=dict)
    rows: list[list[object]] = field(default_factory=list)
    collectives: list[list[object]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        operation: str,
        direction: str,
        precision: str,
        sizes: Sequence[float],
        seconds: float,
        *,
        in_extents: Sequence[int] = (),
        out_extents: Sequence[int] = (),
        kernel: Sequence[int] = (),
        stride: Sequence[int] = (),
        groups: int = 1,
        visible: float = 1.0,
    ) -> None:
        """Add the time of a pass.

        Parameters
        ----------
        operation, direction, precision, in_extents, out_extents, kernel, stride, groups, visible
            As in a table.
        sizes
            Samples, channels and filters. [items]
        seconds
            Measured time. [s]
        """
        lists = ("x".join(map(str, one)) for one in (in_extents, out_extents, kernel, stride))
        self.rows.append(
            [operation, direction, precision, *sizes, *lists, groups, float(seconds), visible]
        )


def read_csv(path: str) -> list[Cells]:
    """Rows of a CSV file by column."""
    text = printable(read_text(path, f"the file {path}"))
    try:
        return list(csv.DictReader(text.splitlines()))
    except csv.Error as error:
        raise InputError(
            f"{plain(path)} must be a CSV table but is none ({error}); correct it"
        ) from None


def require_columns(path: str, rows: Sequence[Cells], forms: Mapping[str, Iterable[str]]) -> str:
    """The form whose columns the rows have.

    Parameters
    ----------
    path
        Of the file, for messages.
    rows
        Rows by column.
    forms
        Columns by the name of the form.
    """
    present = set(rows[0]) if rows else set()
    for form, columns in forms.items():
        if present.issuperset(columns):
            return form
    wanted = "; ".join(f"for {form}: {', '.join(columns)}" for form, columns in forms.items())
    have = ", ".join(sorted(map(str, present))) or "none"
    raise InputError(
        f"{plain(path)} must have the columns of a known table ({wanted}) but has {have}; give "
        "another file or name its form"
    )


def cell_reader(path: str, number: int, cells: Cells) -> Callable[[str], float]:
    """Reads positive numbers of one row.

    Parameters
    ----------
    path, number
        File and row, for messages.
    cells
        The row by column.
    """

    def read(column: str) -> float:
        text = cells[column]
        try:
            value = float(str(text))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise InputError.rule(
                f"row {number}, column {column} of {plain(path)}",
                "be a finite number above 0",
                f"'{text}'",
                "correct or remove the row",
            )
        return value

    return read
