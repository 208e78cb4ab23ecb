"""`planner throughput`: distributed SGD on more and more workers, by two models."""

from __future__ import annotations

import json

import click

from planner.cli.completion import complete_model
from planner.cli.options import input_options, inputs_of
from planner.cli.screen import progress, show, write, write_output
from planner.cli.showing import (
    STDOUT,
    Shown,
    check_figures_output,
    output_option,
    showing_options,
)
from planner.request.inputs import COMMANDS


@click.command("throughput")
@click.argument("model", shell_complete=complete_model)
@input_options(COMMANDS["throughput"])
@output_option("the figures as JSON")
@showing_options("as_json", "quiet")
def throughput_command(model: str, output: str | None, shown: Shown, **values: object) -> None:
    """Predict throughput of distributed SGD over a slow network.

    For each number of workers by two models (Li et al. 2022): a closed queueing network, and a
    simulation of the transfers and computation of every layer.

    MODEL is a built-in network (see 'planner models') or a network file.
    """
    from planner.distributed_sgd.predict import predict_throughput
    from planner.request.request import make_request

    shown.check(output)
    request = make_request("throughput", {**values, "model": model})
    check_figures_output(output, inputs_of(model, values))
    with progress(f"predicting throughput of {model}", quiet=shown.quiet):
        found = predict_throughput(request)
    text = json.dumps(found.as_dict(), indent=1)
    if output is not None:
        write_output(output, f"{text}\n")
    if output == STDOUT:
        return
    if shown.as_json:
        write(text)
        return
    from planner.report.throughput_table import show_throughput, throughput_line

    if shown.quiet:
        write(throughput_line(found))
        return
    show(lambda console: show_throughput(found, console))
    if output is not None:
        write(f"\nfigures written to {output}")
