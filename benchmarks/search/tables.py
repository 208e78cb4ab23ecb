"""Runs of solvers as tables, for people and for the README."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.search.runs import SolverRun, best_known

Key = TypeVar("Key")

HEADINGS = (
    *("instance", "solver", "seed", "nodes", "limit [s]", "solve [s]", "read [s]", "process [s]"),
    *("cost", "proven bound", "gap [%]", "first [s]", "to 1 % [s]", "to 0.1 % [s]"),
    *("to best of 20 [%]", "to XLA [x]", "memory [MB]", "status"),
)
LEFT = {"instance", "solver", "status"}
COMPARISONS = ("to best of 20 [%]", "to XLA [x]")
TITLE = "Search on problems of the contest's form, each run in a new process"
NONE = "-"
# a search that takes longer than its limit by more than this is said to
OVER = 1.02


def machine_line() -> str:
    """What was run where and when."""
    try:
        numba = f"numba {version('numba')}"
    except PackageNotFoundError:
        numba = "without numba"
    date = datetime.now(UTC).date().isoformat()
    return f"{date}, {_processor()}, {_cores()} cores, Python {platform.python_version()}, {numba}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2] for line in file if line.startswith("model name"))
            name = " ".join(next(names, "").split())
    except OSError:
        name = ""
    return name or platform.processor() or platform.machine()


def _cores() -> int:
    # those that this process may use
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cells(run: SolverRun, runs: Sequence[SolverRun]) -> dict[str, str]:
    """A row of the table, by heading."""
    known, limit = run.instance.known, f"{run.instance.time_limit:g}"
    row = {
        "instance": run.instance.name,
        "solver": run.solver,
        "seed": str(run.seed),
        "limit [s]": f"{limit}*" if run.instance.assumed else limit,
        "process [s]": _seconds_text(run.process),
    }
    if run.status == "failed":
        return {heading: row.get(heading, NONE) for heading in HEADINGS} | {"status": "failed"}
    best, _ = best_known(runs, run.instance)
    row |= {
        "nodes": f"{run.num_nodes:,}",
        "solve [s]": _seconds_text(run.solving),
        "read [s]": _seconds_text(run.reading),
        "cost": _whole_text(run.cost),
        "proven bound": _whole_text(run.bound),
        "gap [%]": f"{100 * run.gap:.3f}" if math.isfinite(run.gap) else NONE,
        "first [s]": _moment(run, math.nextafter(math.inf, 0.0)),
        "to 1 % [s]": _moment(run, best + 0.01 * abs(best)),
        "to 0.1 % [s]": _moment(run, best + 0.001 * abs(best)),
        "to best of 20 [%]": _percent(run.cost, known.best),
        "to XLA [x]": f"{run.cost / known.xla:.3f}" if run.choices and known.xla else NONE,
        "memory [MB]": f"{run.peak_memory / 1e6:,.0f}",
        "status": _status(run),
    }
    return {heading: row[heading] for heading in HEADINGS}


def _status(run: SolverRun) -> str:
    over = run.solving > run.instance.time_limit * OVER + 0.5
    remarks = {run.stopped_by: bool(run.stopped_by), "over time": over, "WRONG": bool(run.failure)}
    return ", ".join([run.status, *(remark for remark, applies in remarks.items() if applies)])


def _seconds_text(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else NONE


def _moment(run: SolverRun, cost: float) -> str:
    moment = run.first_within(cost) if math.isfinite(cost) else None
    if moment is None:
        return NONE
    return f"{moment:.1f}" if run.watched else f"<= {moment:.1f}"


def _whole_text(value: float) -> str:
    """A cost or bound; that of costs that are whole is rounded up, which stays a bound."""
    return f"{math.ceil(value - 1e-6):,}" if math.isfinite(value) else NONE


def _percent(cost: float, reference: int | None) -> str:
    if not reference or not math.isfinite(cost):
        return NONE
    return f"{100 * (cost - reference) / abs(reference):+.3f}"


def table_rows(runs: Sequence[SolverRun]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; columns that say nothing are left out."""
    rows = [cells(run, runs) for run in runs]
    silent = {h for h in COMPARISONS if all(row[h] == NONE for row in rows)}
    if all(run.solver == "auto" for run in runs):
        silent.add("solver")
    if len({run.seed for run in runs}) == 1:
        silent.add("seed")
    shown = [heading for heading in HEADINGS if heading not in silent]
    return shown, [[row[heading] for heading in shown] for row in rows]


