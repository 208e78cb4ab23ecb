"""Simulate a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.input_pipeline import expected_slowest
from costmodels.notes import Note
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Queue,
    Runtime,
    SimulatedStep,
    run_job,
)
from planner.errors import ConflictError
from planner.plan import Plan
from planner.request.inputs import simulating as inputs
from planner.request.named_degrees import with_named_degrees
from planner.request.parts import Loading
from planner.request.placement import PlacedNetwork, place_network
from planner.request.plans import made_under
from planner.request.request import Request
from planner.request.setting import DEFAULT_RUNTIME, find_runtime
from planner.simulation.compiled import compiler_of
from planner.simulation.garbage import uncollected
from planner.simulation.loading import loading_notes, loading_time
from planner.simulation.notes import estimate_notes, room_notes
from planner.simulation.result import Simulation

if TYPE_CHECKING:
    from costmodels.closed_form import ClosedForm

# Gamma of Proteus: how much longer computation and gradient communication take while both run.
# Measured steps with and without overlap determine it on PCIe only: 0.0 on 4 RTX 2080 Ti, 0.05 on 8
# and 16 (HKBU ddl-benchmarks); over NVLink about 1 % of a step overlaps, and anything from 0 to 1
# agrees with the rows there are. One value for all, an assumption.
OVERLAP_FACTOR = 0.1
# Standard deviation between devices of one kind, as part of the mean: Sinha et al. 2022 ("Not All
# GPUs Are Created Equal", SC22) find an average variation of 8 % on five machines; that it is the
# spread between the whiskers of box plots, 5.4 standard deviations of a normal distribution, is an
# assumption. It makes measured steps on several GPUs (benchmarks.accuracy) 7.6 % off on
# average instead of 8.3 %, and 5.4 % too fast instead of 7.0 %.
DEVICE_VARIATION = 0.015
# The runtime under which plans are simulated, unless they say another one.
PLAN_RUNTIME = DEFAULT_RUNTIME
ASSUMED = Note.of("overlap-assumed", overlap=OVERLAP_FACTOR, variation=DEVICE_VARIATION)
# Simulations by name: overlap factor counted, links shared, and how links are taken.
_SIMULATIONS: Mapping[str, tuple[bool, bool, str]] = {
    "simulate": (True, True, "shared"),
    "plain": (False, False, "alone"),
    "flexflow-sim": (False, False, "nominal"),
}
assert tuple(_SIMULATIONS) == inputs.SIMULATIONS, "requests name the same simulations"


def simulate_request(request: Request) -> Simulation:
    """Simulate the training step of a request; what `planner.simulate` does.

    Raises
    ------
    InputError
        When an input cannot be used.
    InfeasibleError
        When the limit on memory is below what the framework reserves.
    """
    with uncollected():
        return _simulate(with_named_degrees(request))


def _simulate(request: Request) -> Simulation:
    """Simulate the training step of a request whose strategy is a name, degrees or a file."""
    _check_heeded(request)
    placed = place_network(request)
    plan = placed.plan
    if plan is not None and request.runtime is None and request.servers is None:
        runtime = made_under(plan)
    else:
        runtime = find_runtime(request)
    if request.congestion != 1.0:
        placed = _congested(placed, request.congestion)
    if request.bucket_bytes is not None:
        runtime = _bucketed(runtime, placed.setting.machine.training.bucket_bytes)
    elif plan is not None:
        runtime = plan_runtime(runtime, placed.setting.machine.training.bucket_bytes)
    if placed.setting.machine.training.memory_model == "paradl":
        placed = replace(placed, notes=(*placed.notes, Note.of("memory-of-tensors")))
    gamma, variation = request.overlap_factor, request.variation
    if request.step_model == "simulate" and (gamma is None or variation is None):
        placed = replace(placed, notes=(*placed.notes, ASSUMED))
    found = simulate_placed(
        placed,
        runtime,
        request.step_model,
        OVERLAP_FACTOR if gamma is None else gamma,
        request.loading,
        variation,
    )
    placed.setting.check_reserve()
    return found


def require_run(model: str, option: str) -> None:
    """Refuse an option that needs every operation to be run by a step model that does not.

    Raises
    ------
    InputError
        When it is a closed form.
    """
    if model not in inputs.SIMULATIONS:
        raise _unheeded(model, option)


def _check_heeded(request: Request) -> None:
    """Refuse what a step model would not heed."""
    model = request.step_model
    for one in (inputs.RUNTIME, inputs.SERVERS):
        if getattr(request, one.name) is not None:
            require_run(model, one.option)
    if request.overlap_factor is not None and model != inputs.STEP_MODEL.default:
        raise _unheeded(model, inputs.OVERLAP_FACTOR.option)


def _unheeded(model: str, option: str) -> ConflictError:
    return ConflictError(
        f"the step model {model} knows no {option}; leave it out, or use --model simulate"
    )


def _closed_form(placed: PlacedNetwork, model: str) -> ClosedForm:
    """The step by a closed form, where there is one for the strategy."""
    from costmodels.closed_form import closed_form_step
    from costmodels.closed_form.paradl import pipeline_time

    strategy, machine = placed.strategy, placed.setting.machine
    count, parts = len(strategy.stages), strategy.schedule.micro_batches
    if count == 1 and parts == 1:
        return closed_form_step(model, placed.graph, placed.distributions, machine)
    lone = all(stage.num_devices == 1 for stage in strategy.stages)
    if model == "paradl" and lone and count == strategy.num_devices:
        stages = {name: i for i, stage in enumerate(strategy.stages) for name in stage.layers}
        return pipeline_time(placed.setting.graph, stages, parts, machine)
    raise InputError(
        f"the step model {model} has no form for {count} pipeline stages and {parts} "
        "micro-batches; use simulate, or paradl with one GPU a stage"
    )


def computing_time(simulated: SimulatedStep) -> float:
    """Time that those devices compute which compute the longest. [s]"""
    return simulated.slowest.busy[Queue.COMPUTE.name.lower()]


def waiting_time(computing: float, devices: int, variation: float = DEVICE_VARIATION) -> float:
    """Time in which all other devices wait for the slowest one of a step. [s]

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


