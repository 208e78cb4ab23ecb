"""Every row of a collection of training throughputs whose configuration is complete, predicted.

Rows on several GPUs are predicted twice: as they are, and with computation multiplied by the factor
that a row on one GPU of the same source, network, GPU, precision and batch per GPU gives.
"""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cells import Summary
from benchmarks.accuracy.report import percent
from benchmarks.accuracy.rows import Row, Skip, read
from benchmarks.accuracy.runs import MeasuredRun, Prediction, calibrate, predict
from costmodels.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A row and its predictions; calibrated is None where no row on one GPU is akin. [s]"""

    name: str
    source: str
    gpus: int
    measured: float
    predicted: float
    calibrated: float | None
    factor: float | None

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0

    @property
    def calibrated_error(self) -> float | None:
        return None if self.calibrated is None else self.calibrated / self.measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows, and what was skipped by reason."""

    rows: tuple[Compared, ...]
    skipped: dict[str, int] = field(default_factory=dict)

    def summaries(self, source: str | None = None) -> dict[str, Summary | None]:
        """Errors of rows on one GPU, on several, and of the latter calibrated."""
        rows = [r for r in self.rows if source in (None, r.source)]
        several = [r for r in rows if r.gpus > 1]
        akin = [r for r in several if r.calibrated_error is not None]
        return {
            "one GPU": Summary.of([r.error for r in rows if r.gpus == 1]),
            "several GPUs": Summary.of([r.error for r in several]),
            "several GPUs with kin": Summary.of([r.error for r in akin]),
            "several GPUs, calibrated": Summary.of(
                [r.calibrated_error for r in akin if r.calibrated_error is not None]
            ),
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        sources = dict.fromkeys(r.source for r in self.rows)
        return {
            "sources": {s: _plain(self.summaries(s)) for s in sources},
            "all": _plain(self.summaries()),
            "skipped": self.skipped,
            "rows": [
                {**asdict(r), "error": r.error, "calibrated_error": r.calibrated_error}
                for r in self.rows
            ],
        }


def _plain(summaries: dict[str, Summary | None]) -> dict[str, Any]:
    return {key: asdict(value) if value else None for key, value in summaries.items()}


def _identity(run: MeasuredRun) -> tuple[Any, ...]:
    """Equal for runs that are predicted alike."""
    assert not isinstance(run.cluster, str), "rows have clusters of their own"
    options = tuple(sorted(run.options.items()))
    return run.model, run.cluster.name, run.gpus, run.batch, run.winograd, options


class _Predictor:
    """Predicts each distinct run once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Prediction | str] = {}
        self._factors: dict[tuple[Any, ...], float] = {}

    def __call__(self, run: MeasuredRun, factor: float = 1.0) -> Prediction | str:
        key = (*_identity(run), round(factor, 6))
        if key not in self._known:
            try:
                self._known[key] = predict(run, factor)
            except InputError as error:
                self._known[key] = str(error)
        return self._known[key]

    def factor(self, single: list[Row]) -> float | None:
        """Factor on computation from rows on one GPU, None without any."""
        if not single:
            return None
        seconds = statistics.fmean(row.seconds for row in single)
        key = (*_identity(single[0].run), seconds)
        if key not in self._factors:
            self._factors[key] = calibrate([(single[0].run, seconds)])
        return self._factors[key]


def compare(path: Path) -> Report:
    """Predict every complete row of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        raw = list(csv.DictReader(file))
    rows, skipped = [], Counter[str]()
    for line in raw:
        try:
            rows.append(read(line))
        except Skip as reason:
            skipped[str(reason)] += 1
    kin: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.run.gpus == 1:
            kin.setdefault(row.kin, []).append(row)
    predictor = _Predictor()
    compared = []
    for row in rows:
        prediction = predictor(row.run)
        if isinstance(prediction, str):
            skipped[f"cannot be run: {prediction}"] += 1
            continue
        factor = predictor.factor(kin.get(row.kin, [])) if row.run.gpus > 1 else None
        calibrated = predictor(row.run, factor) if factor is not None else None
        compared.append(
            Compared(
                name=row.name,
                source=row.source,
                gpus=row.run.gpus,
                measured=row.seconds,
                predicted=_time(prediction, row.whole),
                calibrated=(
                    _time(calibrated, row.whole) if isinstance(calibrated, Prediction) else None
                ),
                factor=factor,
            )
        )
    return Report(rows=tuple(compared), skipped=dict(skipped.most_common()))


def _time(prediction: Prediction, whole: bool) -> float:
    return prediction.total - (0.0 if whole else prediction.update)


def _text(summary: Summary | None) -> tuple[str, str, str]:
    if summary is None:
        return "-", "-", "-"
    return str(summary.count), f"{summary.mean:.1%}", percent(summary.bias)


def show(report: Report, console: Console) -> None:
    """Print errors by source, then what was skipped."""
    table = Table(title="Training throughput: predicted and measured", title_justify="left")
    table.add_column("source")
    for part in ("one GPU", "several GPUs", "same, with kin", "same, calibrated"):
        for name in (f"{part}: rows", "mean |error|", "bias"):
            table.add_column(name, justify="right")
    for source in (*dict.fromkeys(r.source for r in report.rows), None):
        parts = report.summaries(source).values()
        table.add_row(source or "all", *(text for part in parts for text in _text(part)))
    console.print(table)
    skipped = Table(title=f"Skipped: {sum(report.skipped.values())} rows", title_justify="left")
    skipped.add_column("rows", justify="right")
    skipped.add_column("reason")
    for reason, count in report.skipped.items():
        skipped.add_row(str(count), reason)
    console.print(skipped)
