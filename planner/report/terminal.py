"""A plan on the terminal: what a person wants to know at once, in plain tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from costmodels.units import format_items
from planner.plan import Plan
from planner.report import figures, rivals, sentences
from planner.report.console import (
    show_below,
    show_facts,
    show_list,
    show_section,
    show_sentence,
    terminal_table,
)
from planner.report.runs import MAX_RUNS, LayerRun, runs_of_blocks, runs_of_plan, shares
from planner.report.verdict import verdict

# Splits longer than this are shown by their letters in the table of runs. [characters]
LONGEST_SPLIT = 30


def show_plan(plan: Plan, console: Console, *, everything: bool = False) -> None:
    """Write all sections of a plan.

    Parameters
    ----------
    plan
        The plan.
    console
        Where to.
    everything
        Whether to write also what is zero, every run, and every layer.
    """
    _show_heading(plan, console)
    _show_step(plan, console, everything)
    _show_memory(plan, console, everything)
    _show_runs(plan, console, MAX_RUNS if not everything else len(plan.layers))
    if everything:
        _show_layers(plan, console)
    _show_rivals(plan, console)
    show_section(console, "Search")
    show_sentence(console, sentences.space_sentence(plan))
    if plan.fallbacks:
        show_section(console, "Approximations and fallbacks")
        show_list(console, plan.fallbacks)
    if plan.defaults:
        show_section(console, "Chosen, since not given")
        show_list(console, plan.defaults)


def _show_heading(plan: Plan, console: Console) -> None:
    idle = sentences.idle_sentence(plan)
    if idle:
        console.print(Text(idle, style="bold yellow"))
    advice = verdict(plan)
    if advice:
        console.print(Text(advice, style="bold green" if plan.fits else "bold red"))
        console.print()
    console.print(Text(f"{plan.model} on {figures.machine_words(plan)}", style="bold"))
    show_sentence(
        console,
        f"global batch {plan.global_batch_size:,} of {figures.shape(plan)}, "
        f"{plan.training.precision}, {plan.training.optimizer}",
    )
    if plan.search.stopped_by:
        warning = f"stopped early by {plan.search.stopped_by}: the best plan so far"
        show_sentence(console, warning, "bold yellow")
    console.print()
    training = sentences.training_sentence(plan)
    rate = figures.rate_words(plan.throughput, plan.gpus, plan.input_shape, plan.mfu)
    facts = [
        (
            "Step time",
            figures.seconds(plan.step_time_s),
            "bold green" if plan.fits else "bold red",
        ),
        ("Throughput", rate, ""),
        ("Peak memory", sentences.memory_sentence(plan), "" if plan.fits else "bold red"),
        *([("Training", training, "")] if training else []),
        ("Quality", sentences.quality_sentence(plan), ""),
        ("Compared", rivals.rival_sentence(plan), ""),
    ]
    show_facts(console, facts)


def _show_step(plan: Plan, console: Console, everything: bool) -> None:
    show_section(console, "What a step is made of")
    table = terminal_table(["", ">time", ">share"])
    for row in figures.step_rows(plan, zeros=everything):
        table.add_row(row.label, figures.seconds(row.value), figures.percent(row.share))
    table.add_row("step", figures.seconds(plan.step_time_s), "100.0 %", style="bold")
    for _, label, hidden in figures.hidden_rows(plan):
        if hidden > 0.0 or everything:
            table.add_row(label, figures.seconds(hidden), "(behind)", style="dim")
    show_below(console, table)
    show_sentence(console, sentences.simulation_sentence(plan))
    if plan.communication_bytes > 0.0 or everything:
        received = figures.size(plan.communication_bytes)
        show_sentence(console, f"a GPU receives {received} in a step")


def _show_memory(plan: Plan, console: Console, everything: bool) -> None:
    show_section(console, "Peak memory of a GPU")
    table = terminal_table(["", ">size", ">of capacity"])
    for row in figures.memory_rows(plan, zeros=everything):
        table.add_row(row.label, figures.size(row.value), figures.percent(row.share))
    share = plan.peak_memory / plan.memory_capacity_bytes
    table.add_row("peak", figures.size(plan.peak_memory), figures.percent(share), style="bold")
    table.add_row("capacity", figures.size(plan.memory_capacity_bytes), "", style="dim")
    show_below(console, table)


def _show_runs(plan: Plan, console: Console, most: int) -> None:
    """The splits, and the runs of layers of most time.

    Parameters
    ----------
    plan, console
        The plan, and where to write it.
    most
        How many runs to list. [items]
    """
    runs = runs_of_plan(plan)
    by_split = shares(plan)
    if len(runs) > most:
        runs = runs_of_blocks(runs)
    many = len(runs) > most
    layers, of = format_items(len(plan.layers), "layer"), format_items(len(runs), "run")
    show_section(console, f"Plan: {layers} in {of} split alike")
    if shares_of := sentences.shares_sentence(plan):
        show_sentence(console, shares_of)
    splits = terminal_table(["", "~split", ">layers", ">share"])
    for key, (run, number, seconds) in by_split.items():
        part = figures.percent(seconds / plan.time_of_groups)
        splits.add_row(key, run.label, str(number), part)
    show_below(console, splits)
    console.print()
    table = terminal_table(["~layers", ">number", "split", ">time", ">share"])
    for run in _main_runs(runs, most) if many else runs:
        table.add_row(
            run.span,
            str(len(run.layers)),
            f"{run.key}: {run.short}" if len(run.short) <= LONGEST_SPLIT else run.key,
            figures.seconds(run.time),
            figures.percent(run.time / plan.time_of_groups),
        )
    show_below(console, table)
    if many:
        show_sentence(console, f"and {len(runs) - most} shorter runs; -v lists all of them")


def _main_runs(runs: Sequence[LayerRun], most: int) -> list[LayerRun]:
    """The runs of most time, in the order of the forward pass."""
    order = sorted(range(len(runs)), key=lambda i: -runs[i].time)
    return [runs[i] for i in sorted(order[:most])]


def _show_layers(plan: Plan, console: Console) -> None:
    """Every layer with its times by cause; causes that no layer has are left out."""
    console.print()
    causes = [
        (f"{cause}_s", label)
        for cause, label in figures.LAYER_CAUSES.items()
        if any(getattr(layer, f"{cause}_s") > 0.0 for layer in plan.layers.values())
    ]
    table = terminal_table(["~layer", "split", *(f">{label.split()[-1]}" for _, label in causes)])
    for run in runs_of_plan(plan):
        for layer in run.layers:
            times = (figures.seconds(getattr(layer, key)) for key, _ in causes)
            table.add_row(layer.name, run.key, *times)
    show_below(console, table)


def _show_rivals(plan: Plan, console: Console) -> None:
    show_section(console, "Compared with the usual strategies on the same inputs")
    table = terminal_table(["strategy", ">step time", ">memory", ">speed-up", ""])
    shown = rivals.usual_rivals(plan)
    for rival in shown:
        table.add_row(
            rival.short,
            figures.seconds_or_none(rival.time),
            "-" if rival.memory is None else figures.size(rival.memory),
            figures.speed_up(rival.speed_up),
            rival.verdict,
            style="" if rival.fits else "dim",
        )
    show_below(console, table)
    show_list(console, [f"{r.short}: {r.said}" for r in shown if r.said])