def show_runs(runs: Sequence[SolverRun], console: Console) -> None:
    """Print the table and what belongs to it."""
    headings, rows = table_rows(runs)
    table = Table(title=TITLE, title_justify="left", padding=(0, 0))
    for heading in headings:
        # the unit in a line of its own; Text, since brackets are markup
        table.add_column(
            Text(heading.replace(" [", "\n[")),
            justify="left" if heading in LEFT else "right",
            no_wrap=heading != "status",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in remarks(runs):
        console.print(Text(line))


def markdown(runs: Sequence[SolverRun]) -> str:
    """The same as Markdown."""
    headings, rows = table_rows(runs)
    rule = ["---" if heading in LEFT else "---:" for heading in headings]
    lines = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        for row in (headings, rule, *rows)
    ]
    return "\n".join([*lines, "", *(f"- {line}" for line in remarks(runs))])


def remarks(runs: Sequence[SolverRun]) -> list[str]:
    """What the table does not say by itself."""
    lines = [_best_line(runs)]
    if any(run.instance.assumed for run in runs):
        lines.append("* no limit is published for this instance: 60 s were assumed")
    if any(run.choices and not run.watched for run in runs):
        lines.append("<= the solver announced nothing before it ended: this is when it did")
    lines += _points(runs)
    lines += _spreads(runs)
    lines += [f"{_run_label(run)}: {run.failure}" for run in runs if run.failure]
    lines.append(f"Costs and peaks of all solutions recomputed from the files; {machine_line()}")
    return lines


def _run_label(run: SolverRun) -> str:
    return f"{run.instance.name}, {run.solver}, seed {run.seed}"


def _best_line(runs: Sequence[SolverRun]) -> str:
    instances = {run.instance.path: run.instance for run in runs}
    parts = []
    for instance in instances.values():
        best, who = best_known(runs, instance)
        parts.append(f"{instance.name} {_whole_text(best)} ({who})" if best < math.inf else "")
    return f"Best known: {'; '.join(p for p in parts if p) or 'nothing'}"


def _points(runs: Sequence[SolverRun]) -> list[str]:
    """The contest's points: the least cost of all teams over the cost, at most 1 an instance."""
    lines = []
    for solver, group in _grouped(runs, lambda run: run.solver):
        scored = [run for run in group if run.instance.known.best]
        if scored:
            points = sum(_point(run) for run in scored)
            lines.append(
                f"Contest points of {solver}: {points:.4f} of {len(scored)} (best of 20 over the "
                "cost, at most 1 each)"
            )
    return lines


def _point(run: SolverRun) -> float:
    best = run.instance.known.best
    if not run.choices or run.failure or not best:
        return 0.0
    return min(1.0, best / run.cost) if run.cost > 0 else 1.0


def _spreads(runs: Sequence[SolverRun]) -> list[str]:
    """How much the cost varies between seeds."""
    lines = []
    for (_, solver), group in _grouped(runs, lambda run: (str(run.instance.path), run.solver)):
        costs = [run.cost for run in group if run.choices]
        if len(group) < 2 or not costs:
            continue
        low, middle, high = min(costs), statistics.median(costs), max(costs)
        spread = f"{100 * (high - low) / abs(low):.3f} %" if low else NONE
        lines.append(
            f"{group[0].instance.name}, {solver}, {len(costs)} of {len(group)} runs: best "
            f"{_whole_text(low)}, median {_whole_text(middle)}, worst {_whole_text(high)}, "
            f"spread {spread}"
        )
    return lines


def _grouped(
    runs: Iterable[SolverRun], key: Callable[[SolverRun], Key]
) -> list[tuple[Key, list[SolverRun]]]:
    groups: dict[Key, list[SolverRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.items())
