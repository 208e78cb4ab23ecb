"""Rows of tables that measured one shape, which say of others what a single row would."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.compute.table import CostTable, Row
from costmodels.compute.work import Work


def each_shape_once(
    tables: Sequence[CostTable], precision: str
) -> tuple[list[tuple[str, Row]], float]:
    """Rows with the names of their tables, those of one shape as one, and how far those are apart.

    Of several tables the most trusted one has a say, of several rows of it the mean of the
    logarithms: how often something was measured says nothing of what is akin to it.

    Parameters
    ----------
    tables, precision
        As of `costmodels.compute.measured.Measured`.

    Returns
    -------
    The rows, and the largest ratio of two times of one shape that a table has.
    """
    rows_of: dict[tuple[object, ...], tuple[CostTable, list[Row]]] = {}
    for table in tables:
        for row in table.rows:
            if row.precision == precision:
                known, rows = rows_of.setdefault(_same_shape(row.work), (table, []))
                if known is table:
                    rows.append(row)
    found, widest = [], 1.0
    for table, rows in rows_of.values():
        seconds = [row.seconds for row in rows]
        if max(seconds) > min(seconds):
            widest = max(widest, max(seconds) / min(seconds))
            mean = math.exp(sum(map(math.log, seconds)) / len(seconds))
            found.append((table.name, replace(rows[0], seconds=mean)))
        else:
            found.append((table.name, rows[0]))
    return found, widest


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
