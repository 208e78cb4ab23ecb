"""What both passes of a layer take at least, of many splits at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.distribution import Candidates, enumerate_candidates
from costmodels.graph import Layer
from costmodels.layers.layer_passes import layer_computation
from costmodels.layers.local_work import local_parameters
from costmodels.step.machine import Machine


class LeastPasses(NamedTuple):
    """What both passes of a layer take at least.

    Parameters
    ----------
    whole, before, forward
        With the backward pass of the weight, without, and the forward pass alone, each of them
        whatever the split. [s]
    split
        With it, as the layer is split, where that is known. [s]
    """

    whole: float
    before: float
    forward: float
    split: float


def least_passes(
    layer: Layer,
    machine: Machine,
    wanted: tuple[bool, ...],
    parts: Sequence[int],
    gpus: Sequence[int],
    splits: Sequence[Mapping[str, int]],
) -> list[LeastPasses]:
    """What both passes of a layer take at least, for parts of its samples.

    A part of the samples is computed as all of them are that are split in so many ways more, and
    fewer devices compute a part as more of them do a smaller one.

    Parameters
    ----------
    layer, machine, wanted
        As of `LayerComputation.of`.
    parts
        By how much the samples are divided. [ways]
    gpus
        Numbers of devices. [items]
    splits
        How the layer is split on each number of devices, where that is known. [ways]

    Returns
    -------
    Of each number of devices all parts.
    """
    rows, starts, places_of = [], [0], []
    for number, split in zip(gpus, splits, strict=True):
        totals = enumerate_candidates(layer, (number,), 0, full=True)
        samples = "sample" in totals.dims
        for part in parts:
            degrees = totals.degrees[:, 0]
            if samples:
                column = totals.dims.index("sample")
                ways = degrees[:, column] * part
                degrees = degrees[ways <= max(layer.dims.get("sample", 1), part)].copy()
                degrees[:, column] *= part
            same: list[int] = []
            if split:
                ways = np.array([split.get(dim, 1) for dim in totals.dims])
                if samples:
                    ways[column] *= part
                same = np.flatnonzero((degrees == ways).all(axis=1)).tolist()
            places_of.append(starts[-1] + same[0] if same else None)
            rows.append(degrees)
            starts.append(starts[-1] + len(degrees))
    alike, places = _distinct_rows(np.concatenate(rows))
    candidates = Candidates(dims=totals.dims, degrees=alike[:, None], shape=totals.shape)
    parameters = local_parameters(layer, candidates) * (layer.shares_weight_with is None)
    times = layer_computation(layer, candidates, machine, parameters, any(wanted))
    before = times.forward + times.backward_data
    passes = before + times.backward_weight
    # attention has a second product backwards, but no weight
    forward = np.broadcast_to(times.forward, passes.shape)
    each = np.stack([passes, before if layer.parameters else passes, forward])[:, places]
    least = np.minimum.reduceat(each, starts[:-1], axis=1).T.tolist()
    return [
        LeastPasses(whole, part, ahead, whole if place is None else float(each[0, place]))
        for (whole, part, ahead), place in zip(least, places_of, strict=True)
    ]


def _distinct_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct rows of numbers, and the place of each row among them."""
    keys = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, number = np.unique(column, return_inverse=True)
        keys = keys * len(values) + number
    _, first, places = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], places
