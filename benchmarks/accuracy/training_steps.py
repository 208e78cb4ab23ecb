"""Steps of measured training rows, simulated, each distinct one once.

Computation is multiplied by one factor where a row on one GPU of the same machine tells it: that
row's measured time over its simulated one. Steps on one GPU are sums over layers, so that the
factor is found in a few rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from benchmarks.accuracy.runs import CalibratedCompute, network
from benchmarks.accuracy.training_rows import TrainingRow
from planner.request.placement import PlacedNetwork, place_network
from planner.request.request import Request
from planner.simulation.run import OVERLAP_FACTOR, simulate_placed

ABLATION = ("simulate", "plain", "flexflow-sim", "paradl", "paleo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated besides the row: how computation and overlap are taken."""

    factor: float = 1.0
    model: str = "simulate"
    overlap_factor: float | None = None


def with_factor(subject: PlacedNetwork, factor: float) -> PlacedNetwork:
    """The subject with its computation multiplied."""
    if factor == 1.0:
        return subject
    machine = subject.setting.machine
    machine = replace(machine, compute=CalibratedCompute(machine.compute, factor))
    return replace(subject, setting=replace(subject.setting, machine=machine))


def subject_of(row: TrainingRow) -> PlacedNetwork:
    """What a row ran."""
    return place_network(
        Request(
            source=network(row.model),
            gpus=row.gpus,
            strategy="data",
            cluster=row.cluster,
            global_batch_size=row.batch,
            precision=row.precision,
            winograd=row.winograd,
            # libraries of that time reduce around rings, or trees on many hosts
            all_reduce="ring" if row.gpus <= 64 else "auto",
        )
    )


def _key(row: TrainingRow) -> tuple[Any, ...]:
    return (
        *(row.model, row.cluster.name, row.cluster.shape(row.gpus), row.gpus, row.batch),
        *(row.precision, row.runtime, row.winograd),
    )


class Steps:
    """Simulated steps, and factors on computation."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], float] = {}
        self._last: tuple[tuple[Any, ...], Any] = ((), None)  # graphs are large: one is kept
        self._lines: dict[tuple[Any, ...], list[tuple[float, float]]] = {}

    def seconds(self, row: TrainingRow, setup: Setup | None = None) -> float:
        """Simulated time of a step. [s]

        Raises
        ------
        InputError
            When it cannot be run.
        """
        setup = setup or Setup()
        own = _key(row)
        gamma = OVERLAP_FACTOR if setup.overlap_factor is None else setup.overlap_factor
        key = (*own, round(setup.factor, 4), setup.model, gamma)
        if key not in self._known:
            if own != self._last[0]:
                self._last = (own, subject_of(row))
            subject = with_factor(self._last[1], setup.factor)
            done = simulate_placed(subject, row.runtime, setup.model, gamma, None)
            self._known[key] = done.step_time
        return self._known[key]

    def factor(self, row: TrainingRow) -> float:
        """Factor on computation with which a row on one GPU takes as long as measured.

        Time follows the factor on a line but for kernels that wait for their launch: the line
        through the two nearest known points is followed until it is met.
        """
        points = self._lines.setdefault(_key(row), [])
        for _ in range(6):
            factor = _on_line(points, row.seconds)
            if any(abs(factor - known) < 0.1 * known for known, _ in points[1:]):
                return factor
            points.append((factor, self.seconds(row, Setup(factor=factor))))
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


@lru_cache(maxsize=1)
def steps() -> Steps:
    """One store for a process."""
    return Steps()


class Factors:
    """Factors on computation from rows on one GPU.

    Parameters
    ----------
    rows
        All rows; those on several GPUs are ignored.
    """

    def __init__(self, rows: Sequence[TrainingRow]) -> None:
        self._by: dict[tuple[str, tuple[str, ...]], list[TrainingRow]] = {}
        for row in rows:
            if row.gpus == 1:
                for key in _keys(row):
                    self._by.setdefault(key, []).append(row)

    def of(self, row: TrainingRow) -> tuple[float, str]:
        """Factor for a row, and what kind of row told it: "not calibrated" for none."""
        wanted = row.batch / row.gpus
        for kind, key in _keys(row):
            single = self._by.get((kind, key), [])
            if single:
                distance = {r.batch: abs(math.log(r.batch / wanted)) for r in single}
                near = [r for r in single if distance[r.batch] == min(distance.values())]
                factors = [steps().factor(r) for r in near]
                return statistics.fmean(factors), kind
        return 1.0, "not calibrated"


def _keys(row: TrainingRow) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What calibrates a row, the nearest kin first."""
    return (
        ("calibrated", row.kin),
        ("calibrated, other batch", row.kin[:-1]),
        ("calibrated, other publication", row.family),
    )
