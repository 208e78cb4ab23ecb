"""A front of plans: on the terminal, as figures, as a page with a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from markupsafe import Markup
from msgspec import Struct
from rich.console import Console
from rich.text import Text

import planner
from costmodels.units import format_items
from planner.plan import Plan
from planner.report import figures, svg
from planner.report.console import show_below, show_sentence, terminal_table
from planner.report.html import page
from planner.report.sentences import gap_figure, how

_WIDTH, _HEIGHT = 1080.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 30.0, 20.0, 46.0
_DOT = 9.0


class FrontAxis(Struct, frozen=True, kw_only=True):
    """An axis of the picture.

    Parameters
    ----------
    title
        What it shows.
    value
        Where a plan lies.
    end
        Where the axis ends for some plans.
    text
        A value in words.
    unit
        Ticks are at round multiples of it.
    """

    title: str
    value: Callable[[Plan], float]
    end: Callable[[Sequence[Plan]], float]
    text: Callable[[float], str]
    unit: float = 1.0


# Room beside the plan that holds the most. [parts]
_BESIDE = 0.1


def _most(value: Callable[[Plan], float]) -> Callable[[Sequence[Plan]], float]:
    return lambda plans: max(map(value, plans))


_MEMORY = FrontAxis(
    title="peak memory of a GPU",
    value=lambda plan: plan.peak_memory,
    end=lambda plans: min(
        plans[0].memory_capacity_bytes, (1.0 + _BESIDE) * max(one.peak_memory for one in plans)
    ),
    text=figures.size,
    unit=2.0**30,
)
_STEP = FrontAxis(
    title="Step time",
    value=lambda plan: plan.step_time_s,
    end=_most(lambda plan: plan.step_time_s),
    text=figures.seconds,
)
_GPUS = FrontAxis(
    title="GPUs",
    value=lambda plan: plan.gpus,
    end=_most(lambda plan: plan.gpus),
    text=figures.count,
)
_THROUGHPUT = FrontAxis(
    title="Throughput",
    value=lambda plan: plan.throughput,
    end=_most(lambda plan: plan.throughput),
    text=figures.count,
)


def show_front(plans: Sequence[Plan], console: Console, against: str = "memory") -> None:
    """Write a front as a table, the fastest plan first.

    Parameters
    ----------
    plans
        The front.
    console
        Where to.
    against
        What it is against: "memory" or "gpus".
    """
    first = plans[0]
    console.print(Text(front_title(plans, against), style="bold"))
    show_sentence(
        console, f"{_batch(plans)}, {first.training.precision}, {first.training.optimizer}"
    )
    console.print()
    sizes = [">GPUs"] if against == "gpus" else []
    table = terminal_table([*sizes, ">step time", ">throughput", ">memory", ">gap", "~how"])
    for plan in plans:
        table.add_row(
            *([f"{plan.gpus:,}"] if sizes else []),
            figures.seconds(plan.step_time_s),
            figures.count(plan.throughput),
            figures.size(plan.peak_memory),
            gap_figure(plan),
            _how_at_point(plan),
        )
    show_below(console, table)
    show_sentence(console, front_sentence(plans, against))


def _how_at_point(plan: Plan) -> str:
    """How a plan trains, and how many of the GPUs that were asked for it leaves without work."""
    idle = format_items(plan.idle_gpus, "GPU")
    left = f", {idle} left without work" if plan.idle_gpus else ""
    return f"{how(plan)}{left}"


def front_title(plans: Sequence[Plan], against: str) -> str:
    """What was planned, on what."""
    first = plans[0]
    if against == "gpus":
        # larger numbers may have been asked for, and brought nothing
        fewest, most = plans[-1].gpus, first.gpus
        some = f"{fewest:,} to {most:,}" if fewest < most else f"{most:,}"
        return f"{first.model} on {some} x {first.device} of {first.cluster}"
    # the fastest may leave GPUs without work
    return f"{first.model} on {figures.machine_words(max(plans, key=lambda plan: plan.gpus))}"


def _batch(plans: Sequence[Plan]) -> str:
    """The global batch, or that of a GPU where it grows with the GPUs."""
    sizes = {plan.global_batch_size for plan in plans}
    shape = figures.shape(plans[0])
    if len(sizes) == 1:
        return f"global batch {plans[0].global_batch_size:,} of {shape}"
    return f"global batch {plans[0].global_batch_size / plans[0].gpus:g} a GPU of {shape}"


def _stopped_by(plans: Sequence[Plan]) -> str:
    """What cut the search short, empty where nothing did."""
    return next((plan.search.stopped_by for plan in plans if plan.search.stopped_by), "")


def front_sentence(plans: Sequence[Plan], against: str) -> str:
    """What bounds the plans, what their gaps are to, and what cut the search short."""
    first = plans[0]
    stopped = _stopped_by(plans)
    more = (
        f"; stopped early by {stopped}: there may be better points, and others" if stopped else ""
    )
    if against == "gpus":
        return (
            "each plan is the fastest found for its GPUs, and the numbers of GPUs left out are no "
            f"faster than fewer; a gap is to the bound of what was searched{more}"
        )
    ways = "all or some of the " if stopped else ""
    bound = first.search.lower_bound_s
    gaps = f"no step of any takes less than {figures.seconds(bound)}, whatever the memory, and "
    gaps += "gaps are to that"
    limited = any(one.memory_capacity_bytes < first.memory_capacity_bytes for one in plans)
    answers = "the plan of 'planner optimize'"
    if limited:
        answers = f"{answers}, and those of 'planner optimize --memory' with less and less,"
        gaps = f"{gaps}, but of those with less to the bounds of their own questions"
    if bound <= 0.0:
        gaps = "that no step of any is faster was not proven"
    return (
        f"beside {answers} {ways}{first.search.num_choices:,} ways to train, "
        f"with one split of all layers, were estimated; {gaps}{more}"
    )


def front_facts(plans: Sequence[Plan], against: str = "memory") -> dict[str, object]:
    """The figures that a script reads, with every plan in full."""
    return {
        "model": plans[0].model,
        "gpus": plans[0].gpus + plans[0].idle_gpus,
        "cluster": plans[0].cluster,
        "against": against,
        "stopped_by": _stopped_by(plans),
        "front": [
            {
                "gpus": plan.gpus,
                "step_time_s": plan.step_time_s,
                "peak_memory_bytes": plan.peak_memory,
                "throughput_samples_per_s": plan.throughput,
                "gap": plan.search.gap,
                "how": _how_at_point(plan),
                "plan": json.loads(plan.to_json()),
            }
            for plan in plans
        ],
    }


def front_page(plans: Sequence[Plan], against: str = "memory") -> str:
    """The front as a page for review."""
    words = "throughput against GPUs" if against == "gpus" else "step time against memory"
    return page(
        "front.html",
        {
            "title": front_title(plans, against),
            "words": words,
            "batch": _batch(plans),
            "sentence": front_sentence(plans, against),
            "first": plans[0],
            "rows": [(number + 1, plan, _how_at_point(plan)) for number, plan in enumerate(plans)],
            "chart": front_chart(plans, against),
            "word": figures.sample_word(plans[0].input_shape),
            "definitions": svg.definitions(),
            "version": planner.__version__,
        },
    )


def front_chart(plans: Sequence[Plan], against: str = "memory") -> Markup:
    """What the front is of, a dot for each plan, numbered as in the table."""
    x_axis, y_axis = (_GPUS, _THROUGHPUT) if against == "gpus" else (_MEMORY, _STEP)
    x_end, y_end = x_axis.end(plans), y_axis.end(plans)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(value: float) -> float:
        return _LEFT + width * value / x_end

    def up(value: float) -> float:
        return _TOP + height * (1.0 - value / y_end)

    drawn = []
    for value in svg.nice_ticks(y_end):
        drawn.append(svg.line(_LEFT, up(value), _WIDTH - _RIGHT, up(value)))
        drawn.append(svg.text(_LEFT - 8, up(value) + 4, y_axis.text(value), "end"))
    # less than a GiB is told in MiB
    unit = x_axis.unit if x_end >= x_axis.unit else x_axis.unit / 2**10
    for ticks in svg.nice_ticks(x_end / unit, 8):
        value = ticks * unit
        drawn.append(svg.text(across(value), _HEIGHT - _BOTTOM + 18, x_axis.text(value), "middle"))
    drawn.append(svg.line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, "axis"))
    drawn.append(svg.text(_WIDTH / 2, _HEIGHT - 8, x_axis.title, "middle"))
    points = []
    for number, plan in enumerate(plans):
        at, height_of = x_axis.value(plan), y_axis.value(plan)
        x, y = across(at), up(height_of)
        tip = f"{y_axis.text(height_of)}, {x_axis.text(at)}: {_how_at_point(plan)}"
        drawn.append(svg.rectangle(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, "s0", tip))
        drawn.append(svg.text(x, y - _DOT, str(number + 1), "middle"))
        points.append(f"{y_axis.text(height_of)} at {x_axis.text(at)}")
    label = f"{y_axis.title} over {x_axis.title}: {'; '.join(points)}"
    return svg.drawing(_WIDTH, _HEIGHT, label, drawn)
