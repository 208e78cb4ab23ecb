"""Simulate a step: `planner.simulate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from costmodels.closed_form import CLOSED_FORMS, ClosedForm
from costmodels.closed_form import closed_form_step as closed_form_time
from costmodels.closed_form.paradl import pipeline_time
from costmodels.cluster import load_cluster
from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.input_pipeline import expected_slowest
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Job,
    Queue,
    Runtime,
    SimulatedStep,
    load_runtime,
    run_graph,
)
from planner.models import load_network
from planner.planning.assemble import estimate_notes
from planner.request.subjects import Degrees, SimulationInput, Source, find_subject
from planner.simulation.asynchronous import asynchronous_step
from planner.simulation.loading import Input, loading_notes, loading_time
from planner.simulation.result import Simulation

# Gamma of Proteus: how much longer computation and gradient communication take while both run.
# Measured steps with and without overlap tell it on PCIe only: 0.0 on 4 RTX 2080 Ti, 0.05 on 8 and
# 16 (HKBU ddl-benchmarks); over NVLink about 1 % of a step overlaps, and anything from 0 to 1
# agrees with the rows there are. One value for all, an assumption.
OVERLAP_FACTOR = 0.1
# Standard deviation between devices of one kind, as part of the mean: Sinha et al. 2022 ("Not All
# GPUs Are Created Equal", SC22) find an average variation of 8 % on five machines; that it is the
# spread between the whiskers of box plots, 5.4 standard deviations of a normal distribution, is an
# assumption. It makes measured steps on several GPUs (benchmarks.accuracy.training) 7.6 % off on
# average instead of 8.3 %, and 5.4 % too fast instead of 7.0 %.
DEVICE_VARIATION = 0.015
ASSUMED = (
    f"assumed unless given: while gradients travel, computation takes {OVERLAP_FACTOR:.0%} longer "
    f"(--overlap-factor), and devices vary by {DEVICE_VARIATION:.1%} (--variation)"
)
# Simulations by name: overlap factor counted, links shared, and how links are taken.
_SIMULATIONS: Mapping[str, tuple[bool, bool, str]] = {
    "simulate": (True, True, "shared"),
    "plain": (False, False, "alone"),
    "flexflow-sim": (False, False, "nominal"),
}
STEP_MODELS = (*_SIMULATIONS, *CLOSED_FORMS)


def simulate(
    source: Source,
    *,
    gpus: int | None = None,
    strategy: Any = None,
    degree: int | None = None,
    degrees: Degrees | None = None,
    runtime: str | Runtime = "ddp",
    model: str = "simulate",
    overlap_factor: float | None = None,
    input: Input | None = None,
    variation: float | None = None,
    congestion: float = 1.0,
    **options: Any,
) -> Simulation:
    """Simulate a training step.

    Parameters
    ----------
    source, gpus, strategy, degree, degrees
        What to simulate, as of `planner.request.subjects.find_subject`.
    runtime
        A name as of `costmodels.simulation.runtimes`, or a runtime.
    model
        How: "simulate"; "plain" (no overlap factor, links not shared); "flexflow-sim" (fixed costs
        by nominal bandwidth); or a closed form, "paradl" or "paleo".
    overlap_factor
        How much longer computation and gradient communication take while both run.
    input
        How samples are loaded; by default they cost nothing.
    variation
        Standard deviation of the time that devices compute in a step, as part of its mean: where
        they take steps together, all wait for the slowest. By default `DEVICE_VARIATION` with the
        model "simulate", 0 with the others.
    congestion
        How many times less the links between hosts carry, because of other jobs.
    options
        As of `planner.optimize`: cluster, global_batch_size, precision, memory, ...

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    if model not in STEP_MODELS:
        raise InputError(
            f"the step model must be one of {', '.join(STEP_MODELS)} but is '{model}'; choose one"
        )
    if overlap_factor is not None and not 0.0 <= overlap_factor <= 10.0:
        raise InputError(
            f"the overlap factor must be from 0 to 10 but is {overlap_factor:g}; 0.1 means that "
            "computation takes 10 % longer while gradients travel"
        )
    if variation is not None and not 0.0 <= variation <= 1.0:
        raise InputError(
            f"the variation between devices must be from 0 to 1 but is {variation:g}; 0.015 means "
            "a standard deviation of 1.5 % of the time that they compute"
        )
    subject = find_subject(
        source, gpus=gpus, strategy=strategy, degree=degree, degrees=degrees, **options
    )
    if congestion != 1.0:
        subject = _congested(subject, congestion)
    chosen = load_runtime(runtime) if isinstance(runtime, str) else runtime
    if subject.plan is not None:
        chosen = plan_runtime(chosen, subject.plan.training.bucket_bytes)
    if model == "simulate" and (overlap_factor is None or variation is None):
        subject = replace(subject, notes=(*subject.notes, ASSUMED))
    gamma = OVERLAP_FACTOR if overlap_factor is None else overlap_factor
    return simulate_subject(subject, chosen, model, gamma, input, variation)


def _closed_form(subject: SimulationInput, model: str) -> ClosedForm:
    """A closed form of the strategy, where there is one."""
    strategy, machine = subject.strategy, subject.setting.machine
    count, parts = len(strategy.stages), strategy.schedule.micro_batches
    if count == 1 and parts == 1:
        return closed_form_time(model, subject.graph, subject.distributions, machine)
    lone = all(stage.num_devices == 1 for stage in strategy.stages)
    if model == "paradl" and lone and count == strategy.num_devices:
        stages = {name: i for i, stage in enumerate(strategy.stages) for name in stage.layers}
        return pipeline_time(subject.setting.graph, stages, parts, machine)
    raise InputError(
        f"the step model {model} has no form for {count} pipeline stages and {parts} "
        "micro-batches; use simulate, or paradl with one GPU a stage"
    )


