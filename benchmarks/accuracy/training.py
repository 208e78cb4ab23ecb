"""Distributed training of convolutional networks, predicted by simulation.

    python -m benchmarks.accuracy_training FOLDER [--markdown] [--ablation] [--source TEXT]

FOLDER holds `cnn_training.csv` and `abci_raw_runs.csv`. Where a row on one GPU of the same
publication, machine, network, framework, precision and batch a GPU exists, it calibrates the
computation by one number ("calibrated"); else one at the nearest batch, else one of another
publication on the same GPU in the same framework, each of them a kind of its own; all else is
predicted. Every row is printed with its
error; rows that are left out are counted by reason. With --ablation the same rows are predicted by
the other step models, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.accuracy import training_abci
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.training_doubts import doubts
from benchmarks.accuracy.training_report import RowTable, print_tables
from benchmarks.accuracy.training_rows import TrainingRow, read_rows
from benchmarks.accuracy.training_steps import ABLATION, Factors, Setup, steps
from benchmarks.published.kahira_raw import FILE as RAW_FILE
from costmodels.errors import InputError

FILE = "cnn_training.csv"
# Why rows that are predicted do not count: cost of a scheduler in Python that no source states.
NOT_COUNTED = (
    ("ByteScheduler", "its scheduler takes 100 to 150 ms a step on every network, not modelled"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingComparison:
    """Rows on several GPUs beside their predictions, by source; and what was left out."""

    tables: tuple[RowTable, ...]
    left_out: dict[str, int] = field(default_factory=dict)


def find(folder: Path, name: str) -> Path | None:
    """A file in a folder, in its folder `measured`, or the path itself."""
    if folder.is_file():
        return folder if folder.name == name else None
    return next((p for p in (folder / name, folder / "measured" / name) if p.exists()), None)


def _order(row: TrainingRow) -> tuple[str, str, str, int, int]:
    return row.source, row.model, row.cluster.name, row.gpus, row.batch


def _cell(row: TrainingRow, kind: str, setup: Setup, models: Sequence[str], doubt: str) -> Cell:
    known = steps()
    predicted = known.seconds(row, setup)
    parts = {}
    for model in models:
        try:
            other = Setup(factor=setup.factor, model=model, overlap_factor=setup.overlap_factor)
            parts[model] = known.seconds(row, other)
        except InputError:
            continue
    reason = next((why for word, why in NOT_COUNTED if word in row.label), doubt)
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


def compare(
    path: Path,
    *,
    source: str = "",
    overlap_factor: float | None = None,
    models: Sequence[str] = (),
) -> TrainingComparison:
    """Predict every row on several GPUs.

    Parameters
    ----------
    path
        Such as `cnn_training.csv`.
    source
        Only publications with this in their name.
    overlap_factor
        Instead of that of the machine.
    models
        Further step models.
    """
    rows, left = read_rows(path)
    several = [
        (row, why)
        for row, why in zip(rows, doubts(rows), strict=True)
        if row.gpus > 1 and source.lower() in row.source.lower()
    ]
    factors = Factors(rows)
    # alike rows after each other, so that their graphs are built once
    several.sort(key=lambda pair: _order(pair[0]))
    cells: dict[str, list[Cell]] = {}
    for row, doubt in several:
        try:
            factor, kind = factors.of(row)
            setup = Setup(factor=factor, overlap_factor=overlap_factor)
            cell = _cell(row, kind, setup, models, doubt)
        except InputError as error:
            reason = f"cannot be run: {error}"
            left[reason] = left.get(reason, 0) + 1
            continue
        cells.setdefault(row.source, []).append(cell)
    return TrainingComparison(
        tables=tuple(RowTable(name=name, cells=tuple(found)) for name, found in cells.items()),
        left_out=left,
    )


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with the files")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--ablation", action="store_true", help="also by the other step models")
    parser.add_argument("--source", default="", help="only publications with this in their name")
    parser.add_argument("--gamma", type=float, help="overlap factor for every machine")
    arguments = parser.parse_args()
    path = find(arguments.folder, FILE)
    runs = find(arguments.folder, RAW_FILE)
    if path is None and runs is None:
        parser.error(f"the folder must hold {FILE} or {RAW_FILE}")
    models = ABLATION[1:] if arguments.ablation else ()
    tables: list[RowTable] = []
    left: dict[str, int] = {}
    if path is not None:
        training = compare(
            path, source=arguments.source, overlap_factor=arguments.gamma, models=models
        )
        tables += training.tables
        left = training.left_out
    if runs is not None and arguments.source.lower() in training_abci.NAME.lower():
        tables.append(training_abci.compare(runs))
    print_tables(tables, left, Console(width=200), markdown=arguments.markdown)


if __name__ == "__main__":
    main()
