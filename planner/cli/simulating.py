"""`planner simulate`: run a step of a plan, a strategy or a network, and say what happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from planner.cli.options import keywords, question_options
from planner.cli.screen import progress, show, write

if TYPE_CHECKING:
    from costmodels.simulation import Runtime
    from planner.simulation.run import Degrees, Input

_COUNT = click.IntRange(min=1)
_DEGREES = (
    "dp",
    "tp",
    "pp",
    "micro_batches",
    "schedule",
    "chunks",
    "max_in_flight",
    "recompute",
)
# Options of the command by the keyword of `planner.simulation.run.Input`.
_INPUT = {
    "loader": "loader",
    "rate": "loader_rate",
    "cores": "cores",
    "storage": "storage",
}


@click.command()
@click.argument("subject")
@click.option("--gpus", type=int, metavar="N", help="Number of GPUs; plan files tell it.")
@click.option(
    "--strategy",
    metavar="NAME|FILE",
    help="data (the default), spatial, filter, channel, data+filter, data+spatial, or a plan or "
    "strategy file.",
)
@click.option("--degree", type=int, metavar="N", help="As of 'planner evaluate'.")
@click.option("--dp", type=_COUNT, metavar="N", help="Data parallelism; what is left by default.")
@click.option("--tp", type=_COUNT, metavar="N", help="Tensor parallelism.")
@click.option("--pp", type=_COUNT, metavar="N", help="Pipeline stages, or groups of them.")
@click.option("--micro-batches", type=_COUNT, metavar="N", help="Parts of the batch.")
@click.option("--schedule", metavar="NAME", help="gpipe, 1f1b, interleaved or zero-bubble.")
@click.option("--chunks", type=_COUNT, metavar="N", help="Stages a group, if interleaved.")
@click.option("--max-in-flight", type=_COUNT, metavar="N", help="Micro-batches kept for backward.")
@click.option(
    "--recompute",
    is_flag=True,
    flag_value=True,
    default=None,
    help="Compute the activations of every block again for backward.",
)
@click.option("--runtime", metavar="NAME", help="See 'planner runtimes'; ddp by default.")
@click.option(
    "--servers",
    type=_COUNT,
    metavar="N",
    help="Parameter servers on hosts of their own; the workers' hosts serve by default.",
)
@click.option(
    "--model",
    default="simulate",
    show_default=True,
    metavar="NAME",
    help="simulate, plain (no overlap factor, links not shared), flexflow-sim, or a closed form: "
    "paradl or paleo.",
)
@click.option(
    "--overlap-factor",
    type=float,
    metavar="X",
    help="How much longer computation takes while gradients travel; 0.1 by default.",
)
@click.option(
    "--variation",
    type=float,
    metavar="X",
    help="Standard deviation between devices, whose slowest all wait for; 0.015 by default.",
)
@click.option(
    "--congestion",
    type=float,
    default=1.0,
    metavar="X",
    help="How many times less links between hosts carry, because of other jobs; 1, seen up to 4.",
)
@click.option("--loader", metavar="NAME", help="Data loader, see 'planner loaders'; none.")
@click.option("--loader-rate", type=float, metavar="X", help="Its samples/s a host, if measured.")
@click.option("--cores", type=int, metavar="N", help="Cores of a host for loading.")
@click.option("--storage", metavar="NAME", help="Where samples lie, instead of the loader's.")
@question_options
@click.option("--trace", metavar="FILE.json", help="Write a trace for Perfetto.")
@click.option(
    "--dump-strategy", metavar="FILE.toml", help="Write the strategy as a file to start from."
)
@click.option("-o", "--output", metavar="FILE", help="Write the figures as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="One line instead of tables.")
@click.option("--json", "as_json", is_flag=True, help="Only the figures, as JSON.")
def simulate(
    subject: str,
    gpus: int | None,
    strategy: str | None,
    degree: int | None,
    runtime: str | None,
    servers: int | None,
    model: str,
    overlap_factor: float | None,
    variation: float | None,
    congestion: float,
    trace: str | None,
    dump_strategy: str | None,
    output: str | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Simulate a training step.

    Computation and communication of every pipeline stage run in queues beside each other, slow
    each other down and share links; memory is counted tensor by tensor.

    SUBJECT is a plan file, a strategy file, a built-in network (see 'planner models') or a network
    file. What a file says of the step holds unless an option says otherwise.
    """
    from planner.simulation.run import save_strategy, save_trace
    from planner.simulation.run import simulate as run

    if quiet and as_json:
        raise click.UsageError("--quiet and --json exclude each other")
    _check_model(model, runtime, servers, overlap_factor, trace)
    degrees, loading = _degrees(given), _input(given)
    question = {k: v for k, v in given.items() if k not in (*_DEGREES, *_INPUT.values())}
    # nobody shall wait for a simulation whose result cannot be written
    _check_paths(subject, {".json": trace, ".toml": dump_strategy, "": output})
    with progress(f"simulating {subject}", quiet=quiet):
        found = run(
            subject,
            gpus=gpus,
            strategy=strategy,
            degree=degree,
            degrees=degrees,
            runtime=_runtime(runtime, servers),
            model=model,
            overlap_factor=overlap_factor,
            variation=variation,
            congestion=congestion,
            input=loading,
            **keywords(question),
        )
    text = json.dumps(found.summary(), indent=1)
    if output is not None:
        from planner.output import write_text

        write_text(output, f"{text}\n")
    if trace is not None:
        save_trace(found, trace)
    if dump_strategy is not None:
        save_strategy(found, dump_strategy)
    if as_json:
        write(text)
    elif quiet:
        from planner.report.simulation_figures import simulation_line

        write(simulation_line(found))
    else:
        from planner.report.simulation import show_simulation

        show(lambda console: show_simulation(found, console))
        written = [f"figures written to {output}"] if output is not None else []
        written += [f"trace written to {trace}, for ui.perfetto.dev"] if trace is not None else []
        written += [f"strategy written to {dump_strategy}"] if dump_strategy is not None else []
        if written:
            write("\n" + "\n".join(written))


