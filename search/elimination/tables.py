"""Sums of tables over shared nodes, and their minima over one of these: the min-plus product.

Models: a table is an array with one axis per node of its scope. `min_sum` adds tables that all
mention one node (axis 0) and keeps, for every combination of the others, the least over it.
Assumes: entries are finite or +inf, so that sums are never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from search.problem.deadline import Deadline

# An axis list says which axes of the joint table an array spans, ascending.
Part = tuple[tuple[int, ...], np.ndarray]

# Entries per chunk of a joint table: 1 MiB, which stays in a core's second-level cache.
CHUNK_ELEMENTS = 2**17


def arrange(scope: Sequence[int], array: np.ndarray, position: dict[int, int]) -> Part:
    """Put the axes of a table in the order of the joint table.

    Parameters
    ----------
    scope
        The node of each axis.
    array
        The table.
    position
        Per node its axis in the joint table.
    """
    axes = [position[u] for u in scope]
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != list(range(len(axes))):
        array = array.transpose(order)
    # Contiguous rows are what makes the inner loops of numpy fast.
    return tuple(axes[i] for i in order), np.ascontiguousarray(array)


def min_sum(
    parts: Sequence[Part], shape: tuple[int, ...], deadline: Deadline | None = None
) -> np.ndarray:
    """Add tables and take the minimum over axis 0.

    Parameters
    ----------
    parts
        Tables with the axes they span; axis 0 is among the axes of each.
    shape
        Shape of the joint table.
    deadline
        When to give up by raising `OutOfTime`: a single table may take long.
    """
    merged = merge_parts(parts, shape)
    if len(merged) == 1 and merged[0].shape == shape:
        return np.asarray(np.minimum.reduce(merged[0], axis=0))
    result = np.empty(shape[1:])
    per_row = shape[0] * int(np.prod(shape[2:], dtype=np.int64))
    step = max(1, CHUNK_ELEMENTS // max(per_row, 1))
    for low in range(0, shape[1], step):
        if deadline is not None:
            deadline.check()
        rows = slice(low, low + step)
        np.minimum.reduce(_joint(merged, rows), axis=0, out=result[rows])
    return result


def joint_table(parts: Sequence[Part], shape: tuple[int, ...]) -> np.ndarray:
    """The whole sum of tables, for callers that know it is small."""
    merged = merge_parts(parts, shape)
    total = merged[0]
    for array in merged[1:]:
        total = total + array
    return np.broadcast_to(total, shape)


def merge_parts(parts: Sequence[Part], shape: tuple[int, ...]) -> list[np.ndarray]:
    """Add every table into one whose axes include its own; broadcastable shapes are returned."""
    pending = [
        (axes, array.reshape([shape[a] if a in axes else 1 for a in range(len(shape))]))
        for axes, array in sorted(parts, key=lambda p: (len(p[0]), p[0]))
    ]
    kept: list[np.ndarray] = []
    for i, (axes, array) in enumerate(pending):
        for j in range(i + 1, len(pending)):
            # The smallest table that takes it, so that large ones are added to once.
            if set(axes) <= set(pending[j][0]):
                pending[j] = (pending[j][0], pending[j][1] + array)
                break
        else:
            kept.append(array)
    return kept


def _joint(merged: list[np.ndarray], rows: slice) -> np.ndarray:
    """The part of the joint table with these positions on axis 1."""
    cut = [a if a.shape[1] == 1 else a[:, rows] for a in merged]
    total = cut[0]
    for array in cut[1:]:
        total = total + array
    return total
