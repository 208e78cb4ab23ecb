"""What children of a level lack of a tensor when its layout changes, as parts of the tensor.

Counting is exact for equal blocks: at each level, a child (a device, a host, ...) lacks what its
new block holds beyond its old one.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.communication.layout import Layouts
from costmodels.distribution.rows import unique_rows

# What is smaller comes from rounding.
TINY = 1e-12
# Entries of the tables of some pairs: those of all pairs would leave the caches. [items]
TABLE = 40_000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _blocks_of_codes(codes: Ints, shape: tuple[int, ...]) -> Floats:
    """Start of the block of every rank for axis codes (codes, 2, levels): (codes, ranks)."""
    start = np.zeros((len(codes), 1))
    width = np.ones(len(codes))
    # outermost level first: its blocks are the largest
    for level in reversed(range(len(shape))):
        degree, stride = codes[:, 0, level], np.maximum(codes[:, 1, level], 1)
        digit = np.arange(shape[level])[None, :] // stride[:, None] % degree[:, None]
        width = width / degree
        start = (start[:, :, None] + (digit * width[:, None])[:, None, :]).reshape(len(codes), -1)
    return start


class _AxisOverlap(Struct, frozen=True):
    """Overlap of source and target blocks along one axis, for pairs of axis codes."""

    source: Ints  # code of each source layout
    target: Ints
    least: Floats  # smallest overlap over ranks; (codes, codes)
    constant: NDArray[np.bool_]  # whether it is the same on all ranks
    starts: Floats
    widths: Floats

    def exact(self, source_codes: Ints, target_codes: Ints, ranks: int) -> Floats:
        """Overlap on the first ranks for pairs of axis codes; (pairs, ranks)."""
        start_a, start_b = self.starts[source_codes, :ranks], self.starts[target_codes, :ranks]
        end_a = start_a + self.widths[source_codes, None]
        end_b = start_b + self.widths[target_codes, None]
        common: Floats = np.minimum(end_a, end_b) - np.maximum(start_a, start_b)
        return np.maximum(common, 0.0)


def _axis_overlap(
    source: Layouts, target: Layouts, axis: int, cut: int, shape: tuple[int, ...]
) -> _AxisOverlap:
    pick = [
        np.stack([x.degrees[:, cut:, axis], x.strides[:, cut:, axis]], axis=1)
        for x in (source, target)
    ]
    rows = np.concatenate(pick).reshape(len(source) + len(target), -1)
    first, inverse = unique_rows(rows)
    unique = rows[first]
    inverse = inverse.reshape(-1)
    codes = unique.reshape(len(unique), 2, -1)
    starts = _blocks_of_codes(codes, shape[cut:])
    widths = 1.0 / codes[:, 0].prod(axis=1)
    ends = starts + widths[:, None]
    least = np.empty((len(codes), len(codes)))
    most = np.empty_like(least)
    for i in range(len(codes)):
        overlap = np.minimum(ends[i], ends) - np.maximum(starts[i], starts)
        least[i] = np.maximum(overlap.min(axis=1), 0.0)
        most[i] = np.maximum(overlap.max(axis=1), 0.0)
    return _AxisOverlap(
        inverse[: len(source)],
        inverse[len(source) :],
        least,
        most - least < TINY,
        starts,
        widths,
    )


def lacking_part(source: Layouts, target: Layouts, cut: int, shape: tuple[int, ...]) -> Floats:
    """Part of the tensor that the worst-off child of a level lacks; (sources, targets).

    Parameters
    ----------
    source, target
        Layouts that the tensor is in, and that it must get.
    cut
        The level, 0 for devices.
    shape
        Members of each level, from the inside out. [items]
    """
    split = (source.degrees[:, cut:] > 1).any(axis=(0, 1)) | (target.degrees[:, cut:] > 1).any(
        axis=(0, 1)
    )
    need = 1.0 / target.degrees[:, cut:].prod(axis=(1, 2))
    held = np.ones((len(source), len(target)))
    overlaps = [_axis_overlap(source, target, int(a), cut, shape) for a in np.flatnonzero(split)]
    pairs = []
    for rows in parts_of_pairs(len(source), len(target)):
        varying = np.zeros(held[rows].shape, dtype=np.int8)
        for overlap in overlaps:
            pair = (overlap.source[rows, None], overlap.target[None, :])
            held[rows] *= overlap.least[pair]
            varying += ~overlap.constant[pair]
        # where blocks share nothing along one axis on some rank, that rank holds nothing
        i, j = np.nonzero((varying > 1) & (held[rows] > 0.0))
        pairs.append((i + rows.start, j))
    # where two axes vary over the ranks, the worst rank need not be the worst in both
    i, j = (np.concatenate(one) for one in zip(*pairs, strict=True))
    if len(i):
        held[i, j] = _worst_rank(source, target, (i, j), overlaps, cut, shape)
    lacking: Floats = np.maximum(np.subtract(need[None, :], held, out=held), 0.0, out=held)
    lacking[lacking < TINY] = 0.0
    return lacking


def parts_of_pairs(count: int, width: int, most: int = TABLE) -> list[slice]:
    """Rows of a table of pairs, so many at once as the caches like.

    Parameters
    ----------
    count, width
        Its rows and columns. [items]
    most
        Pairs that are in one part unless a row has more. [items]
    """
    size = max(most // max(width, 1), 1)
    return [slice(start, min(start + size, count)) for start in range(0, max(count, 1), size)]


def _worst_rank(
    source: Layouts,
    target: Layouts,
    pairs: tuple[Ints, Ints],
    overlaps: list[_AxisOverlap],
    cut: int,
    shape: tuple[int, ...],
) -> Floats:
    """Least overlap over the ranks for pairs of layouts that vary in several axes; (pairs,)."""
    i, j = pairs
    # samples have the most significant digit: blocks of samples that both sides tell apart repeat
    # the same pattern, so that one of them speaks for all
    outer = max((level for level in range(cut, len(shape)) if shape[level] > 1), default=cut)
    repeats = np.gcd(source.degrees[i, outer, 0], target.degrees[j, outer, 0])
    # pairs that agree in the axes that vary share one walk over the ranks
    steady = np.ones(len(i))
    columns = [repeats]
    for overlap in overlaps:
        a, b = overlap.source[i], overlap.target[j]
        constant = overlap.constant[a, b]
        steady *= np.where(constant, overlap.least[a, b], 1.0)
        columns += [np.where(constant, -1, a), np.where(constant, -1, b)]
    table = np.stack(columns, axis=1)
    first, inverse = unique_rows(table)
    keys = table[first]
    ranks = math.prod(shape[cut:])
    least = np.empty(len(keys))
    # keys that vary in the same axes are walked together, as many at once as the cache likes
    kinds = np.concatenate([keys[:, :1], keys[:, 1::2] >= 0], axis=1)
    leader, kind = unique_rows(kinds)
    for number, row in enumerate(leader):
        some, count = np.flatnonzero(kind == number), ranks // int(keys[row, 0])
        chunk = max(1, 100_000 // count)
        for start in range(0, len(some), chunk):
            part = some[start : start + chunk]
            product = np.ones(1)
            for n, overlap in enumerate(overlaps):
                if kinds[row, 1 + n]:
                    a, b = keys[part, 1 + 2 * n], keys[part, 2 + 2 * n]
                    product = product * overlap.exact(a, b, count)
            least[part] = product.min(axis=1)
    worst: Floats = least[inverse] * steady
    return worst
