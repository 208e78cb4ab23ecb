"""`planner throughput`: distributed SGD on more and more workers, by two models."""

from __future__ import annotations

import json
from typing import Any

import click

from planner.cli.screen import progress, show, write


@click.command()
@click.argument("model")
@click.option(
    "--workers",
    metavar="N-N|N,N,...",
    help="Numbers of workers (hosts); 1-16 by default. Several kinds keep their proportion.",
)
@click.option(
    "--device",
    default="v100",
    show_default=True,
    metavar="NAME",
    help='GPU of a worker, or kinds with their numbers, such as "v100:4,t4:2".',
)
@click.option(
    "--bandwidth",
    default="10 Gbps",
    show_default=True,
    metavar="RATE",
    help="Link of a worker or server in one direction.",
)
@click.option(
    "--architecture",
    default="ps",
    show_default=True,
    metavar="NAME",
    help="ps (parameter servers) or all-reduce (ring).",
)
@click.option("--mode", default="sync", show_default=True, metavar="NAME", help="sync or async.")
@click.option(
    "--model",
    "models",
    default="both",
    show_default=True,
    metavar="NAME",
    help="coarse (queueing, closed form), fine (simulation of every layer) or both.",
)
@click.option(
    "--batch", type=int, default=32, show_default=True, metavar="N", help="Samples of a GPU."
)
@click.option("--precision", metavar="NAME", help="fp32 (the default), tf32, fp16 or bf16.")
@click.option("--optimizer", metavar="NAME", help="sgd (with momentum) or adam.")
@click.option("--input-size", type=int, metavar="N", help="Pixels or voxels a side, or tokens.")
@click.option(
    "--no-overlap",
    "overlap",
    flag_value=False,
    default=None,
    help="Transfers wait for computation, and computation for transfers.",
)
@click.option("--flow-cap", metavar="RATE", help="Limit of one flow between worker and server.")
@click.option(
    "--gpus-per-host", type=int, metavar="N", help="GPUs of a worker, which all-reduce first."
)
@click.option(
    "--host", metavar="NAME|FILE", help="Cluster whose hosts join the GPUs of a worker alike."
)
@click.option("--servers", type=int, metavar="N", help="Parameter servers with equal parts.")
@click.option("--update-time", metavar="TIME", help='Update at the server, such as "2 ms".')
@click.option(
    "--rule",
    metavar="NAME",
    help="How flows share a link: auto (as the paper does), processor-sharing or first-come.",
)
@click.option(
    "--utilisation-threshold",
    type=float,
    metavar="SHARE",
    help="Link use up to which links serve first come, first served; 0.6 by default.",
)
@click.option("--steps", type=int, metavar="N", help="Steps of each worker in a simulation.")
@click.option(
    "--variation",
    type=float,
    metavar="SHARE",
    help="Coefficient of variation of computation in simulations; 0.02 by default.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of simulations; 0 by default.")
@click.option(
    "--launch-time",
    metavar="TIME",
    help='Host time of an operation, "25 us" by default; "0 s" for captured graphs.',
)
@click.option(
    "--table", "tables", metavar="FILE", multiple=True, help="Table of measured layer times."
)
@click.option("--json", "as_json", is_flag=True, help="Only the figures, as JSON.")
def throughput(model: str, as_json: bool, **given: Any) -> None:
    """Predict throughput of distributed SGD over a slow network.

    For each number of workers by two models (Li et al. 2022): a closed queueing network, and a
    simulation of the transfers and computation of every layer.

    MODEL is a built-in network (see 'planner models') or a network file.
    """
    from costmodels.units import parse_seconds
    from planner.distributed_sgd.predict import throughput as predict

    options = {key: value for key, value in given.items() if value is not None and value != ()}
    for key, what in (("update_time", "the time of an update"), ("launch_time", "the launch time")):
        if key in options:
            options[key] = parse_seconds(options[key], what=what, allow_zero=True)
    with progress(f"predicting throughput of {model}", quiet=as_json):
        found = predict(model, **options)
    if as_json:
        write(json.dumps(found.as_dict(), indent=1))
        return
    from planner.report.throughput_table import show_throughput

    show(lambda console: show_throughput(found, console))
