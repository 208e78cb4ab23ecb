"""Steps that somebody measured, predicted: the one module here that calls into the planner.

A run is described once (`MeasuredRun`); it is predicted by the timeline that the search uses, or by
a step model of the simulation. A calibration is one factor on all kernels of a model on a machine.
It comes from runs on one device (or from the column of a table that stands for it) and
from nothing else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from benchmarks.accuracy.calibrated import calibrated_machine
from costmodels.cluster import Cluster
from costmodels.distribution import Distribution
from costmodels.graph import Graph, Network
from costmodels.simulation import Runtime
from costmodels.strategy.usual import single_stage
from planner.models import list_models, load_network
from planner.planning.space.costing import Costed, cost
from planner.planning.space.formulate import formulate
from planner.request.by_degrees import micro_graph
from planner.request.inputs.simulating import step_models
from planner.request.parts import Degrees, Loading
from planner.request.placement import PlacedNetwork, place_network
from planner.request.request import Request
from planner.request.setting import Setting, resolve
from planner.request.usual_strategies import Infeasible, strategy_distributions
from planner.simulation.result import Simulation
from planner.simulation.run import (
    DEVICE_VARIATION,
    OVERLAP_FACTOR,
    simulate_placed,
)

# Given the shape of the machine and a layer, ways of its dims at each level.
Rule = Callable[[Graph, tuple[int, ...]], Mapping[str, Distribution]]
TIMELINE = "timeline"
# Of frameworks that no runtime describes: what NeuSight's operators on V100 take at least. [s]
LAUNCH_TIME = 25e-6
# All ways to predict a step: those of the simulation, and the timeline that the search uses.
ALL_STEP_MODELS = (*step_models(), TIMELINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A training step that somebody measured.

    Parameters
    ----------
    model
        A built-in network, or a network of its own.
    cluster
        A built-in cluster, or a cluster of its own.
    gpus
        Number of GPUs. [items]
    batch
        Global batch. [samples]
    strategy
        A name in `planner.request.usual_strategies.STRATEGIES`.
    degree
        Ways of the dim that is not the sample in a hybrid. [ways]
    rule
        How layers are split, where none of the named strategies says it.
    pipeline
        Schedule and micro-batches of a pipeline with one GPU a stage, instead of a strategy.
    options
        Further fields of `planner.Request`.
    winograd, runtime
        Whether the framework's library may use Winograd's algorithm, None where its runtime says
        so; what runs the step.
    """

    model: str | Network
    cluster: str | Cluster
    gpus: int
    batch: int
    strategy: str = "data"
    degree: int | None = None
    rule: Rule | None = None
    pipeline: tuple[str, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    winograd: bool | None = True
    runtime: Runtime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is expected of a run.

    Parameters
    ----------
    total
        The step. [s]
    compute
        Computation of one device, updates included. [s]
    update
        Weight updates. [s]
    communication
        What the step spends on communication that is not hidden. [s]
    memory
        Peak memory of a device. [B]
    roofline
        Part of the computation that was neither measured nor fitted.
    """

    total: float
    compute: float
    update: float
    communication: float
    memory: float
    roofline: float


# A run, predicted with its computation multiplied by a factor.
Predict = Callable[[MeasuredRun, float], Prediction]


@lru_cache(maxsize=64)
def built_in_network(name: str, input_size: int | None = None) -> Network:
    """A built-in network, built once."""
    return load_network(name, input_size)


@lru_cache(maxsize=1)
def built_in_names() -> tuple[str, ...]:
    """Names of the built-in networks."""
    return tuple(list_models())


def _setting_of(run: MeasuredRun) -> Setting:
    return resolve(_request_of(run))


def _request_of(run: MeasuredRun, degrees: Degrees | None = None) -> Request:
    options: dict[str, Any] = {"runtime": run.runtime, **run.options}
    if options["runtime"] is None:
        options.setdefault("launch_time", LAUNCH_TIME)
    return Request(
        source=built_in_network(run.model) if isinstance(run.model, str) else run.model,
        gpus=run.gpus,
        cluster=run.cluster,
        global_batch_size=run.batch,
        winograd=run.winograd,
        degrees=degrees,
        **options,
    )


def _split_of(run: MeasuredRun, setting: Setting) -> Mapping[str, Distribution]:
    """How each layer of a run is split."""
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    if run.rule is not None:
        return run.rule(setting.graph, shape)
    found = strategy_distributions(setting.graph, run.strategy, shape, host, run.degree)
    if isinstance(found, Infeasible):
        raise ValueError(f"{run.model} on {run.gpus} GPUs by {run.strategy}: {found.reason}")
    return found


def named_split(
    graph: Graph, strategy: str, shape: tuple[int, ...], degree: int | None
) -> Mapping[str, Distribution]:
    """Distributions of a strategy by name within the innermost level.

    Raises
    ------
    ValueError
        When the network cannot be split so.
    """
    found = strategy_distributions(graph, strategy, shape, 0, degree)
    if isinstance(found, Infeasible):
        raise ValueError(found.reason)
    return found


def _costed(run: MeasuredRun, kernels: float, launches: float = 1.0) -> Costed:
    setting = _setting_of(run)
    machine = calibrated_machine(setting.machine, kernels, launches)
    given = _split_of(run, setting)
    formulation = formulate(
        setting.graph,
        setting.cluster,
        machine,
        strategies=[given],
        only_strategies=True,
    )
    return cost(formulation, formulation.choices(given))


def timeline_step(run: MeasuredRun, kernels: float = 1.0, launches: float = 1.0) -> Prediction:
    """Predict a run by the timeline, with kernels and launches multiplied by factors."""
    costed = _costed(run, kernels, launches)
    return Prediction(
        total=costed.step.total,
        compute=costed.compute,
        update=costed.step.update,
        communication=costed.step.total - costed.compute,
        memory=costed.memory.total,
        roofline=costed.sources.get("roofline", 0.0) / sum(costed.sources.values()),
    )


def layer_seconds(run: MeasuredRun, name: str) -> float:
    """Forward and backward of one layer, halos and reductions included. [s]"""
    times = _costed(run, 1.0).layers[name]
    return times.forward + times.backward + times.halo + times.reduction


def calibrate(
    pairs: Sequence[tuple[MeasuredRun, float]], predict: Predict = timeline_step
) -> float:
    """The factor on computation with which the mean prediction is the mean measurement.

    Parameters
    ----------
    pairs
        Runs that may calibrate, each with its measured time. [s]
    predict
        Predicts a run with its computation multiplied by a factor.
    """
    wanted = statistics.fmean(seconds for _, seconds in pairs)
    factor = 1.0
    for _ in range(8):
        found = [predict(run, factor) for run, _ in pairs]
        missing = wanted - statistics.fmean(p.total for p in found)
        if abs(missing) <= 1e-4 * wanted:
            break
        # communication hides behind computation at most in part: the step follows computation
        factor += missing / statistics.fmean(p.compute / factor for p in found)
    return factor


def simulation_input(run: MeasuredRun) -> PlacedNetwork:
    """A run as the simulation takes it.

    Raises
    ------
    InputError, ValueError
        When it cannot be run.
    """
    if run.pipeline is not None:
        schedule, micro_batches = run.pipeline
        degrees = Degrees(pp=run.gpus, micro_batches=micro_batches, schedule=schedule)
        return place_network(_request_of(run, degrees))
    setting = _setting_of(run)
    return PlacedNetwork(
        setting=setting,
        graph=micro_graph(setting, 1),
        strategy=single_stage(_split_of(run, setting), setting.machine.topology.shape),
        name=run.strategy,
    )


def with_factor(subject: PlacedNetwork, kernels: float, launches: float = 1.0) -> PlacedNetwork:
    """The subject with its kernels and the launches of its host multiplied."""
    machine = calibrated_machine(subject.setting.machine, kernels, launches)
    return replace(subject, setting=replace(subject.setting, machine=machine))


def simulated_step(
    subject: PlacedNetwork,
    runtime: Runtime,
    *,
    model: str = "simulate",
    overlap_factor: float = 0.0,
    loader: Loading | None = None,
    variation: float | None = None,
) -> Simulation:
    """Simulate a step of what `simulation_input` gives.

    Parameters
    ----------
    subject, runtime
        What runs, and the framework's runtime.
    model
        One of the step models of the simulation.
    overlap_factor
        How much longer computation and gradient communication take while both run.
    loader
        How samples are loaded; None where they cost nothing.
    variation
        Standard deviation between devices; None for the published one.
    """
    return simulate_placed(subject, runtime, model, overlap_factor, loader, variation)


__all__ = [
    "ALL_STEP_MODELS",
    "DEVICE_VARIATION",
    "OVERLAP_FACTOR",
    "TIMELINE",
    "Degrees",
    "Loading",
    "MeasuredRun",
    "PlacedNetwork",
    "Prediction",
    "Rule",
    "Simulation",
    "built_in_names",
    "built_in_network",
    "calibrate",
    "layer_seconds",
    "named_split",
    "simulated_step",
    "simulation_input",
    "timeline_step",
    "with_factor",
]
