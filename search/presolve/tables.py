"""Arrays that are shared by content, and what is worked out about them once.

Models: a large problem repeats few distinct blocks very often. If equal arrays are one object, what
was done to the first of equal nodes and edges is looked up for all others.
Assumes: tables are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class PooledArray:
    """An array of which there is only one in its pool; tables are compared as objects and
    ordered by number."""

    __slots__ = ("array", "number")

    def __init__(self, array: np.ndarray, number: int) -> None:
        self.array = array
        self.number = number


class Pool:
    """All tables of one presolve."""

    def __init__(self) -> None:
        self._tables: dict[tuple[tuple[int, ...], str, bytes], PooledArray] = {}
        self._known: dict[tuple[Any, ...], Any] = {}

    def table(self, array: np.ndarray) -> PooledArray:
        """The table with this content."""
        key = (array.shape, array.dtype.char, array.tobytes())
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = PooledArray(np.ascontiguousarray(array), len(self._tables))
        return found

    def once(self, function: Callable[..., T], *tables: Hashable) -> T:
        """`function(self, *tables)`, computed the first time; it must depend on nothing else."""
        key = (function, *tables)
        try:
            return self._known[key]  # type: ignore[no-any-return]
        except KeyError:
            found = self._known[key] = function(self, *tables)
            return found


def plus(pool: Pool, a: PooledArray, b: PooledArray) -> PooledArray:
    """The sum.

    Parameters
    ----------
    pool
        Where the sum goes.
    a, b
        What is added.
    """
    return pool.table(a.array + b.array)


def minus(pool: Pool, a: PooledArray, b: PooledArray) -> PooledArray:
    """The difference.

    Parameters
    ----------
    pool
        Where the difference goes.
    a, b
        From what to take what.
    """
    return pool.table(a.array - b.array)


def take(pool: Pool, table: PooledArray, index: PooledArray) -> PooledArray:
    """The rows at these positions.

    Parameters
    ----------
    pool
        Where they go.
    table
        Where they come from.
    index
        The positions.
    """
    return pool.table(table.array[index.array])


def turn(pool: Pool, matrix: PooledArray) -> PooledArray:
    """The transpose."""
    return pool.table(matrix.array.T)


def allowed(pool: Pool, costs: PooledArray) -> PooledArray | None:
    """The positions of finite costs, or None where all are."""
    return _true_positions(pool, np.isfinite(costs.array))


class Split(NamedTuple):
    """A usage vector: what is used at the least, and what beyond it (None where never more)."""

    least: float
    beyond: PooledArray | None


def split(pool: Pool, usage: PooledArray) -> Split:
    """Take the least off a usage vector."""
    values = usage.array
    least = float(values.min())
    if values.max() == least:
        return Split(least, None)
    return Split(least, pool.table(values - least) if least else usage)


def most_of(pool: Pool, usage: PooledArray) -> float:
    """The largest usage."""
    return float(usage.array.max())


def most_added(pool: Pool, old: PooledArray, new: PooledArray) -> float:
    """By how much usage rises at the most from one vector to the other.

    Parameters
    ----------
    pool
        Not used: a single number goes nowhere.
    old, new
        Usage per candidate before and after. [B]
    """
    return float((new.array - old.array).max())


class MatrixFacts(NamedTuple):
    """What can be done about an edge, seen from the node whose candidates index the rows.

    Parameters
    ----------
    supported
        The rows with an allowed entry, or None where all have one.
    terms
        What to add to the node's costs and to the neighbour's instead of the edge, or None where
        the edge is more than a sum of both.
    partner
        The only allowed column of every row, or None where a row allows several.
    """

    supported: PooledArray | None
    terms: tuple[PooledArray, PooledArray] | None
    partner: PooledArray | None


def matrix_facts(pool: Pool, matrix: PooledArray) -> MatrixFacts | None:
    """What can be done about an edge with this matrix, or None for nothing."""
    values = matrix.array
    if values.max() < np.inf:
        # Most matrices fail at their corners already.
        if values[-1, -1] - values[-1, 0] != values[0, -1] - values[0, 0]:
            return None
        rise = values[:, 0] - values[0, 0]
        if np.array_equal(values, rise[:, None] + values[0]):
            return MatrixFacts(None, (pool.table(rise), pool.table(values[0])), None)
        return None
    finite = np.isfinite(values)
    counts = finite.sum(axis=1)
    supported = _true_positions(pool, counts > 0)
    partner = pool.table(finite.argmax(axis=1)) if (counts == 1).all() else None
    if supported is None and partner is None:
        return None
    return MatrixFacts(supported, None, partner)


def _true_positions(pool: Pool, mask: np.ndarray) -> PooledArray | None:
    return None if mask.all() else pool.table(np.flatnonzero(mask))
