"""The command `planner` and its subcommands."""

from __future__ import annotations

import difflib
from typing import NoReturn

import click

import planner
from planner.cli.catalogue import (
    clusters_command,
    devices_command,
    links_command,
    loaders_command,
    models_command,
    runtimes_command,
)
from planner.cli.exporting import export_command
from planner.cli.failures import Interrupted, Unread, one_line_errors
from planner.cli.front import pareto_command
from planner.cli.plans import evaluate_command, optimize_command, report_command
from planner.cli.profiling import profile_command
from planner.cli.running import run_command, verify_command
from planner.cli.scaling import scale_command
from planner.cli.simulating import simulate_command
from planner.cli.solving import solve_command
from planner.cli.studying import study_command
from planner.cli.tables import tables_command
from planner.cli.throughput import throughput_command
from planner.errors import ConflictError


class Planner(click.Group):
    """A group whose every failure is one line and a documented exit status."""

    def main(self, *args: object, **extra: object) -> NoReturn:
        with one_line_errors():
            status = super().main(*args, **{**extra, "standalone_mode": False})  # type: ignore[call-overload]
        raise SystemExit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConflictError as error:
            command = self.commands[ctx.invoked_subcommand or ""]
            where = click.Context(command, parent=ctx, info_name=ctx.invoked_subcommand)
            raise click.UsageError(str(error), where) from None
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise Unread from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # while a shell completes words, what is wrong with them is not for it to say
        known = ctx.resilient_parsing or not args or self.get_command(ctx, args[0]) is not None
        if not known and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], names, n=1)
            guess = f"did you mean '{close[0]}'" if close else f"there are {', '.join(names)}"
            raise click.UsageError(f"there is no command '{args[0]}': {guess}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Planner,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done, or stopped with a plan that says so, 2 an input cannot be used, "
    "3 proven that no plan fits in memory, 4 stopped before a plan was found, or none was found "
    "without that proof, 130 interrupted before; see also 'planner solve --help'.",
)
@click.version_option(planner.__version__, prog_name="planner")
@click.pass_context
def planner_command(ctx: click.Context) -> None:
    """Split the training of a neural network over GPUs so that a step is fastest and fits."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for _command in (
    optimize_command,
    evaluate_command,
    simulate_command,
    scale_command,
    pareto_command,
    study_command,
    report_command,
    export_command,
    verify_command,
    run_command,
    models_command,
    clusters_command,
    devices_command,
    links_command,
    runtimes_command,
    loaders_command,
    tables_command,
    profile_command,
    solve_command,
    throughput_command,
):
    planner_command.add_command(_command)
