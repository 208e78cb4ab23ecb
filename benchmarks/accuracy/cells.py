"""A table of predicted and measured times, and how far the ones are from the others.

An error is predicted over measured, less one: positive where the prediction is too slow. Cells that
calibrate and cells that are excluded are shown, but enter no error. Ranks compare cells of one
group (same model and batch) pair by pair, suspicious ones included where they say so; pairs that
were measured closer to each other than `TIE` say nothing about order, and pairs predicted closer
are counted as ties, which is neither right nor wrong.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# Published repetitions of one configuration differ by more than this.
TIE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measured time and its prediction.

    Parameters
    ----------
    group
        Cells that may be ranked against each other have the same.
    label
        What was run, such as "4 GPUs/sample".
    kind
        Errors are also averaged over each kind.
    gpus
        Number of GPUs. [items]
    measured, predicted
        Time, in the unit of the table.
    calibrating
        Whether the calibration was taken from it.
    excluded
        Why it enters no error; empty where it does.
    ranked
        Whether it is compared with its group; an excluded cell may be.
    parts
        Further figures by name, such as the measured and predicted computation.
    """

    group: str
    label: str
    kind: str
    gpus: int
    measured: float
    predicted: float
    calibrating: bool = False
    excluded: str = ""
    ranked: bool = True
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def counts(self) -> bool:
        """Whether it enters the errors."""
        return not self.calibrating and not self.excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of some cells; rates, not percentages."""

    count: int
    mean: float
    worst: float
    bias: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Summary | None:
        """Mean and worst absolute error and mean error, None without errors."""
        if not errors:
            return None
        return cls(
            count=len(errors),
            mean=statistics.fmean(abs(e) for e in errors),
            worst=max(errors, key=abs),
            bias=statistics.fmean(errors),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many pairs, and how many whole groups, are predicted in the order measured."""

    pairs: int
    agreeing: int
    tied: int
    groups: int
    groups_agreeing: int
    swapped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A published table beside its predictions.

    Parameters
    ----------
    name, source
        What it is and where the measurements are published.
    unit
        Of the times: "s" or "s/epoch".
    calibration
        The scalar on computation for each model.
    cells
        All cells.
    aims
        Mean absolute error aimed at for each kind; "" for kinds not named.
    notes
        Where the model misses and why, and what was assumed.
    """

    name: str
    source: str
    unit: str
    calibration: dict[str, float]
    cells: tuple[Cell, ...]
    aims: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> Summary | None:
        return Summary.of([c.error for c in self.cells if c.counts])

    @property
    def by_kind(self) -> dict[str, Summary]:
        """Errors of each kind that has cells which count."""
        kinds = dict.fromkeys(c.kind for c in self.cells if c.counts)
        found = {
            k: Summary.of([c.error for c in self.cells if c.counts and c.kind == k]) for k in kinds
        }
        return {k: s for k, s in found.items() if s is not None}

    @property
    def excluded(self) -> Summary | None:
        """Errors of the cells that enter none, for who wants to judge the exclusions."""
        return Summary.of([c.error for c in self.cells if c.excluded])

    @property
    def ranks(self) -> Ranks:
        return rank_agreement(self.cells)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        cells = [{**asdict(c), "error": c.error} for c in self.cells]
        summary, excluded = self.summary, self.excluded
        return {
            "name": self.name,
            "source": self.source,
            "unit": self.unit,
            "calibration": self.calibration,
            "summary": asdict(summary) if summary else None,
            "excluded": asdict(excluded) if excluded else None,
            "by_kind": {kind: asdict(s) for kind, s in self.by_kind.items()},
            "aims": self.aims,
            "ranks": asdict(self.ranks),
            "notes": list(self.notes),
            "cells": cells,
        }


def rank_agreement(cells: Iterable[Cell]) -> Ranks:
    """Compare every pair of cells within each group."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.ranked:
            groups.setdefault(cell.group, []).append(cell)
    agreeing = tied = whole = ranked = 0
    swapped = []
    for members in groups.values():
        told = wrong = 0
        for a, b in itertools.combinations(members, 2):
            if _close(a.measured, b.measured):
                continue
            told += 1
            if _close(a.predicted, b.predicted):
                tied += 1
            elif (a.predicted < b.predicted) == (a.measured < b.measured):
                agreeing += 1
            else:
                wrong += 1
                swapped.append(f"{a.group}: {a.label} and {b.label}")
        ranked, whole = ranked + (told > 0), whole + (told > 0 and wrong == 0)
    return Ranks(
        pairs=agreeing + tied + len(swapped),
        agreeing=agreeing,
        tied=tied,
        groups=ranked,
        groups_agreeing=whole,
        swapped=tuple(swapped),
    )


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TIE * min(a, b)