def _degrees(given: Mapping[str, Any]) -> Degrees | None:
    from planner.simulation.run import Degrees

    degrees = {key: given[key] for key in _DEGREES if given[key] is not None}
    return Degrees(**degrees) if degrees else None


def _runtime(name: str | None, servers: int | None) -> Runtime:
    from costmodels.simulation import load_runtime

    if servers is None:
        return load_runtime(name or "ddp")
    runtime = load_runtime(name or "ps-sync", servers=servers)
    if runtime.gradient != "push_pull":
        raise click.UsageError(
            f"the runtime {runtime.name} has no parameter servers; leave --servers out, or use "
            "--runtime ps-sync"
        )
    return runtime


def _input(given: Mapping[str, Any]) -> Input | None:
    from planner.simulation.run import Input

    values = {key: given[option] for key, option in _INPUT.items() if given[option] is not None}
    if not values:
        return None
    loader = values.get("loader", "synthetic")
    if loader == "synthetic" and len(values) > ("loader" in values):
        raise click.UsageError(
            "--loader-rate, --cores and --storage need a --loader that loads, such as native"
        )
    return Input(**values)


def _check_model(
    model: str,
    runtime: str | None,
    servers: int | None,
    overlap_factor: float | None,
    trace: str | None,
) -> None:
    """Refuse options that a step model would not heed."""
    from costmodels.closed_form import CLOSED_FORMS
    from planner.simulation.run import STEP_MODELS

    if model not in STEP_MODELS:
        return  # said better where models are chosen
    for value, option, heeded in (
        (runtime, "--runtime", model not in CLOSED_FORMS),
        (servers, "--servers", model not in CLOSED_FORMS),
        (trace, "--trace", model not in CLOSED_FORMS),
        (overlap_factor, "--overlap-factor", model == "simulate"),
    ):
        if value is not None and not heeded:
            raise click.UsageError(
                f"the step model {model} knows no {option}; leave it out, or use --model simulate"
            )


def _check_paths(subject: str, outputs: Mapping[str, str | None]) -> None:
    """Refuse outputs, by the ending that they must have, that nobody could use."""
    from planner.output import check_writable

    given = [path for path in outputs.values() if path is not None]
    for ending, path in outputs.items():
        if path is None:
            continue
        if not path.endswith(ending):
            raise click.UsageError(f"the file must end in {ending} but is '{path}'; rename it")
        if path == subject:
            raise click.UsageError(f"'{path}' is what is simulated; write to another file")
        check_writable(path)
    if len(set(given)) < len(given):
        raise click.UsageError("--trace, --dump-strategy and --output must be different files")
