"""`planner optimize`, `planner evaluate` and `planner report`: make a plan, show it, write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from costmodels.units import format_items
from planner.cli.completion import complete, complete_model
from planner.cli.options import command_line, input_options, inputs_of
from planner.cli.screen import progress, search_progress, show, time_spent, write, write_output
from planner.cli.showing import (
    STDOUT,
    Shown,
    output_option,
    report_option,
    showing_options,
)
from planner.request.inputs import COMMANDS

if TYPE_CHECKING:
    from planner.output import Output
    from planner.plan import Plan


class PlanOutputs(Struct, frozen=True, kw_only=True):
    """What to write and to show of a plan.

    Parameters
    ----------
    output, reports, problem
        Paths of the plan, of its reports and of its search problem, None where none is wanted.
    shown
        How the plan is shown.
    """

    output: str | None
    reports: tuple[str, ...]
    shown: Shown
    problem: str | None = None

    def check(self, inputs: Iterable[object]) -> None:
        """Refuse what cannot be written or shown, before anybody waits for a search.

        Nothing is written over one of the inputs.
        """
        self.shown.check(self.output)
        from planner.output import Output, check_outputs

        outputs = [report_output("--report", path) for path in self.reports]
        if self.output is not None:
            plain = Output(option="-o", path=self.output, suffixes=(".json",), streams=True)
            outputs.append(plain)
        if self.problem is not None:
            suffixes = (".json", ".gz")
            outputs.append(Output(option="--dump-problem", path=self.problem, suffixes=suffixes))
        check_outputs(outputs, inputs)

    def write(self, plan: Plan) -> None:
        """Write a plan where asked for, and show it."""
        if self.output is not None:
            write_output(self.output, plan.to_json())
        if self.reports:
            from planner.report import write_report

            for path in self.reports:
                write_report(plan, path)
        if self.output == STDOUT:
            return
        show_plan_as(plan, self.shown)
        if not (self.shown.as_json or self.shown.quiet):
            reports = [("report", path) for path in self.reports]
            named = (("plan", self.output), *reports, ("problem", self.problem))
            lines = [f"{what} written to {path}" for what, path in named if path is not None]
            if lines:
                write("\n" + "\n".join(lines))


def _gpus_of(values: Mapping[str, object]) -> str:
    """The GPUs that a command is asked about, as progress names them."""
    return format_items(int(str(values["gpus"])), "GPU")


@click.command("optimize")
@click.argument("model", shell_complete=complete_model)
@input_options(COMMANDS["optimize"])
@output_option("the plan as JSON")
@report_option
@showing_options()
def optimize_command(
    model: str,
    output: str | None,
    report: tuple[str, ...],
    shown: Shown,
    dump_problem: str | None,
    **values: object,
) -> None:
    """Find the fastest plan that fits in memory.

    MODEL is a built-in network (see 'planner models') or a network file.
    """

    def make(tell: Callable[[str], None]) -> Plan:
        from planner.joint.requests import optimize_request
        from planner.request.request import make_request

        everything = {**values, "model": model, "dump_problem": dump_problem}
        request = make_request("optimize", everything)
        return optimize_request(request, watch=search_progress(tell), spent=time_spent())

    outputs = PlanOutputs(output=output, reports=report, shown=shown, problem=dump_problem)
    doing = f"planning {model} on {_gpus_of(values)}"
    _answer_command("optimize", make, model, values, outputs, doing, " (Ctrl-C stops)")


@click.command("evaluate")
@click.argument("model", shell_complete=complete_model)
@input_options(COMMANDS["evaluate"])
@output_option("the plan as JSON")
@report_option
@showing_options()
def evaluate_command(
    model: str,
    output: str | None,
    report: tuple[str, ...],
    shown: Shown,
    **values: object,
) -> None:
    """Cost one given strategy or plan.

    MODEL is a built-in network (see 'planner models') or a network file.
    """

    def make(tell: Callable[[str], None]) -> Plan:
        from planner.planning.evaluate import evaluate_request
        from planner.request.request import make_request

        return evaluate_request(make_request("evaluate", {**values, "model": model}))

    outputs = PlanOutputs(output=output, reports=report, shown=shown)
    doing = f"costing {model} on {_gpus_of(values)}"
    _answer_command("evaluate", make, model, values, outputs, doing)


@click.command("report")
@click.argument("plan_file", metavar="PLAN", shell_complete=complete(None, (".json",)))
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    multiple=True,
    help="Report: .html or .md.",
    shell_complete=complete(None, (".html", ".md")),
)
@showing_options()
def report_command(plan_file: str, outputs: tuple[str, ...], shown: Shown) -> None:
    """Write reports of a plan file, or show it.

    PLAN is a file that 'planner optimize -o' wrote. Without -o it is shown on the terminal.
    """
    shown.check()
    if outputs and shown != Shown():
        raise click.UsageError("-o writes reports and shows nothing; leave --json, -v and -q out")
    from planner.output import check_outputs
    from planner.plan import Plan
    from planner.plan.edited import check_unedited
    from planner.report import write_report

    check_outputs([report_output("-o", path) for path in outputs], [plan_file])
    plan = check_unedited(Plan.load(plan_file), plan_file)
    for path in outputs:
        write_report(plan, path)
        write(f"report written to {path}")
    if not outputs:
        show_plan_as(plan, shown)


def report_output(option: str, path: str) -> Output:
    """A report to be written, of a kind that there is."""
    from planner.output import Output
    from planner.report import KINDS, report_kind

    report_kind(path)
    return Output(option=option, path=path, suffixes=tuple(KINDS))


def show_plan_as(plan: Plan, shown: Shown) -> None:
    """Write a plan on standard output."""
    if shown.as_json:
        write(json.dumps(plan.summary(), indent=1))
        return
    if shown.quiet:
        from planner.report.line import plan_line

        write(plan_line(plan))
        return
    from planner.report.terminal import show_plan

    show(lambda console: show_plan(plan, console, everything=shown.verbose))


def _answer_command(
    command: str,
    make: Callable[[Callable[[str], None]], Plan],
    model: str,
    values: Mapping[str, object],
    outputs: PlanOutputs,
    doing: str,
    hint: str = "",
) -> None:
    """Make a plan, write it where asked for, and show it."""
    outputs.check(inputs_of(model, values))
    try:
        with progress(doing, quiet=outputs.shown.quiet, hint=hint) as tell:
            plan = make(tell)
    except Exception as error:
        if outputs.shown.as_json:
            _show_infeasible(error)
        raise
    outputs.write(replace(plan, command=command_line(command, plan, model, values)))


def _show_infeasible(error: Exception) -> None:
    """What a script reads where there is no plan."""
    from planner.errors import InfeasibleError

    if isinstance(error, InfeasibleError):
        facts = {
            "status": error.status,
            "missing_bytes": error.missing_bytes,
            "layer": error.layer,
            "message": str(error),
        }
        write(json.dumps(facts, indent=1))
