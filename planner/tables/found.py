"""What a reader of a public form finds in a file, and how it reads cells."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from costmodels.compute.table import positive_cell
from costmodels.errors import InputError, plain, printable
from costmodels.units.tables import read_text

Cells = Mapping[str, object]


class Found(Struct, kw_only=True):
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
        rows: list[Cells] = list(csv.DictReader(text.splitlines()))
    except csv.Error as error:
        raise InputError(
            f"{plain(path)} must be a CSV table but is none ({error}); correct it"
        ) from None
    for number, cells in enumerate(rows, start=2):
        # the reader puts cells beyond the last column under no name, and none where they lack
        if None in cells or None in cells.values():
            raise InputError(
                f"row {number} of {plain(path)} must have a cell for each column but has "
                f"{'more' if None in cells else 'fewer'}; correct or remove the row"
            )
    return rows


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


class RowReader:
    """Reads numbers of one row.

    Parameters
    ----------
    path, number
        File and row, for messages.
    cells
        The row by column.
    """

    def __init__(self, path: str, number: int, cells: Cells) -> None:
        self.path = plain(path)
        self.place = f"row {number}"
        self.cells = cells

    def count(self, column: str) -> int:
        """How many of something. [items]"""
        return int(self._read(column, whole=True))

    def amount(self, column: str) -> float:
        """A time or a rate, in the unit of the column."""
        return self._read(column, whole=False)

    def _read(self, column: str, *, whole: bool) -> float:
        text = plain(str(self.cells[column]))
        return positive_cell(self.path, self.place, column, text, whole=whole)
