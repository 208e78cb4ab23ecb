"""A plan on the terminal: what a person wants to know at once, in plain tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.plan import Plan
from planner.report import figures, sentences
from planner.report.runs import LayerRun, runs_of_plan, shares

# More runs than this are listed as their main ones only: the reports hold all of them.
MAX_RUNS = 24


def show_plan(plan: Plan, console: Console) -> None:
    """Write all sections of a plan."""
    _head(plan, console)
    _step(plan, console)
    _memory(plan, console)
    _runs(plan, console)
    _rivals(plan, console)
    _section(console, "Search")
    _sentence(console, sentences.space_sentence(plan))
    _section(console, "Simulated")
    _sentence(console, sentences.simulation_sentence(plan))
    if plan.fallbacks:
        _section(console, "Approximations and fallbacks")
        _sentences(console, plan.fallbacks)
    if plan.defaults:
        _section(console, "Chosen, since not given")
        _sentences(console, plan.defaults)


def summary_line(plan: Plan) -> str:
    """The plan in one line."""
    parts = [
        f"{plan.model} on {plan.gpus} x {plan.device} of {plan.cluster}",
        f"{figures.seconds(plan.step_time_s)} a step",
        f"{figures.count(plan.throughput)} {figures.sample_word(plan)}/s",
        f"{figures.size(plan.peak_memory)} of {figures.size(plan.memory_capacity_bytes)} a GPU",
        main_split(plan),
    ]
    found = plan.search
    if found.status != "given":
        parts.append("proven optimal" if found.proven_optimal else _gap(plan))
    if found.stopped_by:
        parts.append(f"stopped early by {found.stopped_by}")
    if not plan.fits:
        parts.append("DOES NOT FIT")
    return ", ".join(parts)


def _gap(plan: Plan) -> str:
    if plan.search.lower_bound_s <= 0.0:
        return "no bound"
    return f"gap {figures.percent(plan.search.gap)}"


def main_split(plan: Plan, most: int = 2) -> str:
    """The splits with most time, such as "sample 16 x height 4 (82 %), filter 4 (12 %)"."""
    rows = list(shares(plan).values())
    total = sum(seconds for _, _, seconds in rows)
    if len(rows) == 1 or total <= 0.0:
        return rows[0][0].short
    main = [(run, seconds / total) for run, _, seconds in rows[:most] if seconds >= 0.005 * total]
    text = ", ".join(f"{run.short} ({100.0 * share:.0f} %)" for run, share in main)
    return f"{text}, {len(rows) - len(main)} more" if len(rows) > len(main) else text


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _sentence(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 2)))


def _sentences(console: Console, texts: Iterable[str]) -> None:
    table = Table.grid(padding=(0, 1))
    for text in texts:
        table.add_row("  -", Text(text, overflow="fold"))
    console.print(table)


def _table(columns: Sequence[tuple[str, str]]) -> Table:
    """A plain table; columns are (heading, "left", "right" or "wrap")."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading, kind in columns:
        wraps = kind == "wrap"
        table.add_column(
            heading,
            justify="right" if kind == "right" else "left",
            no_wrap=not wraps,
            overflow="fold",
        )
    return table


def _show(console: Console, table: Table) -> None:
    console.print(Padding(table, (0, 0, 0, 2)))


def _head(plan: Plan, console: Console) -> None:
    console.print(Text(f"{plan.model} on {figures.machine(plan)}", style="bold"))
    _sentence(
        console,
        f"global batch {plan.global_batch_size:,} of {figures.shape(plan)}, "
        f"{plan.training.precision}, {plan.training.optimizer}",
    )
    if plan.search.stopped_by:
        warning = f"stopped early by {plan.search.stopped_by}: the best plan so far"
        console.print(Padding(Text(warning, style="bold yellow"), (0, 0, 0, 2)))
    console.print()
    word = figures.sample_word(plan)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    time = Text(figures.seconds(plan.step_time_s), style="bold green" if plan.fits else "bold red")
    grid.add_row("  Step time", time)
    rate = f"{figures.count(plan.throughput)} {word}/s"
    grid.add_row("  Throughput", f"{rate} ({figures.count(plan.throughput / plan.gpus)} a GPU)")
    style = "" if plan.fits else "bold red"
    grid.add_row("  Peak memory", Text(sentences.memory_sentence(plan), style=style))
    grid.add_row("  Quality", Text(sentences.quality_sentence(plan)))
    grid.add_row("  Compared", Text(figures.rival_sentence(plan)))
    console.print(grid)


