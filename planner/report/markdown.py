"""A plan as Markdown: the figures of the page as text and tables, for reviews and records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import planner
from costmodels.units import format_items
from planner.plan import Plan
from planner.report import figures, rivals, sentences
from planner.report.runs import LayerRun, runs_of_plan, shares
from planner.report.verdict import verdict

_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def report_text(plan: Plan) -> str:
    """The text of a plan."""
    runs = runs_of_plan(plan)
    parts = [
        _heading_text(plan),
        _step_text(plan),
        _memory_text(plan),
        _splits_text(plan, runs),
        _rivals_text(plan),
        _quality_text(plan),
        _sources_text(plan),
        _list_text("Approximations and fallbacks", plan.fallbacks, "None was used."),
        _list_text("Chosen, since not given", plan.defaults, "Nothing: every input was given."),
        _again_text(plan),
        _layers_text(runs),
    ]
    return _without_markup("\n\n".join(parts) + "\n")


def _without_markup(text: str) -> str:
    """Text in which no name can start a tag or a link; the report itself has neither."""
    return _TAG.sub("&lt;", text).replace("](", "]\\(")


def _table_cell(text: object) -> str:
    """Text that cannot break a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; headings that start with ">" are of numbers."""
    names = [heading.removeprefix(">") for heading in headings]
    marks = ["---:" if heading.startswith(">") else "---" for heading in headings]
    lines = [names, marks, *([_table_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _heading_text(plan: Plan) -> str:
    lines = [
        f"# {plan.model} on {format_items(plan.gpus, 'GPU')} of {plan.cluster}",
        "",
        f"{figures.machine_words(plan)}; global batch {plan.global_batch_size:,} of "
        f"{figures.shape(plan)}; {plan.training.precision}, {plan.training.optimizer}",
        "",
    ]
    if sentences.idle_sentence(plan):
        lines += [f"**{sentences.idle_sentence(plan)}.**", ""]
    if verdict(plan):
        lines += [f"**{verdict(plan)}**", ""]
    if plan.search.stopped_by:
        lines += [
            f"**The search was stopped early by {plan.search.stopped_by}: this is the best plan "
            "found until then.**",
            "",
        ]
    if not plan.fits:
        lines += ["**This plan does not fit in memory.**", ""]
    rate = figures.rate_words(plan.throughput, plan.gpus, plan.input_shape, plan.mfu)
    total, _, rest = rate.partition(" (")
    training = sentences.training_sentence(plan)
    lines += [
        f"- Step time: **{figures.seconds(plan.step_time_s)}**",
        f"- Throughput: **{total}** ({rest}",
        f"- Peak memory: {sentences.memory_sentence(plan)}",
        *([f"- Training: {training}"] if training else []),
        f"- Quality: {sentences.quality_sentence(plan)}",
        f"- Compared: {rivals.rival_sentence(plan)}",
    ]
    return "\n".join(lines)


def _step_text(plan: Plan) -> str:
    rows = [
        (row.label, figures.seconds(row.value), figures.percent(row.share))
        for row in figures.step_rows(plan)
    ]
    rows.append(("**step**", f"**{figures.seconds(plan.step_time_s)}**", "**100.0 %**"))
    rows += [
        (label, figures.seconds(hidden), "behind")
        for _, label, hidden in figures.hidden_rows(plan)
        if hidden > 0.0
    ]
    table = markdown_table(["Cause", ">Time", ">Share of the step"], rows)
    received = figures.size(plan.communication_bytes)
    return (
        f"## What a step is made of\n\n{table}\n\nA GPU receives {received} in a "
        f"step. It was {sentences.simulation_sentence(plan)}."
    )


def _memory_text(plan: Plan) -> str:
    rows = [
        (row.label, figures.size(row.value), figures.percent(row.share))
        for row in figures.memory_rows(plan)
    ]
    share = figures.percent(plan.peak_memory / plan.memory_capacity_bytes)
    rows.append(("**peak**", f"**{figures.size(plan.peak_memory)}**", f"**{share}**"))
    rows.append(("capacity", figures.size(plan.memory_capacity_bytes), "100.0 %"))
    table = markdown_table(["Holder", ">Size", ">Share of the capacity"], rows)
    return f"## Peak memory of a GPU\n\n{table}"


def _splits_text(plan: Plan, runs: Sequence[LayerRun]) -> str:
    def part(seconds: float) -> str:
        return figures.percent(seconds / plan.time_of_groups)

    splits = markdown_table(
        ["Split", "By level", "Over all levels", ">Layers", ">Time", ">Share of the step"],
        (
            (key, run.label, run.short, number, figures.seconds(seconds), part(seconds))
            for key, (run, number, seconds) in shares(plan).items()
        ),
    )
    listed = markdown_table(
        ["Layers", ">Number", "Split", ">Time", ">Share of the step"],
        (
            (r.span, len(r.layers), f"{r.key}: {r.label}", figures.seconds(r.time), part(r.time))
            for r in runs
        ),
    )
    alike = "Runs of consecutive layers that are split alike:"
    shares_of = sentences.shares_sentence(plan)
    parts = ["## The plan", *([f"{shares_of}."] if shares_of else []), splits, alike, listed]
    return "\n\n".join(parts)


def _rivals_text(plan: Plan) -> str:
    rows: list[Sequence[object]] = [
        (
            "**this plan**",
            figures.seconds(plan.step_time_s),
            figures.size(plan.peak_memory),
            "",
            "",
        )
    ]
    for rival in rivals.usual_rivals(plan):
        rows.append(
            (
                rival.short,
                figures.seconds_or_none(rival.time),
                "-" if rival.memory is None else figures.size(rival.memory),
                figures.speed_up(rival.speed_up),
                ": ".join(text for text in (rival.verdict, rival.said) if text),
            )
        )
    headings = ["Strategy", ">Step time", ">Peak memory", ">Speed-up of the plan", "Remark"]
    return f"## Compared with the usual strategies\n\n{markdown_table(headings, rows)}"


def _quality_text(plan: Plan) -> str:
    bound = plan.search.lower_bound_s
    lines = [
        "## How good the plan is known to be",
        "",
        f"- Result: {sentences.quality_sentence(plan)}",
        f"- Proven lower bound: {figures.seconds(bound) if bound > 0.0 else 'none'}",
        f"- Searched: {sentences.space_sentence(plan)}",
    ]
    return "\n".join(lines)


def _sources_text(plan: Plan) -> str:
    rows = [
        (row.label, figures.seconds(row.value), figures.percent(row.share))
        for row in figures.source_rows(plan)
    ]
    text = markdown_table(["Source", ">Time", ">Share of the computation"], rows)
    if plan.provenance:
        text += "\n\n" + markdown_table(["Estimate", "Based on"], figures.provenance_rows(plan))
    return f"## Where the estimates come from\n\n{text}"


def _list_text(title: str, texts: Sequence[str], otherwise: str) -> str:
    """A section of sentences.

    Parameters
    ----------
    title
        Its heading.
    texts
        The sentences.
    otherwise
        What it says where there are none.
    """
    lines = [f"- {text}" for text in texts] or [otherwise]
    return "\n".join([f"## {title}", "", *lines])


def _again_text(plan: Plan) -> str:
    command, recorded = figures.command(plan)
    rows: list[tuple[str, str]] = list(figures.options(plan))
    rows += [
        (f"SHA-256 of the {name}", f"`{value}`") for name, value in sorted(plan.hashes.items())
    ]
    rows.append(("SHA-256 of the plan file", f"`{figures.plan_hash(plan)}`"))
    remark = "" if recorded else f"\n\n{figures.UNRECORDED}"
    return (
        f"## How to make it again\n\n```\n{command}\n```{remark}\n\n"
        f"{markdown_table(['', ''], rows)}\n\n"
        f"planner {planner.__version__}, plan format {plan.version}"
    )


def _layers_text(runs: Sequence[LayerRun]) -> str:
    headings = ["Layer", "Kind", "Split"]
    headings += [f">{label}" for label in figures.LAYER_CAUSES.values()]
    headings += [">gradient all-reduce", ">weights", ">output"]
    rows = [
        (
            layer.name,
            layer.kind,
            f"{run.key}: {layer.distribution}",
            *(figures.seconds(getattr(layer, f"{key}_s")) for key in figures.LAYER_CAUSES),
            figures.seconds(layer.gradient_s),
            figures.size(layer.weights_bytes),
            figures.size(layer.output_bytes),
        )
        for run in runs
        for layer in run.layers
    ]
    return f"## All layers\n\n{markdown_table(headings, rows)}"
