"""Steps of measured rows by every step model, each distinct one once, and what calibrates them.

Computation is multiplied by one factor where a row on one GPU of the same machine tells it: that
row's measured time over its predicted one. Steps on one GPU are sums over layers, so that the
factor is found in a few rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.accuracy.rows import MeasuredRow
from benchmarks.accuracy.steps import (
    OVERLAP_FACTOR,
    TIMELINE,
    MeasuredRun,
    simulated_step,
    simulation_input,
    timeline_step,
    update_time,
    with_factor,
)
from costmodels.errors import InputError

ONE_GPU = "one GPU"
NOT_CALIBRATED = "not calibrated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is predicted besides the row: how computation and overlap are taken."""

    factor: float = 1.0
    model: str = "simulate"
    overlap_factor: float | None = None


def _identity(row: MeasuredRow) -> tuple[Any, ...]:
    """Equal for rows that are predicted alike."""
    cluster = row.cluster
    return (
        *(row.run.model, cluster.device.name, cluster.levels, row.gpus, row.batch),
        *(row.precision, row.runtime, row.run.winograd, row.whole),
    )


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
        self._lines: dict[tuple[Any, ...], list[tuple[float, float]]] = {}

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
        key = (*own, round(setup.factor, 4), setup.model, gamma)
        if key not in self._known:
            self._known[key] = self._predicted(row, own, setup, gamma)
        return self._known[key]

    def _predicted(
        self, row: MeasuredRow, own: tuple[Any, ...], setup: Setup, gamma: float
    ) -> float:
        if setup.model == TIMELINE:
            found = timeline_step(_timeline_run(row), setup.factor)
            return found.total - (0.0 if row.whole else found.update)
        if own != self._last[0]:
            self._last = (own, simulation_input(row.run))
        subject = with_factor(self._last[1], setup.factor)
        step = simulated_step(subject, row.runtime, model=setup.model, overlap_factor=gamma)
        return step.step_time - (0.0 if row.whole else update_time(subject))

    def factor(self, row: MeasuredRow, model: str = "simulate") -> float:
        """Factor on computation with which a row on one GPU takes as long as measured.

        Time follows the factor on a line but for kernels that wait for their launch: the line
        through the two nearest known points is followed until it is met.
        """
        points = self._lines.setdefault((*_identity(row), model), [])
        for _ in range(6):
            factor = _on_line(points, row.seconds)
            if any(abs(factor - known) < 0.1 * known for known, _ in points[1:]):
                return factor
            points.append((factor, self.seconds(row, Setup(factor=factor, model=model))))
        return factor


def _on_line(points: list[tuple[float, float]], wanted: float) -> float:
    """Factor at which the line through the points next to the wanted time meets it."""
    if not points:
        return 1.0
    near = sorted(points, key=lambda point: abs(math.log(point[1] / wanted)))[:2]
    (x, y), (u, v) = near[0], near[-1]
    if len(near) == 1 or abs(y - v) < 1e-6 * y:
        return x * wanted / y
    return max(x + (u - x) * (wanted - y) / (v - y), 0.05)


class Factors:
    """Factors on computation from rows on one GPU.

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
        for row in rows:
            if row.gpus == 1:
                for key in _kinships(row):
                    self._by.setdefault(key, []).append(row)

    def of(self, row: MeasuredRow) -> tuple[float, str]:
        """Factor for a row, and what kind of row told it: "not calibrated" for none."""
        wanted = row.batch / row.gpus
        for kind, key in _kinships(row):
            single = self._by.get((kind, key), [])
            if single:
                distance = {r.batch: abs(math.log(r.batch / wanted)) for r in single}
                near = [r for r in single if distance[r.batch] == min(distance.values())]
                factors = [self._steps.factor(r, self._model) for r in near]
                return statistics.fmean(factors), kind
        return 1.0, NOT_CALIBRATED


def _kinships(row: MeasuredRow) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What calibrates a row, the nearest kin first."""
    return (
        ("calibrated", row.kin),
        ("calibrated, other batch", row.kin[:-1]),
        ("calibrated, other publication", row.family),
    )
