"""`planner optimize`, `planner evaluate` and `planner report`: make a plan, show it, write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from planner.cli.options import (
    command_line,
    keywords,
    output_options,
    question_options,
    search_options,
)
from planner.cli.screen import progress, show, write

if TYPE_CHECKING:
    from planner.plan import Plan


@click.command()
@click.argument("model")
@click.option("--gpus", type=int, required=True, metavar="N", help="Number of GPUs.")
@question_options
@search_options
@click.option(
    "--dump-problem",
    metavar="FILE",
    help="Write the search problem whose optimum bounds the plan, for 'planner solve'; of those "
    "solved for the plan, the one with the best bound. Gzipped if FILE ends in .gz.",
)
@output_options
def optimize(
    model: str,
    gpus: int,
    dump_problem: str | None,
    output: str | None,
    report: str | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the fastest plan that fits in memory.

    MODEL is a built-in network (see 'planner models') or a network file.
    """

    def make() -> Plan:
        from planner import api

        return api.optimize(model, gpus=gpus, dump_problem=dump_problem, **keywords(given))

    text = f"planning {model} on {gpus} GPUs (Ctrl-C stops the search)"
    _answer(make, "optimize", model, given, output, report, quiet, as_json, text, dump_problem)


@click.command()
@click.argument("model")
@click.option("--gpus", type=int, required=True, metavar="N", help="Number of GPUs.")
@click.option(
    "--strategy",
    default="data",
    show_default=True,
    metavar="NAME|FILE",
    help="data, spatial, filter, channel, data+filter, data+spatial, or a plan file.",
)
@click.option(
    "--degree",
    type=int,
    metavar="N",
    help="Ways of the other dim of a data+ strategy; the GPUs of a host by default.",
)
@question_options
@output_options
def evaluate(
    model: str,
    gpus: int,
    output: str | None,
    report: str | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Cost one given strategy or plan.

    MODEL is a built-in network (see 'planner models') or a network file.
    """

    def make() -> Plan:
        from planner import api

        return api.evaluate(model, gpus=gpus, **keywords(given))

    text = f"costing {model} on {gpus} GPUs"
    _answer(make, "evaluate", model, given, output, report, quiet, as_json, text)


@click.command()
@click.argument("plan_file", metavar="PLAN")
@click.option(
    "-o", "--output", "outputs", metavar="FILE", multiple=True, help="Report: .html or .md."
)
def report(plan_file: str, outputs: tuple[str, ...]) -> None:
    """Write reports of a plan file, or show it.

    PLAN is a file that 'planner optimize -o' wrote. Without -o it is shown on the terminal.
    """
    from planner.plan import Plan
    from planner.report import check_report_path, write_report

    for path in outputs:
        check_report_path(path)
    plan = Plan.load(plan_file)
    for path in outputs:
        write_report(plan, path)
        write(f"report written to {path}")
    if not outputs:
        _show_plan(plan)


def _show_plan(plan: Plan) -> None:
    from planner.report.terminal import show_plan

    show(lambda console: show_plan(plan, console))


def _answer(
    make: Callable[[], Plan],
    verb: str,
    model: str,
    given: Mapping[str, Any],
    output: str | None,
    report: str | None,
    quiet: bool,
    as_json: bool,
    text: str,
    problem: str | None = None,
) -> None:
    """Make a plan, write it where asked for, and show it."""
    if quiet and as_json:
        raise click.UsageError("--quiet and --json exclude each other")
    # nobody shall wait for a search whose result cannot be written
    if output is not None:
        from planner.output import check_writable

        check_writable(output)
    if report is not None:
        from planner.report import check_report_path

        check_report_path(report)
    try:
        with progress(text, quiet=quiet):
            plan = make()
    except Exception as error:
        if as_json:
            _show_infeasible(error)
        raise
    plan = replace(plan, command=command_line(verb, plan, model, given))
    if output is not None:
        plan.save(output)
    if report is not None:
        from planner.report import write_report

        write_report(plan, report)
    if as_json:
        write(json.dumps(plan.summary(), indent=1))
    elif quiet:
        from planner.report.terminal import plan_line

        write(plan_line(plan))
    else:
        _show_plan(plan)
        written = [f"plan written to {output}"] if output is not None else []
        written += [f"report written to {report}"] if report is not None else []
        written += [f"problem written to {problem}"] if problem is not None else []
        if written:
            write("\n" + "\n".join(written))


def _show_infeasible(error: Exception) -> None:
    """What a script reads where there is no plan."""
    from planner.errors import InfeasibleError

    if isinstance(error, InfeasibleError):
        facts = {
            "status": "infeasible",
            "missing_bytes": error.missing_bytes,
            "layer": error.layer,
            "message": str(error),
        }
        write(json.dumps(facts, indent=1))