def _congested(placed: PlacedNetwork, factor: float) -> PlacedNetwork:
    """The same on a machine whose links between hosts are also used by other jobs."""
    setting = placed.setting
    cluster = setting.cluster.congested(factor)
    network = Topology.of(cluster, setting.machine.topology.shape)
    machine = replace(setting.machine, topology=network)
    note = Note.of("links-congested", factor=factor)
    return replace(
        placed,
        setting=replace(setting, cluster=cluster, machine=machine),
        notes=(*placed.notes, note),
    )


def _bucketed(runtime: Runtime, num_bytes: float) -> Runtime:
    """A runtime with buckets of the size that was asked for."""
    if runtime.fusion is not None:
        return replace(runtime, fusion=num_bytes)
    if runtime.bucket is None:
        raise ConflictError(
            f"the runtime {runtime.name} reduces the gradients of one unit of layers at a time; "
            "leave --bucket-size out"
        )
    return replace(runtime, bucket=num_bytes)


def plan_runtime(runtime: Runtime, bucket_bytes: float) -> Runtime:
    """A runtime with the bucket size that a plan was tuned to, if its buckets can be tuned."""
    return replace(runtime, bucket=bucket_bytes) if runtime.tunable else runtime


def gradient_buckets(plan: Plan) -> float | None:
    """Size of the buckets in which gradients travel, None where each unit of layers has one. [B]"""
    runtime = plan_runtime(made_under(plan), plan.training.bucket_bytes)
    return runtime.bucket or runtime.fusion


def simulate_placed(
    placed: PlacedNetwork,
    runtime: Runtime,
    model: str,
    overlap_factor: float,
    loading: Loading | None,
    variation: float | None = None,
) -> Simulation:
    """Simulate a network that has a machine and a strategy.

    Parameters
    ----------
    placed
        The network, the machine and the strategy.
    runtime
        The framework's runtime.
    model
        One of `planner.request.inputs.simulating.step_models`.
    overlap_factor
        How much longer computation and gradient communication take while both run.
    loading
        How samples are loaded; None where that costs nothing.
    variation
        Standard deviation between devices, as part of the mean; None for the model's default.
    """
    setting = placed.setting
    loads = loading is not None and loading.loader != inputs.LOADER.default
    time = loading_time(placed, loading) if loading is not None and loads else None
    notes = list(placed.notes)
    simulated: SimulatedStep | None = None
    form: ClosedForm | None = None
    if model not in inputs.SIMULATIONS:
        form = _closed_form(placed, model)
        computed, busy = form.total, form.forward + form.backward + form.update
        notes += estimate_notes(form.sources, setting.machine)
    else:
        decoding = time.device_seconds if time else 0.0
        compiler = compiler_of(placed, runtime, decoding, _SIMULATIONS[model][2])
        simulated, run = _run_step(compiler, model, overlap_factor)
        count = placed.strategy.schedule.micro_batches
        if run < count:
            notes.append(Note.of("micro-batches-alike", run=run, others=count - run))
        notes += room_notes(simulated)
        computed, busy = simulated.step_time, computing_time(simulated)
        notes += estimate_notes(compiler.sources, setting.machine)
        if not runtime.synchronous:
            from planner.simulation.asynchronous import asynchronous_step

            computed, note = asynchronous_step(compiler, runtime, setting.batch)
            notes.append(note)
    waiting = 0.0
    if runtime.synchronous:
        usual = DEVICE_VARIATION if model == "simulate" else 0.0
        spread = usual if variation is None else variation
        waiting = waiting_time(busy, placed.strategy.num_waiting, spread)
    outside = runtime.outside_layers if simulated is not None else 0.0
    computed += waiting + outside
    if time is not None:
        assert loading is not None, "only what is asked for is loaded"
        notes += [time.advice(computed), *loading_notes(placed, loading)]
    return Simulation(
        subject=placed,
        model=model,
        runtime=runtime,
        step_time=max(computed, time.seconds) if time else computed,
        computed=computed,
        waiting=waiting,
        outside=outside,
        simulated=simulated,
        closed_form=form,
        input=time,
        remarks=tuple(notes),
    )


def _run_step(compiler: Compiler, model: str, overlap_factor: float) -> tuple[SimulatedStep, int]:
    """Run a step by a step model, and tell how many micro-batches were run."""
    counted, sharing, _ = _SIMULATIONS[model]
    return run_job(compiler, Behaviour(overlap_factor=overlap_factor * counted, sharing=sharing))