def computing_time(simulated: SimulatedStep) -> float:
    """Time that the devices compute that compute the longest. [s]"""
    return simulated.slowest.busy[Queue.COMPUTE.name.lower()]


def waiting_time(computing: float, devices: int, variation: float = DEVICE_VARIATION) -> float:
    """What all others wait for the slowest device of a step. [s]

    Parameters
    ----------
    computing
        Time that a device computes. [s]
    devices
        How many take the step together. [items]
    variation
        Standard deviation of that time, as part of its mean.
    """
    return expected_slowest(computing, variation, devices) - computing


def _congested(subject: SimulationInput, factor: float) -> SimulationInput:
    """The same, on a machine whose links between hosts other jobs use, too."""
    setting = subject.setting
    cluster = setting.cluster.congested(factor)
    network = Topology.of(cluster, setting.machine.topology.shape)
    machine = replace(setting.machine, topology=network)
    note = f"links between hosts carry {factor:g} times less, because of other jobs"
    return replace(
        subject,
        setting=replace(setting, cluster=cluster, machine=machine),
        notes=(*subject.notes, note),
    )


def plan_runtime(runtime: Runtime, bucket_bytes: float) -> Runtime:
    """A runtime with the buckets that a plan was tuned to, if it has such buckets."""
    return replace(runtime, bucket=bucket_bytes) if runtime.tunable else runtime


def simulate_subject(
    subject: SimulationInput,
    runtime: Runtime,
    model: str,
    overlap_factor: float,
    input: Input | None,
    variation: float | None = None,
) -> Simulation:
    """Simulate what is known already; parameters as of `simulate`."""
    setting = subject.setting
    loading = None if input is None or input.loader == "synthetic" else loading_time(subject, input)
    notes = list(setting.defaults) + list(subject.notes)
    simulated: SimulatedStep | None = None
    form: ClosedForm | None = None
    if model in CLOSED_FORMS:
        form = _closed_form(subject, model)
        computed, busy = form.total, form.forward + form.backward + form.update
    else:
        counted, sharing, links = _SIMULATIONS[model]
        job = Job(
            graph=subject.graph,
            strategy=subject.strategy,
            cluster=setting.cluster,
            shape=setting.machine.topology.shape,
            compute=setting.machine.compute,
            training=setting.machine.training,
            runtime=runtime,
            decoding=loading.device_seconds if loading else 0.0,
            links=links,
        )
        compiler = Compiler(job)
        # weights pulled while the next step begins make steps reach into each other
        graph = compiler.compile(3 if runtime.gradient == "push_pull" else 1)
        behaviour = Behaviour(overlap_factor=overlap_factor * counted, sharing=sharing)
        simulated = run_graph(graph, behaviour)
        computed = simulated.step_time
        busy = computing_time(simulated)
        notes += estimate_notes(compiler.sources, setting.machine.training)
        if not runtime.synchronous:
            computed, note = asynchronous_step(compiler, runtime, setting.batch)
            notes.append(note)
    waiting = 0.0
    if runtime.synchronous:
        usual = DEVICE_VARIATION if model == "simulate" else 0.0
        spread = usual if variation is None else variation
        waiting = waiting_time(busy, subject.strategy.num_devices, spread)
    computed += waiting
    step = max(computed, loading.seconds) if loading else computed
    if loading is not None:
        assert input is not None, "there is no loading without it"
        notes += loading_notes(loading, computed, subject, input)
    return Simulation(
        subject=subject,
        model=model,
        runtime=runtime,
        step_time=step,
        computed=computed,
        waiting=waiting,
        simulated=simulated,
        closed_form=form,
        input=loading,
        notes=tuple(notes),
    )


def save_trace(simulation: Simulation, path: str | os.PathLike[str]) -> None:
    """Write a simulated step as a trace that Perfetto and Chrome open.

    Raises
    ------
    InputError
        When a closed form was evaluated, which has no timeline.
    """
    from planner.report.trace import trace_text

    if simulation.simulated is None:
        raise InputError(
            f"the step model {simulation.model} has no timeline to trace; use --model simulate"
        )
    from planner.output import write_text

    write_text(path, trace_text(simulation))


def save_strategy(simulation: Simulation, path: str | os.PathLike[str]) -> None:
    """Write the strategy that was simulated as a file that can be changed and simulated again.

    A network or cluster that is not found again by its name is left out of the file: whoever
    simulates it must give them.
    """
    from planner.output import write_text
    from planner.request.strategy_files import format_strategy, parse_strategy, strategy_text

    subject = simulation.subject
    setting = subject.setting
    text = strategy_text(
        subject.strategy,
        subject.graph,
        setting.cluster,
        setting.gpus,
        model=setting.model.name,
        global_batch_size=setting.batch,
        precision=setting.machine.training.precision,
    )
    file = parse_strategy(text)
    if not _found_again(lambda: load_network(setting.model.name, None) == setting.model):
        file = replace(file, model=None)
    if not _found_again(lambda: load_cluster(setting.cluster.name) == setting.cluster):
        file = replace(file, cluster=None)
    write_text(path, format_strategy(file))


def _found_again(alike: Callable[[], bool]) -> bool:
    try:
        return alike()
    except InputError:
        return False


__all__ = [
    "STEP_MODELS",
    "Degrees",
    "Input",
    "Simulation",
    "save_strategy",
    "save_trace",
    "simulate",
]
