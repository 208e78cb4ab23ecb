"""`planner profile`: measure on this machine what a question rests on, as a table of --table."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from planner.cli.completion import complete, complete_model
from planner.cli.failures import Interrupted
from planner.cli.options import WholeNumber, input_options, inputs_of
from planner.cli.screen import progress, write
from planner.cli.showing import Shown, showing_options
from planner.request.inputs.question import GPUS, QUESTION

if TYPE_CHECKING:
    from planner.tables.profile.run import Progress
    from planner.tables.profile.store import MeasuredProfile

_REASONS = 3


@click.command("profile")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@input_options((replace(GPUS, required=False), *QUESTION))
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="The table, .json; what it has already is not measured again.",
    shell_complete=complete(None, (".json",)),
)
@click.option("--device", default="cuda", metavar="NAME", show_default=True, help="cpu or cuda.")
@click.option("--budget", metavar="TIME", help='When to stop, such as "5 min".')
@click.option("--threads", type=WholeNumber(), metavar="N", help="Threads of a CPU.")
@click.option("--links", is_flag=True, help="Measure the network, too; under torchrun.")
@click.option(
    "--ranks",
    type=WholeNumber(),
    metavar="N",
    help="With --links: processes of this machine to start, instead of torchrun.",
)
@showing_options("quiet")
def profile_command(
    model: str,
    output: str,
    device: str,
    budget: str | None,
    threads: int | None,
    links: bool,
    ranks: int | None,
    shown: Shown,
    **values: object,
) -> None:
    """Measure on this machine what a question rests on, as a table of --table.

    MODEL and the options are those of 'planner optimize'. Of each local shape that its candidates
    need, every pass is measured, those that the plan rests on most first. A run that is stopped
    loses nothing: the same command goes on. With --links the network is measured as well, or
    without MODEL alone.
    """
    from planner.errors import ConflictError
    from planner.output import Output, check_outputs
    from planner.tables.profile.job import check_links

    if not model and not links:
        raise ConflictError("a MODEL must be given to profile, or --links, but neither is")
    if model and values["gpus"] is None:
        raise ConflictError("the number of GPUs must be given with a network; add --gpus")
    seconds = _budget_seconds(budget)
    check_links(ranks, links=links, device=device)
    check_outputs([Output(option="-o", path=output, suffixes=(".json",))], inputs_of(model, values))
    if links and not _measure_links(output, device, ranks, threads, shown.quiet):
        return
    if model:
        _profile(model, values, output, device, seconds, threads, shown.quiet)


def _budget_seconds(budget: str | None) -> float:
    from costmodels.units import parse_seconds

    return math.inf if budget is None else parse_seconds(budget, what="the budget (--budget)")


def _measure_links(
    output: str, device: str, ranks: int | None, threads: int | None, quiet: bool
) -> bool:
    """Whether this is the process that goes on, which says what was found."""
    from planner.tables.profile.job import measure_links

    with progress("measuring links", quiet=quiet) as tell:
        profile = measure_links(output, device=device, ranks=ranks, threads=threads, tell=tell)
    if profile is None:
        return False
    from costmodels.units import format_bandwidth, format_seconds
    from planner.tables.profile.sweeps import fit_error, straight_error

    curves = profile.curves()
    write(f"{len(curves)} collectives of links measured, written to {output}")
    if not quiet:
        for curve, (sweep, rows) in zip(curves, profile.sweeps.items(), strict=True):
            rate = format_bandwidth(1.0 / curve.slope) if curve.slope else "none"
            write(
                f"  {sweep[0]:14s} of {sweep[2]} on {sweep[1]}: {format_seconds(rows[0][1])} of "
                f"{rows[0][0]:g} B, {rate} at last; {len(curve.knots) + 1} pieces are off by "
                f"{fit_error(curve, rows):.0%} on average, a straight line by "
                f"{straight_error(rows):.0%}"
            )
        if profile.overlap is not None:
            write(
                f"  computation takes {profile.overlap:.0%} longer beside an all-reduce "
                f"(planner simulate --overlap-factor {profile.overlap:.2g})"
            )
    return True


def _profile(
    model: str,
    values: dict[str, object],
    output: str,
    device: str,
    seconds: float,
    threads: int | None,
    quiet: bool,
) -> None:
    from planner.request.request import make_request
    from planner.tables.profile.place import find_place
    from planner.tables.profile.run import profile_question
    from planner.tables.profile.store import open_profile

    request = make_request("optimize", {**values, "model": model})
    # whether there is the device and a file to go on with, before anything is planned
    place = find_place(device, threads)
    profile = open_profile(output, place.provenance)
    try:
        with progress(
            f"profiling {model} on {place.name}", quiet=quiet, hint=" (Ctrl-C stops)"
        ) as tell:
            run = profile_question(request, profile, place, tell, seconds)
    except KeyboardInterrupt:
        if not profile.times:
            raise
        raise Interrupted(f"{output} has what was measured; the same command goes on") from None
    profile.save()
    _say(run.progress(), profile, output, run.needs.question, quiet)


def _say(done: Progress, profile: MeasuredProfile, output: str, question: str, quiet: bool) -> None:
    from costmodels.units import format_seconds
    from planner.tables.profile.run import reasons

    write(
        f"{done.shapes:,} of {done.of:,} shapes of {question} measured, {done.covered:.0%} of what "
        f"its plan computes, written to {output}"
    )
    if quiet:
        return
    write(f"on {profile.provenance['device']}, {profile.provenance['software']}")
    if done.seconds_left:
        left = format_seconds(done.seconds_left)
        write(f"about {left} are left for the rest; the same command goes on")
    if done.left_out:
        write(
            f"{done.left_out:,} could not be measured, as {'; '.join(reasons(profile, _REASONS))}"
        )
