"""A network placed on a machine by a plan, a strategy or degrees: what is simulated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph, Network
from costmodels.notes import Note
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.pieces import Pieces
from costmodels.strategy import Strategy
from costmodels.strategy.usual import hybrid, single_stage
from planner.errors import ConflictError
from planner.plan import Plan
from planner.request.parts import Degrees
from planner.request.plans import plan_distributions, plan_setting, strategy_setting
from planner.request.request import Request, StrategySource
from planner.request.setting import Setting, resolve, training_graph
from planner.request.sources import read_source
from planner.request.strategy_files import strategy_of
from planner.request.strategy_tables import StrategyFile
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNetwork:
    """A network placed on a machine by a complete strategy.

    Parameters
    ----------
    setting
        The network and the machine, at the batch of a step.
    graph
        The network at the batch of one micro-batch.
    strategy
        How it runs.
    name
        Where the strategy comes from.
    plan
        The plan, where it comes from one.
    notes
        On what was filled in, a sentence each.
    """

    setting: Setting
    graph: Graph
    strategy: Strategy
    name: str
    plan: Plan | None = None
    notes: tuple[Note, ...] = ()

    @property
    def distributions(self) -> Mapping[str, Distribution]:
        """How each layer is split over the devices of its stage."""
        return self.strategy.distributions


def given_strategy(
    strategy: StrategySource | None,
) -> Plan | Strategy | StrategyFile | Network | None:
    """What stands for a strategy: itself, or what its file holds; None for a name.

    Raises
    ------
    InputError
        When the file is missing or wrong.
    """
    if strategy is None or isinstance(strategy, Plan | Strategy):
        return strategy
    path = os.fspath(strategy)
    if path not in STRATEGIES and not path.endswith(".toml") and os.path.exists(path):
        return Plan.load(path)  # a pipe has no suffix
    return read_source(path, networks=False)


def named_distributions(
    setting: Setting, name: str, degree: int | None
) -> Mapping[str, Distribution]:
    """How a usual strategy splits every layer.

    Parameters
    ----------
    setting
        The network and the machine.
    name
        One of `STRATEGIES`.
    degree
        Ways of the dim that is not the sample in a hybrid; None for a host's devices. [ways]

    Raises
    ------
    InputError
        When there is no such strategy, or it cannot be used there.
    """
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    rows = strategy_distributions(setting.graph, name, shape, host, degree)
    if isinstance(rows, Infeasible):
        raise InputError(
            f"strategy {name} cannot be used for {setting.model.name} on {setting.gpus} GPUs: "
            f"{rows.reason}; choose fewer GPUs, another degree or another strategy"
        )
    return rows


def refuse_degree(request: Request) -> None:
    """Refuse the degree of a usual strategy where something else says how layers are split.

    Raises
    ------
    InputError
        When it is given.
    """
    if request.degree is not None:
        raise ConflictError(
            "--degree is of the strategies data+filter and data+spatial, but a plan, a strategy or "
            "degrees of parallelism say how layers are split; leave it out"
        )


def place_network(request: Request) -> PlacedNetwork:
    """Place a network on a machine.

    Raises
    ------
    InputError
        When an input cannot be used, or files and options contradict each other.
    """
    source, degrees = request.source, request.degrees or Degrees()
    asked_for = request.strategy is not None or degrees.asked_for
    found: Plan | StrategyFile | Network | None
    if isinstance(source, Plan | Network):
        found, path = source, ""
    else:
        # a network without a number of GPUs is refused as it is, whatever its file says
        wanted = request.gpus is not None or request.strategy is not None
        found = read_source(source, request.input_size, networks=wanted)
        path = os.fspath(source)
    if isinstance(found, Plan | StrategyFile):
        what = "a plan" if isinstance(found, Plan) else "a strategy file"
        if asked_for:
            raise InputError(
                f"{what} says how the network is split; leave strategy and degrees out"
            )
        refuse_degree(request)
        if isinstance(found, Plan):
            return _on_plan(found, *plan_setting(found, request))
        if found.model is None:
            raise InputError(
                f"{path} does not say the network; add it to the file, or give the network"
            )
        return _on_file(found, path, replace(request, source=found.model))
    if request.strategy is not None and degrees.asked_for:
        raise InputError(
            "give either a strategy or degrees of data, tensor and pipeline parallelism, not both"
        )
    if found is not None:
        request = replace(request, source=found)
    return _place_by_strategy(request, degrees)


def _place_by_strategy(request: Request, degrees: Degrees) -> PlacedNetwork:
    """Place a network by the strategy or degrees that are asked for with it."""
    strategy = request.strategy
    found = given_strategy(strategy)
    if found is not None or degrees.asked_for:
        refuse_degree(request)
    if isinstance(found, Plan):
        return _on_plan(found, *strategy_setting(found, request))
    if isinstance(found, StrategyFile):
        return _on_file(found, str(strategy), request)
    setting = resolve(request)
    if isinstance(found, Strategy):
        return PlacedNetwork(
            setting=setting,
            graph=micro_graph(setting, found.schedule.micro_batches),
            strategy=found,
            name="given strategy",
        )
    if degrees.asked_for:
        return _by_degrees(setting, degrees)
    return _by_name(setting, "data" if strategy is None else str(strategy), request.degree)


def micro_graph(setting: Setting, micro_batches: int) -> Graph:
    """The network at the batch of one micro-batch."""
    if micro_batches < 1 or setting.batch % micro_batches:
        raise InputError(
            f"the global batch must be a multiple of the micro-batches but {setting.batch} is none "
            f"of {micro_batches}; change one of them"
        )
    training = setting.machine.training
    return training_graph(setting.model, setting.batch // micro_batches, training)


def with_recomputation(strategy: Strategy, graph: Graph) -> Strategy:
    """The strategy with recomputation of the activations of every block of several layers."""
    stages = []
    for stage in strategy.stages:
        blocks: dict[str, list[str]] = {}
        for name in stage.layers:
            blocks.setdefault(unit_of(name), []).append(name)
        segments = tuple(tuple(names) for names in blocks.values() if len(names) > 1)
        stages.append(replace(stage, recompute=segments))
    return replace(strategy, stages=tuple(stages))


def _on_plan(plan: Plan, setting: Setting, notes: tuple[Note, ...]) -> PlacedNetwork:
    distributions = plan_distributions(plan, setting)
    return PlacedNetwork(
        setting=setting,
        graph=setting.graph,
        strategy=single_stage(distributions, setting.machine.topology.shape),
        name="plan",
        plan=plan,
        notes=notes,
    )


def _on_file(file: StrategyFile, path: str, request: Request) -> PlacedNetwork:
    """Place a network by a strategy file; what is asked for goes before what the file says."""
    gpus = request.gpus or file.gpus
    if gpus is None:
        raise InputError(
            f"{path} does not say the number of GPUs; add it to the file, or give --gpus"
        )
    says = {
        "cluster": file.cluster,
        "global_batch_size": file.global_batch_size,
        "precision": file.precision,
    }
    setting = resolve(replace(request, gpus=gpus).completed(**says))
    graph = micro_graph(setting, file.description.micro_batches)
    strategy, notes = strategy_of(file, path, graph, setting.cluster, gpus)
    return PlacedNetwork(
        setting=setting,
        graph=graph,
        strategy=strategy,
        name=os.path.basename(path),
        notes=notes,
    )


def _by_degrees(setting: Setting, degrees: Degrees) -> PlacedNetwork:
    rest = max(degrees.tp * degrees.pp, 1)
    dp = degrees.dp if degrees.dp is not None else max(setting.gpus // rest, 1)
    graph = micro_graph(setting, degrees.micro_batches)

    def cut(weights: Mapping[str, float] | None) -> Strategy:
        return hybrid(
            graph,
            setting.machine.topology.shape,
            dp=dp,
            tp=degrees.tp,
            pp=degrees.pp,
            micro_batches=degrees.micro_batches,
            schedule_kind=degrees.schedule,
            chunks=degrees.chunks,
            max_in_flight=degrees.max_in_flight,
            weights=weights,
        )

    strategy = cut(None)
    if degrees.pp * degrees.chunks > 1:
        # all stages are alike, so that what a layer takes does not depend on where it lies
        strategy = cut(_layer_seconds(setting, graph, strategy))
    if degrees.recompute:
        strategy = with_recomputation(strategy, graph)
    return PlacedNetwork(
        setting=setting,
        graph=graph,
        strategy=strategy,
        name=f"dp {dp} x tp {degrees.tp} x pp {degrees.pp}",
    )


def _layer_seconds(setting: Setting, graph: Graph, strategy: Strategy) -> dict[str, float]:
    """Computation of every layer on one micro-batch, to balance stages by. [s]"""
    machine = setting.machine
    network = Topology.of(setting.cluster, strategy.stages[0].shape)
    pieces = Pieces(graph, replace(machine, topology=network))
    result = {}
    for name, distribution in strategy.distributions.items():
        piece = pieces.of(name, distribution)
        result[name] = piece.forward + piece.backward
    return result


def _by_name(setting: Setting, name: str, degree: int | None) -> PlacedNetwork:
    rows = named_distributions(setting, name, degree)
    return PlacedNetwork(
        setting=setting,
        graph=setting.graph,
        strategy=single_stage(rows, setting.machine.topology.shape),
        name=name,
    )
