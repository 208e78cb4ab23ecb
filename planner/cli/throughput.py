"""`planner throughput`: distributed SGD on more and more workers, by two models."""

from __future__ import annotations

import json

import click

from planner.cli.options import input_options
from planner.cli.screen import progress, show, write
from planner.request.inputs import COMMANDS


@click.command("throughput")
@click.argument("model")
@input_options(COMMANDS["throughput"])
@click.option("--json", "as_json", is_flag=True, help="Only the figures, as JSON.")
def throughput_command(model: str, as_json: bool, **values: object) -> None:
    """Predict throughput of distributed SGD over a slow network.

    For each number of workers by two models (Li et al. 2022): a closed queueing network, and a
    simulation of the transfers and computation of every layer.

    MODEL is a built-in network (see 'planner models') or a network file.
    """
    from planner.distributed_sgd.predict import predict_throughput
    from planner.request.request import make_request

    request = make_request("throughput", {**values, "model": model})
    with progress(f"predicting throughput of {model}", quiet=as_json):
        found = predict_throughput(request)
    if as_json:
        write(json.dumps(found.as_dict(), indent=1))
        return
    from planner.report.throughput_table import show_throughput

    show(lambda console: show_throughput(found, console))
