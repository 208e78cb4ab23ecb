"""Rows of measured training beside their predictions, as tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from benchmarks.accuracy.aims import aim_rows, cause_rows
from benchmarks.accuracy.cells import Cell, Summary, rank_agreement
from benchmarks.accuracy.factors import NOT_CALIBRATED, ONE_GPU
from benchmarks.accuracy.report import signed_percent
from benchmarks.accuracy.steps import ALL_STEP_MODELS, TIMELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """Predictions of one publication, and remarks on them."""

    name: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


def places(values: Sequence[float]) -> list[float]:
    """Places in ascending order; equal values share theirs."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2.0 for v in values]


def rank_correlation(cells: Sequence[Cell]) -> float | None:
    """Mean of Spearman's correlation over groups of three or more rows that count, or None."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.counts:
            groups.setdefault(cell.group, []).append(cell)
    found = []
    for members in groups.values():
        measured = [c.measured for c in members]
        predicted = [c.predicted for c in members]
        if len(members) >= 3 and len(set(measured)) > 1 and len(set(predicted)) > 1:
            found.append(statistics.correlation(places(measured), places(predicted)))
    return statistics.fmean(found) if found else None


def _summary_row(name: str, kind: str, cells: Sequence[Cell]) -> tuple[str, ...] | None:
    errors = [c.error for c in cells if c.counts]
    summary = Summary.of(errors)
    if summary is None:
        return None
    within = statistics.fmean(abs(e) <= 0.15 for e in errors)
    ranks = rank_agreement(c for c in cells if c.counts)
    correlation = rank_correlation(cells)
    return (
        *(name, kind, str(summary.count), f"{summary.mean:.1%}", signed_percent(summary.worst)),
        *(signed_percent(summary.bias), f"{within:.0%}"),
        f"{ranks.agreeing}, {ranks.tied}, {len(ranks.swapped)}" if ranks.pairs else "-",
        "-" if correlation is None else f"{correlation:.2f}",
    )


SUMMARY = (
    *("source", "kind", "rows", "mean |error|", "worst", "bias", "within 15 %"),
    *("pairs right, tied, wrong", "rank correlation"),
)


def _as_predicted(cells: Sequence[Cell]) -> list[Cell]:
    """Cells on several GPUs with computation as it is, as a kind of its own."""
    return [
        replace(c, predicted=c.parts["uncalibrated"], kind=f"several GPUs, {NOT_CALIBRATED}")
        for c in cells
        if "uncalibrated" in c.parts
    ]


def summary_rows(tables: Sequence[RowTable]) -> list[tuple[str, ...]]:
    """Errors by source and kind, then of all."""
    rows: list[tuple[str, ...]] = []
    everything = RowTable(name="all", cells=tuple(c for t in tables for c in t.cells))
    for table in (*tables, everything):
        table = replace(table, cells=(*table.cells, *_as_predicted(table.cells)))
        for kind in dict.fromkeys(c.kind for c in table.cells):
            row = _summary_row(table.name, kind, [c for c in table.cells if c.kind == kind])
            if row is not None:
                rows.append(row)
    shown = [replace(c, excluded="", calibrating=False) for c in everything.cells if c.excluded]
    for kind, cells in (("all", everything.cells), ("shown, not counted", tuple(shown))):
        row = _summary_row("all", kind, cells)
        if row is not None:
            rows.append(row)
    return rows


def ablation_rows(tables: Sequence[RowTable], model: str = "simulate") -> list[tuple[str, ...]]:
    """Mean absolute error, and bias, of each step model on the rows that all of them predict.

    The timeline has no parameter servers: it is shown on those of the rows that it can predict.

    Parameters
    ----------
    tables
        Rows whose parts hold what further step models predict. [s]
    model
        The step model of the rows themselves.
    """
    cells = [c for t in tables for c in t.cells if c.counts and c.parts]
    models = [m for m in ALL_STEP_MODELS if any(m in c.parts for c in cells)]
    common = [m for m in models if m != TIMELINE]
    if model != TIMELINE:
        cells = [c for c in cells if all(m in c.parts for m in common)]
    if not cells or not models:
        return []
    rows: list[tuple[str, ...]] = []
    for name in (model, *models):
        told = [c for c in cells if name == model or name in c.parts]
        errors = [c.parts.get(name, c.predicted) / c.measured - 1.0 for c in told]
        worst = max(errors, key=abs)
        mean = statistics.fmean(abs(e) for e in errors)
        bias = signed_percent(statistics.fmean(errors))
        rows.append((name, str(len(told)), f"{mean:.1%}", signed_percent(worst), bias))
    return rows


def print_grid(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool
) -> None:
    """Print rows under a header; nothing where there are none.

    Parameters
    ----------
    console
        Where a table that is not Markdown is printed.
    header, rows
        Cells.
    markdown
        Whether to print Markdown.
    """
    if not rows:
        return
    if markdown:
        print("| " + " | ".join(header) + " |")
        print("|" + " --- |" * len(header))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        print()
        return
    from rich.table import Table as Grid

    grid = Grid()
    for name in header:
        grid.add_column(name)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)


def print_tables(
    tables: Sequence[RowTable],
    left: Mapping[str, int],
    console: Console,
    *,
    markdown: bool = False,
    every_row: bool = True,
    model: str = "simulate",
) -> None:
    """Print every row, the summaries, the other step models and what was left out.

    Parameters
    ----------
    tables, left
        What was compared, and how many rows were left out for which reason.
    console
        Where tables that are not Markdown are printed.
    markdown
        Whether to print Markdown.
    every_row
        Whether to print rows, and not only their sums.
    model
        The step model of the rows.
    """
    for table in tables if every_row else ():
        print(f"## {table.name}\n" if markdown else f"{table.name}")
        rows: list[tuple[str, ...]] = [
            (
                *(c.label, f"{c.measured * 1e3:.1f}", f"{c.predicted * 1e3:.1f}"),
                *(signed_percent(c.error), c.excluded or c.kind),
            )
            for c in table.cells
        ]
        header: tuple[str, ...] = ("run", "measured [ms]", "predicted [ms]", "error", "kind")
        print_grid(console, header, rows, markdown)
        for note in table.notes:
            print(f"- {note}")
        print()
    print_grid(console, SUMMARY, summary_rows(tables), markdown)
    everything = [cell for table in tables for cell in table.cells]
    header = ("aim", "rows", "found", "aimed at", "")
    print_grid(console, header, aim_rows(everything), markdown)
    header = ("rows beyond 15 %", "mean error", "cause")
    print_grid(console, header, cause_rows(everything), markdown)
    header = ("step model", "rows", "mean |error|", "worst", "bias")
    print_grid(console, header, ablation_rows(tables, model), markdown)
    counted = [(str(count), reason) for reason, count in left.items()]
    shown = [c for t in tables for c in t.cells if c.excluded]
    for reason in dict.fromkeys(c.excluded for c in shown):
        number = sum(c.excluded == reason for c in shown)
        counted.append((str(number), f"shown, not counted: {reason}"))
    print_grid(console, ("rows", "left out since"), counted, markdown)


def _sums(cells: Sequence[Cell]) -> dict[str, Any]:
    """Errors of rows on one GPU, on several, and of the latter calibrated by their own kin."""
    counting = [c for c in cells if c.counts]
    several = _as_predicted(counting)
    akin = [c for c in counting if c.kind == "calibrated"]
    sums = {
        ONE_GPU: [c.error for c in counting if c.gpus == 1],
        "several GPUs": [c.error for c in several],
        "several GPUs with kin": [c.error for c in _as_predicted(akin)],
        "several GPUs, calibrated": [c.error for c in akin],
    }
    kinds = dict.fromkeys(c.kind for c in counting if c.gpus > 1)
    sums |= {f"kind: {k}": [c.error for c in counting if c.kind == k] for k in kinds}
    found = {name: Summary.of(errors) for name, errors in sums.items()}
    return {name: asdict(summary) if summary else None for name, summary in found.items()}


def tables_as_dict(tables: Sequence[RowTable], left: Mapping[str, int]) -> dict[str, Any]:
    """Everything, as plain data."""
    rows = [
        {
            "name": c.label,
            "source": table.name,
            "kind": c.kind,
            "gpus": c.gpus,
            "measured": c.measured,
            "predicted": c.parts.get("uncalibrated", c.predicted),
            "calibrated": c.predicted if c.kind.startswith("calibrated") else None,
            "factor": c.parts.get("factor"),
            "excluded": c.excluded,
            "error": c.parts.get("uncalibrated", c.predicted) / c.measured - 1.0,
            "calibrated_error": c.error if c.kind.startswith("calibrated") else None,
        }
        for table in tables
        for c in table.cells
    ]
    everything = [cell for table in tables for cell in table.cells]
    return {
        "aims": [list(row) for row in aim_rows(everything)],
        "causes": [list(row) for row in cause_rows(everything)],
        "sources": {table.name: _sums(table.cells) for table in tables},
        "all": _sums([c for table in tables for c in table.cells]),
        "skipped": dict(left),
        "rows": rows,
    }
