"""Rows of measured training beside their predictions, as tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from benchmarks.accuracy.cells import Cell, Summary, rank_agreement
from benchmarks.accuracy.report import percent


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """Predictions of one publication, and remarks on them."""

    name: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


def _ranks(values: Sequence[float]) -> list[float]:
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
            found.append(statistics.correlation(_ranks(measured), _ranks(predicted)))
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
        *(name, kind, str(summary.count), f"{summary.mean:.1%}", percent(summary.worst)),
        *(percent(summary.bias), f"{within:.0%}"),
        f"{ranks.agreeing}, {ranks.tied}, {len(ranks.swapped)}" if ranks.pairs else "-",
        "-" if correlation is None else f"{correlation:.2f}",
    )


SUMMARY = (
    *("source", "kind", "rows", "mean |error|", "worst", "bias", "within 15 %"),
    *("pairs right, tied, wrong", "rank correlation"),
)


def summary_rows(tables: Sequence[RowTable]) -> list[tuple[str, ...]]:
    """Errors by source and kind, then of all."""
    rows: list[tuple[str, ...]] = []
    everything = RowTable(name="all", cells=tuple(c for t in tables for c in t.cells))
    for table in (*tables, everything):
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


def ablation_rows(tables: Sequence[RowTable]) -> list[tuple[str, ...]]:
    """Mean absolute error, and bias, of each step model on the rows that all of them predict."""
    cells = [c for t in tables for c in t.cells if c.counts and c.parts]
    models = list(dict.fromkeys(m for c in cells for m in c.parts))
    cells = [c for c in cells if all(m in c.parts for m in models)]
    if not cells or not models:
        return []
    rows: list[tuple[str, ...]] = []
    for model in ("simulate", *models):
        errors = [
            (c.predicted if model == "simulate" else c.parts[model]) / c.measured - 1.0
            for c in cells
        ]
        worst = max(errors, key=abs)
        mean = statistics.fmean(abs(e) for e in errors)
        bias = percent(statistics.fmean(errors))
        rows.append((model, str(len(cells)), f"{mean:.1%}", percent(worst), bias))
    return rows


def _print(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool
) -> None:
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
    tables: Sequence[RowTable], left: dict[str, int], console: Console, *, markdown: bool
) -> None:
    """Print every row, the summaries, the other step models and what was left out."""
    for table in tables:
        print(f"## {table.name}\n" if markdown else f"{table.name}")
        rows = [
            (
                *(c.label, f"{c.measured * 1e3:.1f}", f"{c.predicted * 1e3:.1f}"),
                *(percent(c.error), c.excluded or c.kind),
            )
            for c in table.cells
        ]
        _print(console, ("run", "measured [ms]", "predicted [ms]", "error", "kind"), rows, markdown)
        for note in table.notes:
            print(f"- {note}")
        print()
    _print(console, SUMMARY, summary_rows(tables), markdown)
    header = ("step model", "rows", "mean |error|", "worst", "bias")
    _print(console, header, ablation_rows(tables), markdown)
    counted = [(str(count), reason) for reason, count in left.items()]
    shown = [c for t in tables for c in t.cells if c.excluded]
    for reason in dict.fromkeys(c.excluded for c in shown):
        number = sum(c.excluded == reason for c in shown)
        counted.append((str(number), f"shown, not counted: {reason}"))
    _print(console, ("rows", "left out since"), counted, markdown)
