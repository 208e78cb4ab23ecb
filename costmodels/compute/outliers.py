"""Rows of tables that are far off what akin rows say: slips of the pen, or of the clock.

A row is compared with its neighbours in size, that is in modelled time, of the same operation and
direction; where there are few, with those of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.compute.work import Work

FloatArray = NDArray[np.float64]

# A row is an outlier when it is so many times off its neighbours in size and so many of their
# spreads, or `_OFF_ALONE` whatever the spread. One of few must be that far off the model, too.
_OFF: Final = math.log(4.0)
_SPREADS: Final = 4.0
_OFF_ALONE: Final = math.log(16.0)
# Neighbours in size on each side that a row is compared with. [items]
_BESIDE: Final = 8
# Fewer rows of an operation and direction are compared with rows of others. [items]
_FEW: Final = 4
# A median of absolute deviations times this is the standard deviation of a normal distribution.
NORMAL: Final = 1.4826


def expected_ratios(works: Sequence[Work], sizes: FloatArray, ratios: FloatArray) -> FloatArray:
    """What akin rows say that the ratio of each row is, without the row itself.

    Parameters
    ----------
    works
        Work of the rows.
    sizes, ratios
        Logarithms of the modelled times and of the ratios of the rows.
    """
    expected = _without_itself(sizes, ratios)
    for members in _same_pass(works):
        if len(members) >= _FEW:
            expected[members] = _without_itself(sizes[members], ratios[members])
    return expected


def _same_pass(works: Sequence[Work]) -> list[list[int]]:
    """Numbers of the rows of each operation and direction."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, work in enumerate(works):
        found.setdefault((work.operation, work.direction), []).append(number)
    return list(found.values())


def _without_itself(sizes: FloatArray, ratios: FloatArray) -> FloatArray:
    """Median ratio of the neighbours in size of each row; that of the model, 0, for a lone row."""
    if sizes.size < 2:
        return np.zeros(sizes.size)
    order = np.argsort(sizes, kind="stable")
    padded = np.pad(ratios[order], _BESIDE, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _BESIDE + 1).copy()
    windows[:, _BESIDE] = np.nan
    result = np.empty_like(ratios)
    result[order] = np.nanmedian(windows, axis=1)
    return result


def find_outliers(
    works: Sequence[Work], ratios: FloatArray, expected: FloatArray
) -> NDArray[np.bool_]:
    """Which rows are so far off that they must be slips.

    Parameters
    ----------
    works
        Work of the rows.
    ratios, expected
        Logarithms of their ratios, and what akin rows say of these.
    """
    off = np.abs(ratios - expected)
    few = np.zeros(ratios.size, dtype=bool)
    for members in _same_pass(works):
        few[members] = len(members) < _FEW
    spread = NORMAL * float(np.median(off)) if off.size >= _FEW else 0.0
    limit = min(max(_OFF, _SPREADS * spread), _OFF_ALONE)
    # few of a kind may all be slow for a reason; what is out of any proportion is not
    found: NDArray[np.bool_] = (off > limit) & (~few | (np.abs(ratios) > _OFF_ALONE))
    return found
