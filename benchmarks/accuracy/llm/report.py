"""How well transformer training is predicted, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from benchmarks.accuracy.llm.summary import LlmCell, SourceSummary, counted_anyway, summarised
from benchmarks.accuracy.llm.words import entry_of
from benchmarks.accuracy.report import signed_percent
from benchmarks.accuracy.row_report import print_grid

# An aim of `data/llm.toml`: the figure of a summary, what it is called, and whether less is better.
_AIMS = {
    "mean": ("mean_error", "mean |error|", True),
    "median": ("median_error", "median |error|", True),
    "worst": ("worst_error", "worst error", True),
    "correlation": ("rank_correlation", "rank correlation", False),
    "memory": ("memory_mean_error", "mean |error| of memory", True),
    "recognised": ("oom_recognised", "out of memory recognised", False),
    "alarms": ("oom_false_alarms", "ran, but called out of memory", True),
    "regret_mean": ("regret_mean", "mean regret", True),
    "regret_worst": ("regret_worst", "worst regret", True),
}
_SUMMARY = (
    *("source", "rows", "left out", "mean", "median", "worst", "bias", "rank correlation"),
    *("memory", "out of memory recognised", "false alarms", "regret, mean", "regret, worst"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmTable:
    """One source: its rows beside their predictions, and what they sum up to."""

    cells: tuple[LlmCell, ...]
    summary: SourceSummary


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _signed(value: float | None) -> str:
    return "-" if value is None else signed_percent(value)


def _llm_summary_row(of: SourceSummary) -> tuple[str, ...]:
    correlation = "-" if of.rank_correlation is None else f"{of.rank_correlation:.3f}"
    return (
        *(of.source, str(of.rows), str(sum(of.left_out.values()))),
        *(_share(of.mean_error), _share(of.median_error), _signed(of.worst_error)),
        *(_signed(of.bias), correlation, _share(of.memory_mean_error)),
        *(_share(of.oom_recognised), _share(of.oom_false_alarms)),
        *(_share(of.regret_mean), _share(of.regret_worst)),
    )


def llm_aim_rows(of: SourceSummary) -> list[tuple[str, ...]]:
    """What is aimed at for a source beside what is found."""
    entry: Mapping[str, Any] = entry_of("aims", of.source.lower()) or {}
    rows: list[tuple[str, ...]] = []
    for name, (field, title, less) in _AIMS.items():
        found = getattr(of, field)
        if name not in entry or found is None:
            continue
        aim = float(entry[name])
        met = abs(found) <= aim if less else found >= aim
        bound = "at most" if less else "at least"
        text, wanted = (f"{x:.2f}" if name == "correlation" else f"{x:.1%}" for x in (found, aim))
        rows.append((of.source, title, text, f"{bound} {wanted}", "met" if met else "missed"))
    return rows


def print_llm_tables(
    tables: Sequence[LlmTable], console: Console, *, markdown: bool, every_row: bool
) -> None:
    """Print rows where they are asked for, the sums, the aims, and what was left out.

    Parameters
    ----------
    tables
        A table a source.
    console
        Where tables that are not Markdown are printed.
    markdown, every_row
        Whether to print Markdown, and rows.
    """
    for table in tables if every_row else ():
        header = ("run", "measured [s]", "predicted [s]", "error", "memory", "fits", "not counted")
        print(table.summary.source)
        print_grid(console, header, [_llm_row(cell) for cell in table.cells], markdown)
    print_grid(console, _SUMMARY, [_llm_summary_row(t.summary) for t in tables], markdown)
    aims = [row for table in tables for row in llm_aim_rows(table.summary)]
    print_grid(console, ("source", "what", "found", "aimed at", ""), aims, markdown)
    doubted = [
        (doubt, *_llm_summary_row(summarised(table.summary.source, cells, {}, 0)))
        for table in tables
        for doubt, cells in counted_anyway(table.cells).items()
    ]
    if doubted:
        print("not counted above, and what they would come to:")
        print_grid(console, ("since", *_SUMMARY), doubted, markdown)
    fits = [
        (
            *(s.source, str(s.fit_rows), str(s.reported_rows)),
            *map(_share, (s.reported_mean_error, s.reported_median_error)),
        )
        for s in (t.summary for t in tables)
        if s.fit_rows
    ]
    print_grid(
        console,
        ("source", "rows of the fit", "rows of the other half", "mean", "median"),
        fits,
        markdown,
    )
    left = [
        (t.summary.source, str(count), reason)
        for t in tables
        for reason, count in t.summary.left_out.items()
    ]
    left += [
        (t.summary.source, str(t.summary.unmeasured), "nothing was measured")
        for t in tables
        if t.summary.unmeasured
    ]
    print_grid(console, ("source", "rows", "left out since"), left, markdown)


def _llm_row(cell: LlmCell) -> tuple[str, ...]:
    measured = cell.measured_seconds
    fits = {True: "ran", False: "out of memory", None: "-"}[cell.measurement.fits]
    return (
        cell.measurement.configuration.label,
        "-" if measured is None else f"{measured:.4g}",
        f"{cell.prediction.seconds:.4g}",
        _signed(cell.error),
        _signed(cell.memory_error),
        fits if cell.fits is (cell.measurement.fits is not False) else f"{fits}, said otherwise",
        cell.measurement.doubt,
    )


def tables_as_list(tables: Sequence[LlmTable]) -> list[dict[str, Any]]:
    """The sums of every source, as plain data."""
    return [table.summary.as_dict() for table in tables]
