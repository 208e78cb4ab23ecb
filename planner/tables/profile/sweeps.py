"""How far curves, and straight lines, are from what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.cluster.curve import CollectiveCurve
from costmodels.communication.curves import curve_times

Rows = Sequence[tuple[float, float, float]]


def fit_error(curve: CollectiveCurve, rows: Rows) -> float:
    """Mean relative error of a curve on the rows (bytes, seconds, spread) of a sweep.

    Parameters
    ----------
    curve
        The curve.
    rows
        What was measured.
    """
    sizes, seconds = _sizes_and_seconds(rows)
    return float(np.abs(curve_times(curve, sizes) / seconds - 1.0).mean())


def straight_error(rows: Rows) -> float:
    """Mean relative error of the straight line that is closest to the rows of a sweep."""
    sizes, seconds = _sizes_and_seconds(rows)
    scaled = np.stack([1.0 / seconds, sizes / seconds], axis=1)
    line = np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)[0]
    return float(np.abs(scaled @ line - 1.0).mean())


def _sizes_and_seconds(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
