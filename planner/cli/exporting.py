"""`planner export`: write a plan in the form of a framework."""

from __future__ import annotations

import click

from planner.cli.completion import complete
from planner.cli.screen import write


def _framework_of(_: click.Context, __: click.Parameter, name: str) -> str:
    """The name of a framework, which is refused before anything that is missing besides."""
    from planner.report.frameworks import require_framework

    require_framework(name)
    return name


@click.command("export")
@click.argument("plan_file", metavar="PLAN", shell_complete=complete(None, (".json",)))
@click.option(
    "--to",
    "framework",
    required=True,
    metavar="NAME",
    callback=_framework_of,
    help="torchtitan, megatron, deepspeed, accelerate, fsdp2 or jax.",
)
@click.option("-o", "--output", "folder", required=True, metavar="FOLDER", help="Where to.")
def export_command(plan_file: str, framework: str, folder: str) -> None:
    """Write a plan for a framework, and what of it that cannot express.

    PLAN is a file that 'planner optimize -o' wrote.
    """
    from planner.plan import Plan
    from planner.plan.edited import check_unedited
    from planner.report.frameworks import export_plan

    plan = check_unedited(Plan.load(plan_file), plan_file)
    written, cannot = export_plan(plan, framework, folder, [plan_file])
    for path in written:
        write(f"written to {path}")
    for sentence in cannot:
        write(f"not expressed: {sentence}")
