"""A plan on the terminal: what a person wants to know at once, in plain tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from planner.plan import Plan
from planner.report import figures, sentences
from planner.report.console import (
    show_below,
    show_facts,
    show_list,
    show_section,
    show_sentence,
    terminal_table,
)
from planner.report.runs import LayerRun, runs_of_plan, shares

# More runs than this are listed as their main ones only: the reports hold all of them.
MAX_RUNS = 24
# Splits longer than this are shown by their letters in the table of runs. [characters]
LONGEST_SPLIT = 30
# Splits of less than this part of the time are not named in one line: they would read "0 %".
LEAST_NAMED = 0.005


def show_plan(plan: Plan, console: Console) -> None:
    """Write all sections of a plan."""
    _show_heading(plan, console)
    _show_step(plan, console)
    _show_memory(plan, console)
    _show_runs(plan, console)
    _show_rivals(plan, console)
    show_section(console, "Search")
    show_sentence(console, sentences.space_sentence(plan))
    show_section(console, "Simulated")
    show_sentence(console, sentences.simulation_sentence(plan))
    if plan.fallbacks:
        show_section(console, "Approximations and fallbacks")
        show_list(console, plan.fallbacks)
    if plan.defaults:
        show_section(console, "Chosen, since not given")
        show_list(console, plan.defaults)


def plan_line(plan: Plan) -> str:
    """The plan in one line."""
    parts = [
        f"{plan.model} on {plan.gpus} x {plan.device} of {plan.cluster}",
        f"{figures.seconds(plan.step_time_s)} a step",
        f"{figures.count(plan.throughput)} {figures.sample_word(plan.input_shape)}/s",
        f"{figures.size(plan.peak_memory)} of {figures.size(plan.memory_capacity_bytes)} a GPU",
        main_split(plan),
    ]
    found = plan.search
    if found.status != "given":
        parts.append("proven optimal" if found.proven_optimal else _gap(plan))
    parts += figures.chosen_batch(plan.global_batch_size, plan.gpus, plan.defaults)
    if found.stopped_by:
        parts.append(f"stopped early by {found.stopped_by}")
    if plan.gpus_at_work < plan.gpus:
        parts.append(f"{figures.count(plan.gpus_at_work)} GPUs would be enough")
    if not plan.fits:
        parts.append("DOES NOT FIT")
    return ", ".join(parts)


def _gap(plan: Plan) -> str:
    if plan.search.lower_bound_s <= 0.0:
        return "no bound"
    return f"gap {figures.percent(plan.search.gap)}"


def main_split(plan: Plan, most: int = 2) -> str:
    """The splits with most time, such as "sample 16 x height 4 (82 %), filter 4 (12 %)".

    Parameters
    ----------
    plan
        The plan.
    most
        How many to name; the others are counted. [items]
    """
    rows = list(shares(plan).values())
    total = sum(seconds for _, _, seconds in rows)
    if len(rows) == 1 or total <= 0.0:
        return rows[0][0].short
    named = [(run, time) for run, _, time in rows[:most] if time >= LEAST_NAMED * total]
    main = [(run, time / total) for run, time in named]
    text = ", ".join(f"{run.short} ({100.0 * share:.0f} %)" for run, share in main)
    return f"{text}, {len(rows) - len(main)} more" if len(rows) > len(main) else text


def _show_heading(plan: Plan, console: Console) -> None:
    console.print(Text(f"{plan.model} on {figures.machine_words(plan)}", style="bold"))
    show_sentence(
        console,
        f"global batch {plan.global_batch_size:,} of {figures.shape(plan)}, "
        f"{plan.training.precision}, {plan.training.optimizer}",
    )
    if plan.search.stopped_by:
        warning = f"stopped early by {plan.search.stopped_by}: the best plan so far"
        show_sentence(console, warning, "bold yellow")
    if plan.gpus_at_work < plan.gpus:
        show_sentence(console, sentences.idle_sentence(plan), "bold yellow")
    console.print()
    rate = f"{figures.count(plan.throughput)} {figures.sample_word(plan.input_shape)}/s"
    each = figures.count(plan.throughput / plan.gpus)
    facts = [
        (
            "Step time",
            figures.seconds(plan.step_time_s),
            "bold green" if plan.fits else "bold red",
        ),
        ("Throughput", f"{rate} ({each} a GPU)", ""),
        ("Peak memory", sentences.memory_sentence(plan), "" if plan.fits else "bold red"),
        ("Quality", sentences.quality_sentence(plan), ""),
        ("Compared", figures.rival_sentence(plan), ""),
    ]
    show_facts(console, facts)


def _show_step(plan: Plan, console: Console) -> None:
    show_section(console, "What a step is made of")
    table = terminal_table(["", ">time", ">share"])
    for row in figures.step_rows(plan):
        table.add_row(row.label, figures.seconds(row.value), figures.percent(row.share))
    table.add_row("step", figures.seconds(plan.step_time_s), "100.0 %", style="bold")
    hidden = plan.breakdown_s["gradient_hidden"]
    table.add_row(figures.HIDDEN, figures.seconds(hidden), "(behind)", style="dim")
    show_below(console, table)
    received = figures.size(plan.communication_bytes)
    show_sentence(console, f"a GPU receives {received} in a step")


def _show_memory(plan: Plan, console: Console) -> None:
    show_section(console, "Peak memory of a GPU")
    table = terminal_table(["", ">size", ">of capacity"])
    for row in figures.memory_rows(plan):
        if row.value > 0.0:
            table.add_row(row.label, figures.size(row.value), figures.percent(row.share))
    share = plan.peak_memory / plan.memory_capacity_bytes
    table.add_row("peak", figures.size(plan.peak_memory), figures.percent(share), style="bold")
    table.add_row("capacity", figures.size(plan.memory_capacity_bytes), "", style="dim")
    show_below(console, table)


def _show_runs(plan: Plan, console: Console) -> None:
    runs = runs_of_plan(plan)
    by_split = shares(plan)
    many = len(runs) > MAX_RUNS
    noun = "run" if len(runs) == 1 else "runs"
    show_section(console, f"Plan: {len(plan.layers)} layers in {len(runs)} {noun} split alike")
    splits = terminal_table(["", "~split", ">layers", ">share"])
    for key, (run, number, seconds) in by_split.items():
        part = figures.percent(seconds / plan.step_time_s)
        splits.add_row(key, run.label, str(number), part)
    show_below(console, splits)
    console.print()
    table = terminal_table(["~layers", ">number", "split", ">time", ">share"])
    for run in _main_runs(runs) if many else runs:
        table.add_row(
            run.span,
            str(len(run.layers)),
            f"{run.key}: {run.short}" if len(run.short) <= LONGEST_SPLIT else run.key,
            figures.seconds(run.time),
            figures.percent(run.time / plan.step_time_s),
        )
    show_below(console, table)
    if many:
        rest = len(runs) - MAX_RUNS
        show_sentence(console, f"and {rest} shorter runs; a report (--report) lists all of them")


def _main_runs(runs: Sequence[LayerRun]) -> list[LayerRun]:
    """The runs of most time, in the order of the forward pass."""
    order = sorted(range(len(runs)), key=lambda i: -runs[i].time)
    return [runs[i] for i in sorted(order[:MAX_RUNS])]


def _show_rivals(plan: Plan, console: Console) -> None:
    show_section(console, "Compared with the usual strategies on the same inputs")
    table = terminal_table(["strategy", ">step time", ">simulated", ">memory", ">speed-up", ""])
    rivals = figures.rivals(plan)
    for rival in rivals:
        table.add_row(
            rival.name,
            figures.seconds_or_none(rival.time),
            figures.seconds_or_none(rival.simulated),
            "-" if rival.memory is None else figures.size(rival.memory),
            figures.speed_up(rival.speed_up),
            rival.verdict,
            style="" if rival.fits else "dim",
        )
    show_below(console, table)
    show_list(console, [f"{r.name}: {r.remark}" for r in rivals if r.remark])
