"""`planner scale`: the best plan for each number of GPUs, a line each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, field

from costmodels.units import format_items
from planner.cli.completion import complete_model
from planner.cli.failures import INFEASIBLE, UNSOLVED, Failure
from planner.cli.options import input_options, inputs_of
from planner.cli.screen import (
    progress,
    search_progress,
    shows_progress,
    time_spent,
    write,
    write_output,
)
from planner.cli.showing import (
    STDOUT,
    Shown,
    check_figures_output,
    output_option,
    showing_options,
)
from planner.request.inputs import COMMANDS
from planner.request.inputs.question import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from planner.errors import InfeasibleError
    from planner.plan import Plan

_COLUMNS = (
    ("GPUs", 7),
    ("batch", 9),
    ("step time", 10),
    ("samples/s", 12),
    ("MFU", 8),
    ("speed-up", 9),
    ("efficiency", 11),
)


class ScaledPlan(Struct, frozen=True, kw_only=True):
    """The answer for one number of GPUs.

    Parameters
    ----------
    gpus
        Number of GPUs. [items]
    plan
        The best plan, or why there is none.
    speed_up
        Throughput relative to the first size that has a plan.
    efficiency
        Throughput of a GPU relative to that size.
    """

    gpus: int
    plan: Plan | InfeasibleError
    speed_up: float = 0.0
    efficiency: float = 0.0


@click.command("scale")
@click.argument("model", shell_complete=complete_model)
@input_options(COMMANDS["scale"])
@output_option("the figures as JSON")
@showing_options()
def scale_command(
    model: str, gpus: str, output: str | None, shown: Shown, **values: object
) -> None:
    """Plan for several numbers of GPUs.

    Each gets a line: step time, throughput, efficiency and how the plan splits.

    MODEL is a built-in network (see 'planner models') or a network file. A global batch size is
    that of the first number of GPUs.
    """
    shown.check(output)
    from planner.joint.requests import scale_request, was_interrupted
    from planner.request.request import make_request
    from planner.request.setting import find_cluster, gpu_counts

    request = make_request("scale", {**values, "model": model, "gpus": gpus})
    check_figures_output(output, inputs_of(model, values))
    machine = find_cluster(request.cluster)
    counts = gpu_counts(request, machine)
    if request.cluster is not None:
        request = replace(request, cluster=machine)
    table = ScalingTable(model=model, strong=request.strong, output=output, shown=shown)
    # whoever is told changes from size to size
    told: list[Callable[[str], None]] = [lambda more: None]
    watch = search_progress(lambda more: told[-1](more))
    watch_if_seen = watch if shows_progress(quiet=shown.quiet) else None
    answers = scale_request(request, watch_if_seen, spent=time_spent())
    table.begin(str(values["cluster"] or DEFAULT_CLUSTER))
    try:
        for count in counts:
            doing = f"planning {model} on {format_items(count, 'GPU')}"
            with progress(doing, quiet=shown.quiet, hint=" (Ctrl-C stops)") as tell:
                told.append(tell)
                answer = next(answers)
            table.add(count, answer)
            if was_interrupted(answer):
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        table.end()
        raise
    table.end()
    if all(not size.efficiency for size in table.sizes):
        proven = all(isinstance(s.plan, Exception) and s.plan.proven for s in table.sizes)
        verdict = "no plan fits" if proven else "no plan was found that fits"
        raise Failure(
            INFEASIBLE if proven else UNSOLVED, f"{verdict} at any of these numbers of GPUs"
        )


class ScalingTable(Struct, kw_only=True):
    """The answers so far, shown and written as they come.

    Parameters
    ----------
    model, strong
        The question.
    output
        Where the figures go, None where no file is wanted.
    shown
        How they are shown.
    sizes
        The answers.
    """

    model: str
    strong: bool
    output: str | None
    shown: Shown
    sizes: list[ScaledPlan] = field(default_factory=list)

    @property
    def in_lines(self) -> bool:
        """Whether answers are shown line by line as they come."""
        return not self.shown.as_json and self.output != STDOUT

    def begin(self, cluster: str) -> None:
        """Write the heading."""
        if self.in_lines and not self.shown.quiet:
            kind = "strong scaling" if self.strong else "weak scaling"
            write(f"{self.model}, {kind} on {cluster}\n")
            write("".join(f"{name:>{width}}" for name, width in _COLUMNS) + "  plan")

    def add(self, count: int, answer: Plan | InfeasibleError) -> None:
        """Take an answer, and show it."""
        self.sizes.append(_scaled(count, answer, self.sizes))
        if self.in_lines:
            write(
                quiet_line(self.model, self.sizes[-1])
                if self.shown.quiet
                else size_line(self.sizes[-1])
            )

    def end(self) -> None:
        """What follows the lines of the table; as JSON all of it."""
        text = json.dumps(_scaling_facts(self.model, self.strong, self.sizes), indent=1)
        if self.output is not None:
            write_output(self.output, f"{text}\n")
        if self.shown.as_json:
            write(text)
        elif self.in_lines and not self.shown.quiet:
            _remarks(self.sizes, every=self.shown.verbose)
            if self.output is not None:
                write(f"\nfigures written to {self.output}")


def _scaled(count: int, answer: Plan | InfeasibleError, before: Sequence[ScaledPlan]) -> ScaledPlan:
    if isinstance(answer, Exception):
        return ScaledPlan(gpus=count, plan=answer)
    first = next((s for s in before if not isinstance(s.plan, Exception)), None)
    if first is None or isinstance(first.plan, Exception):
        return ScaledPlan(gpus=count, plan=answer, speed_up=1.0, efficiency=1.0)
    ratio = answer.throughput / first.plan.throughput
    return ScaledPlan(
        gpus=count, plan=answer, speed_up=ratio, efficiency=ratio * first.gpus / count
    )


def size_line(size: ScaledPlan) -> str:
    """One line of the table, no longer than the terminal is wide."""
    from planner.report import figures
    from planner.report.sentences import how

    plan = size.plan
    if isinstance(plan, Exception):
        shape = _why_none(plan)
        cells = [f"{size.gpus:,}", *["-"] * (len(_COLUMNS) - 1)]
    else:
        cells = [
            f"{size.gpus:,}",
            f"{plan.global_batch_size:,}",
            figures.seconds(plan.step_time_s),
            figures.count(plan.throughput),
            "-" if plan.mfu is None else figures.percent(plan.mfu),
            figures.speed_up(size.speed_up),
            figures.percent(size.efficiency),
        ]
        shape = how(plan)
        if plan.search.stopped_by:
            shape += f" (stopped early by {plan.search.stopped_by})"
    line = "".join(f"{c:>{width}}" for c, (_, width) in zip(cells, _COLUMNS, strict=True))
    return _one_line(f"{line}  {shape}")


def quiet_line(model: str, size: ScaledPlan) -> str:
    """The answer for one number of GPUs as 'planner optimize -q' shows it."""
    from planner.report.line import plan_line

    if isinstance(size.plan, Exception):
        return f"{model} on {format_items(size.gpus, 'GPU')}, {_why_none(size.plan)}"
    return plan_line(size.plan)


def _why_none(error: InfeasibleError) -> str:
    """Why there is no plan, in a few words."""
    from planner.report import figures

    short = f"{figures.size(error.missing_bytes)} too much a GPU"
    if error.stopped_by:
        return f"stopped before a plan was found, by the {error.stopped_by}"
    if error.proven:
        return f"does not fit: {short}"
    return f"none found, the smallest does not fit: {short}"


def _one_line(line: str) -> str:
    """Keep to one line on a terminal; what is piped stays whole."""
    import shutil

    if not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width else f"{line[: max(width - 2, 1)]}.."


def _remarks(sizes: Sequence[ScaledPlan], *, every: bool) -> None:
    """Show the fallbacks, whose shares differ from size to size, of every or the last plan.

    Parameters
    ----------
    sizes
        The answers.
    every
        Whether those of all are shown.
    """
    plans = [s.plan for s in sizes if not isinstance(s.plan, Exception)]
    if not plans:
        return
    noted = [
        (f"Approximations and fallbacks at {format_items(plan.gpus, 'GPU')}", plan.fallbacks)
        for plan in (plans if every else plans[-1:])
    ]
    for title, texts in (
        *noted,
        (f"Chosen at {format_items(plans[0].gpus, 'GPU')}, since not given", plans[0].defaults),
    ):
        if texts:
            write(f"\n{title}")
            for text in texts:
                write(f"  - {text}")


def _scaling_facts(model: str, strong: bool, sizes: Sequence[ScaledPlan]) -> dict[str, Any]:
    """The figures that a script reads."""
    from planner.report.runs import main_split

    rows: list[dict[str, Any]] = []
    for size in sizes:
        plan = size.plan
        if isinstance(plan, Exception):
            rows.append(
                {
                    "gpus": size.gpus,
                    "status": plan.status,
                    "missing_bytes": plan.missing_bytes,
                    "layer": plan.layer,
                    "message": str(plan),
                }
            )
            continue
        figures = {k: v for k, v in plan.summary().items() if k != "layers"}
        rows.append(
            {
                **figures,
                "gpus": size.gpus,
                "status": plan.search.status,
                "speed_up": size.speed_up,
                "efficiency": size.efficiency,
                "main_split": main_split(plan),
            }
        )
    return {"model": model, "scaling": "strong" if strong else "weak", "sizes": rows}
