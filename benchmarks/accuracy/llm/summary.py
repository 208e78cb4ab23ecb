"""How well transformer training is predicted, source by source."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.accuracy.llm.halves import fit_entry, in_fitted_half, was_fitted_on
from benchmarks.accuracy.llm.measurement import Measurement
from benchmarks.accuracy.llm.predict import LlmPrediction
from benchmarks.accuracy.row_report import places

# Recomputation adds a forward pass to one forward and two of backward.
_RECOMPUTED = 4.0 / 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmCell:
    """A measurement beside its prediction."""

    measurement: Measurement
    prediction: LlmPrediction

    @property
    def measured_seconds(self) -> float | None:
        """The measured step, from FLOP/s where those are stated. [s]"""
        measured = self.measurement
        if measured.flop_rate is None:
            return measured.seconds
        rate, recomputed = measured.flop_rate
        again = recomputed and measured.configuration.recompute == "full"
        flops = self.prediction.model_flops * (_RECOMPUTED if again else 1.0)
        return flops / rate / measured.configuration.gpus

    @property
    def error(self) -> float | None:
        """Predicted over measured time, less one; None without a time that counts."""
        measured = self.measured_seconds
        if measured is None or self.measurement.doubt:
            return None
        return self.prediction.seconds / measured - 1.0

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured memory, less one; None without a measured one."""
        measured = self.measurement.memory
        if measured is None:
            return None
        outside = 0.0 if self.measurement.whole_device else self.prediction.outside
        first = self.measurement.of_first
        predicted = self.prediction.of_first if first else self.prediction.memory
        return (predicted - outside) / measured - 1.0

    @property
    def fits(self) -> bool:
        """Whether it is predicted to fit."""
        return self.prediction.memory <= self.prediction.capacity

    @property
    def may_be_chosen(self) -> bool:
        """Whether a search takes it: what gives memory back in every step it leaves out."""
        return self.fits and self.prediction.lasting_short <= 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSummary:
    """Errors of one source; rates, not percentages, and None where nothing tells.

    Parameters
    ----------
    source
        Its name.
    rows
        Rows that are predicted. [items]
    left_out, unmeasured
        Rows that are not, by reason, and rows that measured nothing. [items]
    mean_error, median_error, worst_error, bias
        Of times: mean and median of the absolute error, the worst, and the mean.
    rank_correlation
        Mean of Spearman's over workloads of three or more.
    memory_mean_error
        Mean absolute error of the peak.
    fit_rows
        Rows that a figure of their device was fitted on; they are among those above. [items]
    reported_rows, reported_mean_error, reported_median_error
        Timed rows of the half of the workloads that no figure was fitted on, and the errors of
        these alone; None where nothing was fitted on the source. [items]
    oom_recognised, oom_false_alarms
        Part of the rows that ran out of memory, and of those that ran, predicted not to fit.
    regret_mean, regret_worst
        Over workloads of two or more: measured time of the strategy that is predicted to be the
        fastest over the measured best, less one.
    """

    source: str
    rows: int
    left_out: Mapping[str, int]
    unmeasured: int
    mean_error: float | None
    median_error: float | None
    worst_error: float | None
    bias: float | None
    rank_correlation: float | None
    memory_mean_error: float | None
    oom_recognised: float | None
    oom_false_alarms: float | None
    regret_mean: float | None
    regret_worst: float | None
    fit_rows: int
    reported_rows: int | None
    reported_mean_error: float | None
    reported_median_error: float | None

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def summarised(
    source: str, cells: Sequence[LlmCell], left_out: Mapping[str, int], unmeasured: int
) -> SourceSummary:
    """Errors of one source.

    Parameters
    ----------
    source
        Its name.
    cells
        Its rows beside their predictions.
    left_out, unmeasured
        As of `SourceSummary`.
    """
    errors = [e for cell in cells if (e := cell.error) is not None]
    reported = [
        abs(e)
        for cell in cells
        if (e := cell.error) is not None
        and fit_entry(cell.measurement) is not None
        and not in_fitted_half(cell.measurement)
    ]
    fit_rows = sum(was_fitted_on(cell.measurement) for cell in cells)
    memory = [abs(e) for cell in cells if (e := cell.memory_error) is not None]
    timed = _timed(cells)
    correlations = [r for group in timed.values() if (r := _correlation(group)) is not None]
    regrets = [_regret(group) for group in timed.values() if len(group) > 1]
    failed = [not cell.fits for cell in cells if cell.measurement.fits is False]
    ran = [not cell.fits for cell in cells if cell.measurement.fits]
    return SourceSummary(
        source=source,
        rows=len(cells),
        left_out=dict(left_out),
        unmeasured=unmeasured,
        mean_error=_mean([abs(e) for e in errors]),
        median_error=statistics.median(map(abs, errors)) if errors else None,
        worst_error=max(errors, key=abs) if errors else None,
        bias=_mean(errors),
        rank_correlation=_mean(correlations),
        memory_mean_error=_mean(memory),
        oom_recognised=_mean(failed),
        oom_false_alarms=_mean(ran),
        regret_mean=_mean(regrets),
        regret_worst=max(regrets) if regrets else None,
        fit_rows=fit_rows,
        reported_rows=len(reported) if fit_rows else None,
        reported_mean_error=_mean(reported) if fit_rows else None,
        reported_median_error=statistics.median(reported) if fit_rows and reported else None,
    )


def counted_anyway(cells: Iterable[LlmCell]) -> dict[str, list[LlmCell]]:
    """Rows in doubt as if they counted, by the doubt."""
    found: dict[str, list[LlmCell]] = {}
    for cell in cells:
        if doubt := cell.measurement.doubt:
            trusted = replace(cell, measurement=replace(cell.measurement, doubt=""))
            found.setdefault(doubt, []).append(trusted)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _timed(cells: Iterable[LlmCell]) -> dict[tuple[object, ...], list[tuple[float, float]]]:
    """Measured and predicted seconds of the rows that count, by workload."""
    found: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for cell in cells:
        measured = cell.measured_seconds
        if measured is not None and cell.error is not None:
            pair = (measured, cell.prediction.seconds)
            found.setdefault(cell.measurement.workload, []).append(pair)
    return found


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    measured, predicted = zip(*pairs, strict=True)
    if len(pairs) < 3 or len(set(measured)) < 2 or len(set(predicted)) < 2:
        return None
    return statistics.correlation(places(measured), places(predicted))


def _regret(pairs: Sequence[tuple[float, float]]) -> float:
    """What taking the predicted best costs."""
    taken, _ = min(pairs, key=lambda pair: pair[1])
    return taken / min(measured for measured, _ in pairs) - 1.0
