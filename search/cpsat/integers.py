"""Costs as the whole numbers that CP-SAT wants.

Models: every array of costs is lowered by its least entry, divided by a power of two (which is
exact) and rounded down, so the integer optimum bounds the true one from below as it stands; the two
differ by at most one unit per array. Costs that are whole numbers stay as they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from search.core.core import Core
from search.core.fixing import edges_of

# Integer objectives stay below this, so that they survive a detour over float64.
MAX_OBJECTIVE = 2.0**52
# All roundings together should not matter at the precision to which answers are called optimal.
TARGET_ROUNDING = 1e-10
# Where all costs are alike, a unit must be above 0 all the same.
TINY = 1e-300
# Stands for the cost of what is not allowed: more than any sum of costs.
GONE = np.int64(2**60)


class Scale(Struct, frozen=True, kw_only=True):
    """How float costs became integers.

    Parameters
    ----------
    unit
        What one integer step is worth.
    offset
        What was taken off before.
    noise
        The most by which lowering and summing floats may itself have rounded.
    exact
        Whether nothing was rounded at all.
    """

    unit: float
    offset: float
    noise: float
    exact: bool

    def bound(self, objective: float) -> float:
        """A lower bound on true costs from a lower bound on the integer objective."""
        return self.offset + self.unit * objective - self.noise

    def most(self, cost: float) -> int:
        """The largest integer objective that an assignment of at most this cost can have."""
        return math.floor((cost - self.offset + self.noise) / self.unit)


class Classes(NamedTuple):
    """The class of every row and column of a matrix, and the matrix of classes."""

    rows: np.ndarray
    columns: np.ndarray
    matrix: np.ndarray


def scale_of(core: Core, known_cost: float) -> Scale:
    """How to make integers of a core's costs.

    Parameters
    ----------
    core
        The core.
    known_cost
        Cost of an assignment known to fit, by which the rounding is chosen; +inf where none is.
    """
    parts = np.split(core.costs, core.graph.offsets[1:-1])
    parts += [edge.matrix[edge.matrix < core.penalty] for edge in edges_of(core)]
    arrays = [a for a in parts if a.size]
    least = [core.constant, *(float(a.min()) for a in arrays)]
    spread = math.fsum(float(np.ptp(a)) for a in arrays)
    offset = math.fsum(least)
    whole = core.constant.is_integer() and all(bool((a == np.floor(a)).all()) for a in arrays)
    if whole and spread < MAX_OBJECTIVE:
        return Scale(unit=1.0, offset=offset, noise=0.0, exact=True)
    magnitude = abs(known_cost) if 0 < abs(known_cost) < math.inf else spread
    wanted = TARGET_ROUNDING * magnitude / max(1, len(arrays))
    unit = 2.0 ** math.floor(math.log2(max(wanted, spread / MAX_OBJECTIVE * 2, TINY)))
    assert spread / unit < 2 * MAX_OBJECTIVE, "the objective would leave the exact integers"
    noise = 2.0**-50 * (spread + math.fsum(abs(x) for x in least))
    return Scale(unit=unit, offset=offset, noise=noise, exact=False)


def split_sums(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take a term per row and one per column off a matrix, so that all of it is at least 0.

    Rows and columns that differ by a constant become equal. Entries of `GONE` stay as they are.
    """
    gone = matrix == GONE
    ahead = _least(matrix, 1)
    matrix = np.where(gone, GONE, matrix - ahead[:, None])
    back = _least(matrix, 0)
    return np.where(gone, GONE, matrix - back), ahead, back


def _least(matrix: np.ndarray, axis: int) -> np.ndarray:
    least = matrix.min(axis=axis, initial=GONE)
    return np.where(least == GONE, 0, least)


def classes_of(matrix: np.ndarray) -> Classes:
    """Bring equal rows and equal columns together."""
    if not matrix.size:
        return Classes(np.zeros(len(matrix), int), np.zeros(matrix.shape[1], int), matrix[:1, :1])
    small, rows = np.unique(matrix, axis=0, return_inverse=True)
    small, columns = np.unique(small, axis=1, return_inverse=True)
    return Classes(rows.ravel(), columns.ravel(), small)


def whole_units(array: np.ndarray, unit: float) -> np.ndarray:
    """Whole units above the least entry, rounded down; 0 where forbidden."""
    allowed = np.isfinite(array)
    least = float(array.min(initial=np.inf))
    lowered = np.where(allowed, array - (least if least < np.inf else 0.0), 0.0)
    return np.floor(lowered / unit).astype(np.int64)
