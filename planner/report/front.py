"""A front of plans: on the terminal, as figures, as a page with a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

import planner
from planner.plan import Plan
from planner.report import figures, svg
from planner.report.console import show_below, show_sentence, terminal_table
from planner.report.html import page
from planner.report.sentences import how

_WIDTH, _HEIGHT = 1080.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 30.0, 20.0, 46.0
_DOT = 9.0


def show_front(plans: Sequence[Plan], console: Console) -> None:
    """Write a front as a table, the fastest plan first.

    Parameters
    ----------
    plans
        The front.
    console
        Where to.
    """
    first = plans[0]
    console.print(Text(f"{first.model} on {figures.machine_words(first)}", style="bold"))
    show_sentence(
        console,
        f"global batch {first.global_batch_size:,} of {figures.shape(first)}, "
        f"{first.training.precision}, {first.training.optimizer}",
    )
    console.print()
    table = terminal_table([">step time", ">throughput", ">memory", ">gap", "~how"])
    for plan in plans:
        table.add_row(
            figures.seconds(plan.step_time_s),
            figures.count(plan.throughput),
            figures.size(plan.peak_memory),
            figures.percent(plan.search.gap),
            how(plan),
        )
    show_below(console, table)
    show_sentence(
        console,
        f"{first.search.num_choices:,} ways to train were estimated; no step of any takes less "
        f"than {figures.seconds(first.search.lower_bound_s)}, whatever the memory, and gaps are "
        "to that",
    )


def front_facts(plans: Sequence[Plan]) -> dict[str, object]:
    """The figures that a script reads, with every plan in full."""
    return {
        "model": plans[0].model,
        "gpus": plans[0].gpus,
        "cluster": plans[0].cluster,
        "front": [
            {
                "step_time_s": plan.step_time_s,
                "peak_memory_bytes": plan.peak_memory,
                "throughput_samples_per_s": plan.throughput,
                "gap": plan.search.gap,
                "how": how(plan),
                "plan": json.loads(plan.to_json()),
            }
            for plan in plans
        ],
    }


def front_page(plans: Sequence[Plan]) -> str:
    """The front as a page for review."""
    return page(
        "front.html",
        {
            "plans": plans,
            "first": plans[0],
            "rows": [(number + 1, plan, how(plan)) for number, plan in enumerate(plans)],
            "chart": front_chart(plans),
            "machine": figures.machine_words(plans[0]),
            "shape": figures.shape(plans[0]),
            "word": figures.sample_word(plans[0].input_shape),
            "definitions": svg.definitions(),
            "version": planner.__version__,
        },
    )


def front_chart(plans: Sequence[Plan]) -> Markup:
    """Step time over peak memory, a dot for each plan, numbered as in the table."""
    capacity = plans[0].memory_capacity_bytes
    slowest = max(plan.step_time_s for plan in plans)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(size: float) -> float:
        return _LEFT + width * size / capacity

    def up(seconds: float) -> float:
        return _TOP + height * (1.0 - seconds / slowest)

    drawn = []
    for seconds in svg.nice_ticks(slowest):
        drawn.append(svg.line(_LEFT, up(seconds), _WIDTH - _RIGHT, up(seconds)))
        drawn.append(svg.text(_LEFT - 8, up(seconds) + 4, figures.seconds(seconds), "end"))
    for size in svg.nice_ticks(capacity / 2**30, 8):
        x = across(size * 2**30)
        drawn.append(svg.text(x, _HEIGHT - _BOTTOM + 18, figures.size(size * 2**30), "middle"))
    drawn.append(svg.line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, "axis"))
    drawn.append(svg.text(_WIDTH / 2, _HEIGHT - 8, "peak memory of a GPU", "middle"))
    for number, plan in enumerate(plans):
        x, y = across(plan.peak_memory), up(plan.step_time_s)
        tip = f"{figures.seconds(plan.step_time_s)}, {figures.size(plan.peak_memory)}: {how(plan)}"
        drawn.append(svg.rectangle(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, "s0", tip))
        drawn.append(svg.text(x, y - _DOT, str(number + 1), "middle"))
    label = "Step time over peak memory: " + "; ".join(
        f"{figures.seconds(plan.step_time_s)} at {figures.size(plan.peak_memory)}" for plan in plans
    )
    return svg.drawing(_WIDTH, _HEIGHT, label, drawn)
