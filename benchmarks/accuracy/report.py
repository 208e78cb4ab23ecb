"""Comparisons as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cells import Comparison, Summary

SHOWN = {"s": (1e3, "ms"), "s/epoch": (1.0, "s/epoch"), "ratio": (1.0, "x")}


def signed_percent(value: float) -> str:
    """A rate with its sign, in percent."""
    return f"{value:+.1%}"


def errors_line(summary: Summary, aim: float | None = None) -> str:
    """Errors in one line."""
    goal = ""
    if aim is not None:
        goal = f", aim {aim:.0%} {'met' if summary.mean <= aim else 'MISSED'}"
    return (
        f"{summary.count} cells: mean |error| {summary.mean:.1%}, "
        f"worst {signed_percent(summary.worst)}, bias {signed_percent(summary.bias)}{goal}"
    )


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print every cell of a comparison, then its errors, ranks and notes."""
    factor, unit = SHOWN[comparison.unit]
    table = Table(title=comparison.name, caption=comparison.source, title_justify="left")
    for name in ("group", "run"):
        table.add_column(name)
    for name in ("GPUs", f"measured [{unit}]", f"predicted [{unit}]", "error"):
        table.add_column(name, justify="right")
    table.add_column("remark")
    for cell in comparison.cells:
        remark = "calibrates" if cell.calibrating else ""
        if cell.excluded:
            remark = f"excluded: {cell.excluded}"
        table.add_row(
            cell.group,
            cell.label,
            str(cell.gpus),
            f"{cell.measured * factor:.4g}",
            f"{cell.predicted * factor:.4g}",
            signed_percent(cell.error),
            remark,
            style=None if cell.counts else "dim",
        )
    console.print(table)
    scalars = ", ".join(f"{name} {value:.3f}" for name, value in comparison.calibration.items())
    console.print(f"Calibration of computation: {scalars or 'none'}")
    summary = comparison.summary
    if summary is not None:
        console.print(f"All: {errors_line(summary, comparison.aims.get(''))}")
    kinds = comparison.by_kind
    if len(kinds) > 1:
        for kind, part in kinds.items():
            console.print(f"  {kind}: {errors_line(part, comparison.aims.get(kind))}")
    if comparison.excluded is not None:
        console.print(f"Excluded: {errors_line(comparison.excluded)}")
    ranks = comparison.ranks
    if ranks.pairs:
        console.print(
            f"Ranks: {ranks.agreeing} of {ranks.pairs} pairs as measured, {ranks.tied} tied, "
            f"{ranks.groups_agreeing} of {ranks.groups} groups without a swap"
        )
        for pair in ranks.swapped:
            console.print(f"  swapped: {pair}")
    for note in comparison.notes:
        console.print(f"  note: {note}")
    console.print()
