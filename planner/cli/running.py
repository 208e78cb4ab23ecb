"""`planner verify` and `planner run`: plans under torch.distributed."""

from __future__ import annotations

import json
import sys

import click

from planner.cli.completion import complete
from planner.cli.screen import write
from planner.cli.showing import Shown, showing_options


@click.command("verify")
@click.argument("plan_file", metavar="PLAN", shell_complete=complete(None, (".json",)))
@click.option(
    "--ranks", type=int, metavar="N", help="1, 2, 4 or 8; 4 by default, fewer where the plan has."
)
@click.option(
    "--module",
    default="",
    metavar="NAME",
    help="package.module:name of the PyTorch module that was planned; imports that code.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SHAPE",
    help="Of a module of several inputs: each, as it was planned; may be repeated.",
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="Of weights and samples.")
@showing_options("as_json")
def verify_command(
    plan_file: str, ranks: int | None, module: str, inputs: tuple[str, ...], seed: int, shown: Shown
) -> None:
    """Run a plan on a few ranks of this machine, and compare with one process.

    PLAN is a file that 'planner optimize -o' wrote. The network is scaled down, and computes on
    CPU in float64.
    """
    from costmodels.errors import one_line
    from planner.plan import Plan
    from planner.plan.edited import check_unedited
    from planner.report.verification import verification_facts, verification_lines
    from planner.torch.verify.ranks import RankError
    from planner.torch.verify.verify import verify_plan

    plan = check_unedited(Plan.load(plan_file), plan_file)
    try:
        if ranks is None:
            ranks = next(count for count in (4, 2, 1) if count <= plan.gpus)
        found = verify_plan(plan, ranks=ranks, module=module, inputs=inputs, seed=seed)
    except RankError as error:
        click.echo(one_line(f"planner: {error}"), err=True)
        sys.exit(1)
    if shown.as_json:
        write(json.dumps(verification_facts(found), indent=1))
    else:
        for line in verification_lines(found):
            write(line)
    if not found.holds:
        sys.exit(1)


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("plan_file", metavar="PLAN", shell_complete=complete(None, (".json",)))
@click.option("--nproc-per-node", "processes", type=int, required=True, metavar="N", help="Ranks.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="-- SCRIPT [ARGUMENTS]")
def run_command(plan_file: str, processes: int, script: tuple[str, ...]) -> None:
    """Start a training script on several ranks of this host, with a plan.

    The script gets it by planner.torch.load_plan().
    """
    from planner.torch.launch import launch

    sys.exit(launch(plan_file, processes, script))
