"""Fits curves to measured collectives, and answers with them where they were measured.

A curve is a sum of `min(m, knot)` over knots at the sizes that were measured, of a start and of a
slope, none of which is negative: whatever these are it is concave and grows. They are fitted to the
relative error by non-negative least squares (Lawson and Hanson 1974, "Solving Least Squares
Problems", chapter 23), which leaves most knots without a rate: the pieces that the sizes tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.curve import CollectiveCurve
from costmodels.communication.topology import Floats, Topology

_SMALLEST = 1e-12
# Figures of a curve that are written: more than what repeats.
_DIGITS = 6


def fitted_curve(
    collective: str, hosts: int, gpus: int, sizes: Sequence[float], seconds: Sequence[float]
) -> CollectiveCurve:
    """The curve of measured times.

    Parameters
    ----------
    collective, hosts, gpus
        As of `CollectiveCurve`.
    sizes, seconds
        Bytes of each measurement, and how long they took. [B], [s]
    """
    points, times = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    knots = np.unique(points)[:-1]
    columns = np.stack(
        [np.ones_like(points), points, *(np.minimum(points, knot) for knot in knots)], axis=1
    )
    # sizes differ by many orders of magnitude: columns of like length make steps of like length
    scaled = columns / times[:, None]
    length = np.linalg.norm(scaled, axis=0)
    found = non_negative_least_squares(scaled / length, np.ones_like(times)) / length
    start, slope, *rates = (float(f"{value:.{_DIGITS}g}") for value in found)
    kept = [(float(knot), rate) for knot, rate in zip(knots, rates, strict=True) if rate > 0]
    return CollectiveCurve(
        collective=collective,
        hosts=hosts,
        gpus=gpus,
        start=start,
        slope=slope,
        knots=tuple(knot for knot, _ in kept),
        rates=tuple(rate for _, rate in kept),
    )


def non_negative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """The vector without negative entries that the matrix brings closest to the target.

    Parameters
    ----------
    matrix, target
        Of the equations; (rows, columns) and (rows,).
    """
    count = matrix.shape[1]
    found, active = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(3 * count):
        slopes = matrix.T @ (target - matrix @ found)
        slopes[active] = -np.inf
        best = int(slopes.argmax())
        if slopes[best] <= _SMALLEST:
            break
        active[best] = True
        while True:
            trial = np.zeros(count)
            trial[active] = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
            wrong = active & (trial <= 0)
            if not wrong.any():
                break
            step = (found[wrong] / np.maximum(found[wrong] - trial[wrong], 1e-300)).min()
            found = found + step * (trial - found)
            active &= found > _SMALLEST
            found[~active] = 0.0
        found = trial
    return found


def curve_times(curve: CollectiveCurve, num_bytes: ArrayLike) -> Floats:
    """How long a collective takes by a curve. [s]

    Parameters
    ----------
    curve
        The curve.
    num_bytes
        Bytes as the collective counts them. [B]
    """
    sizes = np.asarray(num_bytes, dtype=float)
    times = curve.start + curve.slope * sizes
    for knot, rate in zip(curve.knots, curve.rates, strict=True):
        times = times + rate * np.minimum(sizes, knot)
    result: Floats = np.where(sizes > 0, times, 0.0)
    return result


def with_curves(cluster: Cluster, curves: Sequence[CollectiveCurve]) -> Cluster:
    """A cluster whose collectives take what was measured, where that was.

    Parameters
    ----------
    cluster
        The machine.
    curves
        Measured on such machines; of two for one collective the first counts.
    """
    known = {(c.collective, c.hosts, c.gpus): c for c in (*reversed(curves), *cluster.curves)}
    return replace(cluster, curves=tuple(known.values()))


def measured_or(
    topology: Topology, collective: str, group: ArrayLike, num_bytes: ArrayLike, modelled: Floats
) -> Floats:
    """The measured time of a collective for groups that it was measured of, else the modelled. [s]

    Parameters
    ----------
    topology
        The used part of the cluster.
    collective, group, num_bytes
        What is done, by whom and with how many bytes. [B]
    modelled
        Its modelled time. [s]
    """
    curves = [curve for curve in topology.curves if curve.collective == collective]
    if not curves:
        return modelled
    members = np.asarray(group)
    hosts: NDArray[np.int64] = members[..., ~topology.inside_host].prod(axis=-1)
    gpus = members.prod(axis=-1)
    times = modelled
    for curve in curves:
        measured = (hosts == curve.hosts) & (gpus == curve.gpus)
        if np.any(measured):
            times = np.where(measured, curve_times(curve, num_bytes), times)
    return times
