"""Rows of tables that measured one shape, which say of others what a single row would."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from costmodels.compute.table import CostTable, Row
from costmodels.compute.work import Work


class Shapes(Struct, frozen=True, kw_only=True):
    """Measured shapes, each once.

    Attributes
    ----------
    rows
        A row for each shape, with the name of its table.
    widest_repeat
        Largest ratio of two times of one shape that a table has.
    tables_apart
        Largest ratio of what another table says of a shape to what the first says, or the reverse.
    """

    rows: list[tuple[str, Row]]
    widest_repeat: float
    tables_apart: float


def each_shape_once(tables: Sequence[CostTable], precision: str) -> Shapes:
    """Rows with the names of their tables, those of one shape as one, and how far those are apart.

    Of several tables the most trusted one has a say, of several rows of it the mean of the
    logarithms: how often something was measured says nothing of what is akin to it.

    Parameters
    ----------
    tables, precision
        As of `costmodels.compute.measured.Measured`.
    """
    found: dict[tuple[object, ...], tuple[str, Row]] = {}
    widest = apart = 1.0
    for table in tables:
        rows_of: dict[tuple[object, ...], list[Row]] = {}
        for row in table.rows:
            if row.precision == precision:
                rows_of.setdefault(_same_shape(row.work), []).append(row)
        for shape, rows in rows_of.items():
            seconds = [row.seconds for row in rows]
            mean = rows[0]
            if max(seconds) > min(seconds):
                widest = max(widest, max(seconds) / min(seconds))
                mean = replace(mean, seconds=math.exp(sum(map(math.log, seconds)) / len(seconds)))
            _, first = found.setdefault(shape, (table.name, mean))
            ratio = mean.seconds / first.seconds
            apart = max(apart, ratio, 1.0 / ratio)
    return Shapes(rows=list(found.values()), widest_repeat=widest, tables_apart=apart)


def _same_shape(work: Work) -> tuple[object, ...]:
    """What rows of one shape have in common."""
    one = flattened(work)
    sizes = (one.samples, one.channels, one.filters, one.groups, one.visible)
    numbers = (float(size) for size in (*sizes, *one.in_extents, *one.out_extents))
    # of as many extents each, or they read and write unlike numbers of dims
    ranks = len(one.in_extents), len(one.out_extents)
    return (one.operation, one.direction, one.kernel, one.stride, ranks, *numbers)


def flattened(work: Work) -> Work:
    """A linear layer multiplies all positions of all samples alike, however they are arranged."""
    if work.operation != "linear" or not work.out_extents:
        return work
    rows = math.prod(work.out_extents, start=work.samples)
    return replace(work, samples=rows, in_extents=(), out_extents=())
