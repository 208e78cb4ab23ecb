"""`planner scale`: the best plan for each number of GPUs, a line each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from planner.cli.failures import INFEASIBLE, UNSOLVED, Failure
from planner.cli.options import input_options
from planner.cli.screen import progress, write
from planner.request.inputs.question import DEFAULT_CLUSTER, QUESTION, SCALE_SIZES
from planner.request.inputs.searching import SEARCH

if TYPE_CHECKING:
    from planner.errors import InfeasibleError
    from planner.plan import Plan

_COLUMNS = (
    ("GPUs", 7),
    ("batch", 9),
    ("step time", 10),
    ("samples/s", 12),
    ("speed-up", 9),
    ("efficiency", 11),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPlan:
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
@click.argument("model")
@input_options(SCALE_SIZES)
@click.option("--json", "as_json", is_flag=True, help="Only the figures, as JSON.")
@input_options((*QUESTION, *SEARCH))
def scale_command(model: str, gpus: str, as_json: bool, **values: object) -> None:
    """Plan for several numbers of GPUs.

    Each gets a line: step time as simulated, throughput, efficiency and how the plan splits.

    MODEL is a built-in network (see 'planner models') or a network file. A global batch size is
    that of the first number of GPUs.
    """
    from planner import api
    from planner.request.request import make_request
    from planner.request.setting import find_cluster, gpu_counts

    request = make_request("scale", {**values, "model": model, "gpus": gpus})
    machine = find_cluster(request.cluster)
    counts = gpu_counts(request, machine)
    if request.cluster is not None:
        request = replace(request, cluster=machine)
    if not as_json:
        kind = "strong scaling" if request.strong else "weak scaling"
        write(f"{model}, {kind} on {values['cluster'] or DEFAULT_CLUSTER}\n")
        write("".join(f"{name:>{width}}" for name, width in _COLUMNS) + "  plan")
    sizes: list[ScaledPlan] = []
    answers = api.scale_request(request)
    try:
        for count in counts:
            with progress(f"planning {model} on {count} GPUs (Ctrl-C stops)"):
                answer = next(answers)
            sizes.append(_scaled(count, answer, sizes))
            if not as_json:
                write(size_line(sizes[-1]))
            if api.was_interrupted(answer):
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        _show_rest(model, request.strong, sizes, as_json=as_json)
        raise
    _show_rest(model, request.strong, sizes, as_json=as_json)
    if all(not size.efficiency for size in sizes):
        proven = all(isinstance(s.plan, Exception) and s.plan.proven for s in sizes)
        verdict = "no plan fits" if proven else "no plan was found that fits"
        raise Failure(
            INFEASIBLE if proven else UNSOLVED, f"{verdict} at any of these numbers of GPUs"
        )


def _show_rest(model: str, strong: bool, sizes: Sequence[ScaledPlan], *, as_json: bool) -> None:
    """What follows the lines of the table; as JSON all of it."""
    if as_json:
        write(json.dumps(_scaling_facts(model, strong, sizes), indent=1))
    else:
        _remarks(sizes)


def _scaled(count: int, answer: Plan | InfeasibleError, before: Sequence[ScaledPlan]) -> ScaledPlan:
    if isinstance(answer, Exception):
        return ScaledPlan(gpus=count, plan=answer)
    first = next((s for s in before if not isinstance(s.plan, Exception)), None)
    if first is None or isinstance(first.plan, Exception):
        return ScaledPlan(gpus=count, plan=answer, speed_up=1.0, efficiency=1.0)
    ratio = _throughput(answer) / _throughput(first.plan)
    return ScaledPlan(
        gpus=count, plan=answer, speed_up=ratio, efficiency=ratio * first.gpus / count
    )


def _step_time(plan: Plan) -> float:
    """The step by which plans are chosen: as simulated, where there was time for that. [s]"""
    return plan.simulated_step_time or plan.step_time_s


def _throughput(plan: Plan) -> float:
    """Samples in a second. [samples/s]"""
    return plan.global_batch_size / _step_time(plan)


def size_line(size: ScaledPlan) -> str:
    """One line of the table, no longer than the terminal is wide."""
    from planner.report import figures
    from planner.report.terminal import main_split

    plan = size.plan
    if isinstance(plan, Exception):
        cells = [f"{size.gpus:,}", "-", "-", "-", "-", "-"]
        short = f"{figures.size(plan.missing_bytes)} too much a GPU"
        if plan.stopped_by:
            shape = f"stopped before a plan was found, by the {plan.stopped_by}"
        elif plan.proven:
            shape = f"does not fit: {short}"
        else:
            shape = f"none found, the smallest does not fit: {short}"
    else:
        cells = [
            f"{size.gpus:,}",
            f"{plan.global_batch_size:,}",
            figures.seconds(_step_time(plan)),
            figures.count(_throughput(plan)),
            figures.speed_up(size.speed_up),
            figures.percent(size.efficiency),
        ]
        shape = main_split(plan)
        if plan.search.stopped_by:
            shape += f" (stopped early by {plan.search.stopped_by})"
    line = "".join(f"{c:>{width}}" for c, (_, width) in zip(cells, _COLUMNS, strict=True))
    return _one_line(f"{line}  {shape}")


def _one_line(line: str) -> str:
    """Keep to one line on a terminal; what is piped stays whole."""
    import shutil

    if not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width else f"{line[: max(width - 2, 1)]}.."


def _remarks(sizes: Sequence[ScaledPlan]) -> None:
    """Show the fallbacks of the last plan, whose shares differ from size to size, and defaults."""
    plans = [s.plan for s in sizes if not isinstance(s.plan, Exception)]
    if not plans:
        return
    last = plans[-1]
    for title, texts in (
        (f"Approximations and fallbacks at {last.gpus} GPUs", last.fallbacks),
        (f"Chosen at {plans[0].gpus} GPUs, since not given", plans[0].defaults),
    ):
        if texts:
            write(f"\n{title}")
            for text in texts:
                write(f"  - {text}")


def _scaling_facts(model: str, strong: bool, sizes: Sequence[ScaledPlan]) -> dict[str, Any]:
    """The figures that a script reads."""
    from planner.report.terminal import main_split

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
                "status": plan.search.status,
                "speed_up": size.speed_up,
                "efficiency": size.efficiency,
                "main_split": main_split(plan),
            }
        )
    return {"model": model, "scaling": "strong" if strong else "weak", "sizes": rows}
