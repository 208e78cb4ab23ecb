"""Steps of measured rows by every step model, each distinct one once, and what calibrates them.

Kernels are multiplied by one factor where a row on one GPU of the same machine tells it: the one
with which its step takes as long as measured, launched by the host that is assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from benchmarks.accuracy.rows import MeasuredRow
from benchmarks.accuracy.steps import (
    OVERLAP_FACTOR,
    TIMELINE,
    MeasuredRun,
    PlacedNetwork,
    simulated_step,
    simulation_input,
    timeline_step,
    with_factor,
)
from costmodels.errors import InputError
from costmodels.simulation.pieces import Pieces

ONE_GPU = "one GPU"
NOT_CALIBRATED = "not calibrated"
# Kernels so fast that a step is what its host needs to launch them.
HIDDEN = 1e-3


class Correction(NamedTuple):
    """Factors on kernels and on the time that the host takes to launch one."""

    kernels: float = 1.0
    launches: float = 1.0


AS_PREDICTED = Correction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is predicted besides the row: how computation and overlap are taken."""

    scale: Correction = AS_PREDICTED
    model: str = "simulate"
    overlap_factor: float | None = None


def _identity(row: MeasuredRow) -> tuple[Any, ...]:
    """Equal for rows that are predicted alike."""
    cluster = row.cluster
    return (
        *(row.run.model, cluster.device.name, cluster.levels, row.gpus, row.batch),
        *(row.precision, row.runtime, row.run.winograd, row.whole),
        *sorted((name, str(value)) for name, value in row.run.options.items()),
    )


def _update_time(subject: PlacedNetwork) -> float:
    """Weight updates of a step, which end it. [s]"""
    pieces = Pieces(subject.graph, subject.setting.machine)
    return sum(pieces.of(name, split).update for name, split in subject.distributions.items())


def _timeline_run(row: MeasuredRow) -> MeasuredRun:
    if row.runtime.gradient != "all_reduce":
        raise InputError("the timeline all-reduces gradients, and has no parameter servers")
    options = {**row.run.options, "gradient_overlap": row.runtime.overlap}
    return replace(row.run, options=options)


class StepTimes:
    """Predicted steps, and factors on computation."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], float] = {}
        self._last: tuple[tuple[Any, ...], Any] = ((), None)  # graphs are large: one is kept

    def seconds(self, row: MeasuredRow, setup: Setup | None = None) -> float:
        """Predicted time of a step. [s]

        Raises
        ------
        InputError
            When it cannot be run.
        """
        setup = setup or Setup()
        own = _identity(row)
        gamma = OVERLAP_FACTOR if setup.overlap_factor is None else setup.overlap_factor
        key = (*own, *(round(factor, 6) for factor in setup.scale), setup.model, gamma)
        if key not in self._known:
            self._known[key] = self._predicted(row, own, setup, gamma)
        return self._known[key]

    def _predicted(
        self, row: MeasuredRow, own: tuple[Any, ...], setup: Setup, gamma: float
    ) -> float:
        if setup.model == TIMELINE:
            found = timeline_step(_timeline_run(row), *setup.scale)
            return found.total - (0.0 if row.whole else found.update)
        if own != self._last[0]:
            self._last = (own, simulation_input(row.run))
        subject = with_factor(self._last[1], *setup.scale)
        step = simulated_step(subject, row.runtime, model=setup.model, overlap_factor=gamma)
        return step.step_time - (0.0 if row.whole else _update_time(subject))

    def scale(self, row: MeasuredRow, model: str = "simulate") -> Correction:
        """Factors with which a row on one GPU takes as long as measured.

        That of launches is 1 but for a host that is faster than assumed: then both are one number.
        """

        def missing(kernels: float) -> float:
            return self.seconds(row, Setup(scale=Correction(kernels), model=model)) - row.seconds

        as_predicted = missing(1.0)
        if missing(HIDDEN) >= 0.0:
            ratio = row.seconds / (row.seconds + as_predicted)
            return Correction(ratio, ratio)
        low, high = (HIDDEN, 1.0) if as_predicted > 0.0 else (1.0, 2.0)
        while missing(high) < 0.0:
            low, high = high, 2.0 * high
        # a step is convex in the factor: kernels come out of the shadow of launches one by one
        for _ in range(40):
            found = low + (high - low) * missing(low) / (missing(low) - missing(high))
            if abs(missing(found)) <= 1e-3 * row.seconds:
                break
            low, high = (found, high) if missing(found) < 0.0 else (low, found)
        return Correction(found)


class Factors:
    """Factors on kernels from rows on one GPU.

    Parameters
    ----------
    rows
        All rows; those on several GPUs, and those whose time is not that of a whole step, are
        ignored.
    steps
        Predicts.
    model
        The step model that is calibrated.
    """

    def __init__(self, rows: Sequence[MeasuredRow], steps: StepTimes, model: str) -> None:
        self._steps = steps
        # closed forms and the parts of a simulation share the factor of the simulation
        self._model = model
        self._by: dict[tuple[str, tuple[str, ...]], list[MeasuredRow]] = {}
        self._scales: dict[int, Correction] = {}
        for row in rows:
            if row.gpus == 1:
                for key in _kinships(row):
                    self._by.setdefault(key, []).append(row)

    def of(self, row: MeasuredRow) -> tuple[Correction, str]:
        """Factors for a row, and what kind of row told them: "not calibrated" for none."""
        wanted = row.batch / row.gpus
        for kind, key in _kinships(row):
            single = self._by.get((kind, key), [])
            if single:
                distance = {r.batch: abs(math.log(r.batch / wanted)) for r in single}
                near = [r for r in single if distance[r.batch] == min(distance.values())]
                scales = [self._scale(r) for r in near]
                return Correction(*map(statistics.fmean, zip(*scales, strict=True))), kind
        return Correction(), NOT_CALIBRATED

    def _scale(self, row: MeasuredRow) -> Correction:
        """Factors of a row on one GPU, each found once."""
        if id(row) not in self._scales:
            self._scales[id(row)] = self._steps.scale(row, self._model)
        return self._scales[id(row)]


def _kinships(row: MeasuredRow) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What calibrates a row, the nearest kin first."""
    return (
        ("calibrated", row.kin),
        ("calibrated, other batch", row.kin[:-1]),
        ("calibrated, other publication", row.family),
    )
