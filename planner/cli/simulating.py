"""`planner simulate`: run a step of a plan, a strategy or a network, and say what happens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from planner.cli.completion import complete, complete_model
from planner.cli.options import input_options, inputs_of, unsaid_by
from planner.cli.screen import progress, show, write, write_output
from planner.cli.showing import STDOUT, Shown, output_option, showing_options
from planner.request.inputs import COMMANDS

if TYPE_CHECKING:
    from planner.simulation.result import Simulation


class SimulationOutputs(Struct, frozen=True, kw_only=True):
    """What to write and to show of a simulation.

    Parameters
    ----------
    subject, values
        What was given: the network, plan or strategy, and all options.
    output, trace, strategy
        Paths of the figures, the trace and the strategy, None where none is wanted.
    shown
        How the simulation is shown.
    """

    subject: str
    values: Mapping[str, object]
    output: str | None
    trace: str | None
    strategy: str | None
    shown: Shown

    def write(self, found: Simulation, remedy: str | None) -> None:
        """Write a simulation where asked for, and show it, with what would make it fit."""
        text = json.dumps(found.summary(), indent=1)
        if self.output is not None:
            write_output(self.output, f"{text}\n")
        if self.trace is not None:
            from planner.report.trace import save_trace

            save_trace(found, self.trace)
        again = "" if self.strategy is None else self._write_strategy(found, self.strategy)
        if self.output == STDOUT:
            return
        if self.shown.as_json:
            write(text)
        elif self.shown.quiet:
            from planner.report.simulation_figures import simulation_line

            write(simulation_line(found))
        else:
            from planner.report.simulation import show_simulation

            everything = self.shown.verbose
            show(lambda to: show_simulation(found, to, remedy=remedy, everything=everything))
            self._say_what_is_written(again)

    def _write_strategy(self, found: Simulation, path: str) -> str:
        """Write the strategy, and tell what simulates it again where its file does not say all."""
        from planner.output import write_text
        from planner.request.setting import DEFAULT_RUNTIME
        from planner.request.strategy_tables import format_strategy
        from planner.simulation.written import simulated_strategy

        file = simulated_strategy(found, self.subject)
        values, runtime = dict(self.values), found.runtime.name
        if runtime != DEFAULT_RUNTIME and values.get("servers") is None:
            values["runtime"] = values.get("runtime") or runtime
        own = found.subject.plan is not None and values.get("strategy") is None
        said = unsaid_by(file, path, "MODEL" if own else self.subject, values)
        if found.subject.plan is not None:
            command = said or f"planner simulate {path}"
            said = f"{command}, with the options that the plan was made with"
        write_text(path, (f"# {said}\n\n" if said else "") + format_strategy(file))
        return said

    def _say_what_is_written(self, again: str) -> None:
        strategy = f"strategy written to {self.strategy}"
        named = (
            (self.output, f"figures written to {self.output}"),
            (self.trace, f"trace written to {self.trace}, for ui.perfetto.dev"),
            (self.strategy, f"{strategy}, which is simulated by\n  {again}" if again else strategy),
        )
        lines = [text for path, text in named if path is not None]
        if lines:
            write("\n" + "\n".join(lines))


@click.command("simulate")
@click.argument("subject", metavar="MODEL", shell_complete=complete_model)
@input_options(COMMANDS["simulate"])
@click.option(
    "--trace",
    metavar="FILE.json",
    help="Write a trace for Perfetto.",
    shell_complete=complete(None, (".json",)),
)
@click.option(
    "--dump-strategy",
    metavar="FILE.toml",
    help="Write the strategy as a file to start from.",
    shell_complete=complete(None, (".toml",)),
)
@output_option("the figures as JSON")
@showing_options()
def simulate_command(
    subject: str,
    trace: str | None,
    dump_strategy: str | None,
    output: str | None,
    shown: Shown,
    **values: object,
) -> None:
    """Simulate a training step.

    Computation and communication of every pipeline stage run in queues beside each other, slow
    each other down and share links; memory is counted tensor by tensor.

    MODEL is a built-in network (see 'planner models') or a network file; or a plan or strategy
    file, which name it. What a file says of the step holds unless an option says otherwise.
    """
    from planner.request.request import make_request
    from planner.simulation.remedies import remedy
    from planner.simulation.run import require_run, simulate_request

    shown.check(output)
    request = make_request("simulate", {**values, "source": subject})
    if trace is not None:
        require_run(request.step_model, "--trace")
    # found out now, nobody waits for a simulation whose result cannot be written
    _check_paths(inputs_of(subject, values), trace, dump_strategy, output)
    with progress(f"simulating {subject}", quiet=shown.quiet):
        found = simulate_request(request)
        asks = not (shown.quiet or shown.as_json or output == STDOUT)
        advice = remedy(request, found) if asks else None
    outputs = SimulationOutputs(
        subject=subject,
        values=values,
        output=output,
        trace=trace,
        strategy=dump_strategy,
        shown=shown,
    )
    outputs.write(found, advice)


def _check_paths(
    inputs: Iterable[object], trace: str | None, strategy: str | None, output: str | None
) -> None:
    """Refuse outputs that nobody could use."""
    from planner.output import Output, check_outputs

    named = (("--trace", trace, ".json"), ("--dump-strategy", strategy, ".toml"))
    outputs = [
        Output(option=option, path=path, suffixes=(ending,))
        for option, path, ending in named
        if path is not None
    ]
    if output is not None:
        outputs.append(Output(option="-o", path=output, suffixes=(".json",), streams=True))
    check_outputs(outputs, inputs)