def _step(plan: Plan, console: Console) -> None:
    _section(console, "What a step is made of")
    table = _table([("", "left"), ("time", "right"), ("share", "right")])
    for row in figures.step_rows(plan):
        table.add_row(row.label, figures.seconds(row.value), figures.percent(row.share))
    table.add_row("step", figures.seconds(plan.step_time_s), "100.0 %", style="bold")
    hidden = plan.breakdown_s["gradient_hidden"]
    table.add_row(figures.HIDDEN, figures.seconds(hidden), "(behind)", style="dim")
    _show(console, table)
    received = figures.size(plan.communication_bytes)
    _sentence(console, f"a GPU receives {received} in a step")


def _memory(plan: Plan, console: Console) -> None:
    _section(console, "Peak memory of a GPU")
    table = _table([("", "left"), ("size", "right"), ("of capacity", "right")])
    for row in figures.memory_rows(plan):
        if row.value > 0.0:
            table.add_row(row.label, figures.size(row.value), figures.percent(row.share))
    share = plan.peak_memory / plan.memory_capacity_bytes
    table.add_row("peak", figures.size(plan.peak_memory), figures.percent(share), style="bold")
    table.add_row("capacity", figures.size(plan.memory_capacity_bytes), "", style="dim")
    _show(console, table)


def _runs(plan: Plan, console: Console) -> None:
    runs = runs_of_plan(plan)
    by_split = shares(plan)
    many = len(runs) > MAX_RUNS
    noun = "run" if len(runs) == 1 else "runs"
    _section(console, f"Plan: {len(plan.layers)} layers in {len(runs)} {noun} split alike")
    splits = _table([("", "left"), ("split", "wrap"), ("layers", "right"), ("share", "right")])
    for key, (run, number, seconds) in by_split.items():
        part = figures.percent(seconds / plan.step_time_s)
        splits.add_row(key, run.label, str(number), part)
    _show(console, splits)
    console.print()
    table = _table(
        [
            ("layers", "wrap"),
            ("number", "right"),
            ("split", "left"),
            ("time", "right"),
            ("share", "right"),
        ]
    )
    for run in _main_runs(runs) if many else runs:
        table.add_row(
            run.span,
            str(len(run.layers)),
            f"{run.key}: {run.short}" if len(run.short) <= 30 else run.key,
            figures.seconds(run.time),
            figures.percent(run.time / plan.step_time_s),
        )
    _show(console, table)
    if many:
        rest = len(runs) - MAX_RUNS
        _sentence(console, f"and {rest} shorter runs; a report (--report) lists all of them")


def _main_runs(runs: Sequence[LayerRun]) -> list[LayerRun]:
    """The runs of most time, in the order of the forward pass."""
    order = sorted(range(len(runs)), key=lambda i: -runs[i].time)
    return [runs[i] for i in sorted(order[:MAX_RUNS])]


def _rivals(plan: Plan, console: Console) -> None:
    _section(console, "Compared with the usual strategies on the same inputs")
    table = _table(
        [
            ("strategy", "left"),
            ("step time", "right"),
            ("memory", "right"),
            ("speed-up of the plan", "right"),
            ("", "left"),
        ]
    )
    rivals = figures.rivals(plan)
    for rival in rivals:
        table.add_row(
            rival.name,
            "-" if rival.time is None else figures.seconds(rival.time),
            "-" if rival.memory is None else figures.size(rival.memory),
            figures.speed_up(rival.speed_up),
            rival.verdict,
            style="" if rival.fits else "dim",
        )
    _show(console, table)
    _sentences(console, [f"{r.name}: {r.remark}" for r in rivals if r.remark])
