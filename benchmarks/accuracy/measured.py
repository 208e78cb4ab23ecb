"""Measured rows beside their predictions: which rows, by which step model, calibrated by what.

Where a row on one GPU of the same publication, machine, network, framework, precision and batch a
GPU exists, it calibrates the computation by one number ("calibrated"); else one at the nearest
batch, else one of another publication on the same GPU in the same framework, each of them a kind of
its own; all else is predicted. Rows that are left out are counted by reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.accuracy import raw_runs
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.doubts import doubts
from benchmarks.accuracy.factors import AS_PREDICTED, ONE_GPU, Correction, Factors, Setup, StepTimes
from benchmarks.accuracy.row_report import RowTable
from benchmarks.accuracy.rows import MeasuredRow, read_rows
from benchmarks.published.kahira_raw import FILE as RAW_FILE
from benchmarks.published.kahira_raw import holds_raw_runs, raw_run_addresses
from costmodels.errors import InputError

FILE = "cnn_training.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuestion:
    """What is to be compared.

    Parameters
    ----------
    model
        The step model.
    others
        Further step models for the same rows, with the factors of the first.
    alone
        Whether rows on one GPU are predicted, too, uncalibrated.
    uncalibrated
        Whether rows on several GPUs are also predicted with computation as it is.
    source
        Only publications with this in their name.
    overlap_factor
        Instead of the usual one.
    """

    model: str = "simulate"
    others: tuple[str, ...] = ()
    alone: bool = False
    uncalibrated: bool = False
    source: str = ""
    overlap_factor: float | None = None

    def setup(self, scale: Correction, model: str | None = None) -> Setup:
        """How a row is predicted."""
        return Setup(scale=scale, model=model or self.model, overlap_factor=self.overlap_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """Rows beside their predictions, by source; and how many were left out for which reason."""

    tables: tuple[RowTable, ...]
    left_out: dict[str, int] = field(default_factory=dict)


def measured_files(given: Path) -> list[Path]:
    """A file itself, or those of a folder or of its folder `measured`."""
    if given.is_file():
        return [given]
    found = (
        next((p for p in (given / name, given / "measured" / name) if p.exists()), None)
        for name in (FILE, RAW_FILE)
    )
    return [path for path in found if path is not None]


def _alike_first(row: MeasuredRow) -> tuple[str, str, str, int, int]:
    """Alike rows after each other, so that their graphs are built once."""
    return row.source, str(row.run.model), row.cluster.name, row.gpus, row.batch


class _Comparing:
    """Predicts rows as a question asks."""

    def __init__(self, rows: Sequence[MeasuredRow], question: RowQuestion) -> None:
        self._question, self._steps = question, StepTimes()
        self._factors = Factors(rows, self._steps, question.model)

    def cell(self, row: MeasuredRow, doubt: str) -> Cell:
        """A row beside its predictions."""
        asked = self._question
        scale, kind = (AS_PREDICTED, ONE_GPU) if row.gpus == 1 else self._factors.of(row)
        predicted = self._steps.seconds(row, asked.setup(scale))
        parts = {"factor": scale.kernels}
        if asked.uncalibrated and row.gpus > 1:
            parts["uncalibrated"] = self._steps.seconds(row, asked.setup(AS_PREDICTED))
        for model in asked.others:
            try:
                parts[model] = self._steps.seconds(row, asked.setup(scale, model))
            except InputError:
                continue
        reason = row.doubt or doubt
        return Cell(
            group=row.group,
            label=row.label,
            kind=kind,
            gpus=row.gpus,
            measured=row.seconds,
            predicted=predicted,
            excluded=reason,
            ranked=not reason,
            parts=parts,
        )


def compare_rows(
    paths: Sequence[Path],
    question: RowQuestion | None = None,
    elsewhere: frozenset[str] = frozenset(),
) -> RowComparison:
    """Predict every row of files.

    Parameters
    ----------
    paths
        Such as `cnn_training.csv`.
    question
        What is asked; rows on several GPUs by simulation by default.
    elsewhere
        Addresses of logs that another table compares.
    """
    question = question or RowQuestion()
    given = read_rows(paths, elsewhere)
    left = dict(given.left_out)
    if question.alone:
        for reason, count in given.left_out_alone.items():
            left[reason] = left.get(reason, 0) + count
    wanted = [
        (row, why)
        for row, why in zip(given.rows, doubts(given.rows), strict=True)
        if (question.alone or row.gpus > 1) and question.source.lower() in row.source.lower()
    ]
    wanted.sort(key=lambda pair: _alike_first(pair[0]))
    comparing = _Comparing(given.rows, question)
    cells: dict[str, list[Cell]] = {}
    for row, doubt in wanted:
        try:
            cell = comparing.cell(row, doubt)
        except ValueError as error:
            reason = f"cannot be run: {error}"
            left[reason] = left.get(reason, 0) + 1
            continue
        cells.setdefault(row.source, []).append(cell)
    return RowComparison(
        tables=tuple(RowTable(name=name, cells=tuple(found)) for name, found in cells.items()),
        left_out=dict(sorted(left.items(), key=lambda item: -item[1])),
    )


def compare_files(paths: Sequence[Path], question: RowQuestion) -> RowComparison:
    """Predict every row of files of either form: training rates, and raw runs of ABCI."""
    raw = [path for path in paths if holds_raw_runs(path)]
    rest = [path for path in paths if path not in raw]
    tables: list[RowTable] = []
    left: dict[str, int] = {}
    if rest:
        elsewhere = frozenset(url for path in raw for url in raw_run_addresses(path))
        found = compare_rows(rest, question, elsewhere)
        tables, left = list(found.tables), found.left_out
    if question.source.lower() in raw_runs.NAME.lower():
        for path in raw:
            table, missing = raw_runs.compare_simulated(path, question.model)
            tables.append(table)
            for reason, count in missing.items():
                left[reason] = left.get(reason, 0) + count
    return RowComparison(tables=tuple(tables), left_out=left)
