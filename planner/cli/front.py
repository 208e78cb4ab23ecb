"""`planner pareto`: plans of which none is both faster and smaller than another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from planner.cli.completion import complete_model
from planner.cli.options import input_options, inputs_of
from planner.cli.screen import progress, search_progress, show, time_spent, write, write_output
from planner.cli.showing import STDOUT, Shown, output_option, showing_options
from planner.request.inputs import COMMANDS

if TYPE_CHECKING:
    from planner.plan import Plan

_SUFFIXES = (".json", ".html", ".htm")


@click.command("pareto")
@click.argument("model", shell_complete=complete_model)
@input_options(COMMANDS["pareto"])
@output_option("the front with its plans as JSON, or as a page if FILE ends in .html")
@showing_options("as_json", "quiet")
def pareto_command(model: str, output: str | None, shown: Shown, **values: object) -> None:
    """Find the front of step time against peak memory, or of throughput against GPUs.

    Every point is a plan; none is both faster and smaller than another. Against memory, they are
    the plan of 'planner optimize', unless one is both faster and smaller (it takes a simpler one
    that is up to 1 % slower), and ways to train by degrees, with one split of all layers. Where
    each layer can be split in its own way, points are also what 'planner optimize --memory' finds
    with up to eight limits, where points are far apart.

    MODEL is a built-in network (see 'planner models') or a network file.
    """
    shown.check(output)
    from planner.joint.fronts import pareto_request
    from planner.output import Output, check_outputs
    from planner.report.front import front_facts, front_page, show_front
    from planner.request.request import make_request

    request = make_request("pareto", {**values, "model": model})
    against = request.against
    if output is not None:
        wanted = Output(option="-o", path=output, suffixes=_SUFFIXES, streams=True)
        check_outputs([wanted], inputs_of(model, values))
    doing = f"planning the front of {model} on {values['gpus']} GPUs"
    with progress(doing, quiet=shown.quiet, hint=" (Ctrl-C stops)") as tell:
        plans = pareto_request(request, search_progress(tell), spent=time_spent())
    if output is not None:
        page = output.endswith((".html", ".htm"))
        text = (
            front_page(plans, against)
            if page
            else f"{json.dumps(front_facts(plans, against), indent=1)}\n"
        )
        write_output(output, text)
        if output == STDOUT:
            return
    if shown.as_json:
        write(json.dumps(front_facts(plans, against), indent=1))
    elif shown.quiet:
        _write_lines(plans)
    else:
        show(lambda console: show_front(plans, console, against))
        if output is not None:
            write(f"\nfront written to {output}")


def _write_lines(plans: list[Plan]) -> None:
    from planner.report.line import plan_line

    for plan in plans:
        write(plan_line(plan))
