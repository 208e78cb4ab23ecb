"""A network placed on a machine by a plan, a strategy or degrees: what is simulated."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph, Network
from costmodels.notes import Note
from costmodels.strategy import Strategy
from costmodels.strategy.usual import single_stage
from planner.errors import ConflictError
from planner.plan import Plan
from planner.request.by_degrees import (
    graph_of,
    micro_graph,
    samples_needed,
    strategy_by_degrees,
    with_default_micro_batches,
)
from planner.request.parts import Degrees
from planner.request.plans import plan_distributions, plan_setting, strategy_setting
from planner.request.request import Request, StrategySource
from planner.request.setting import Setting, find_runtime, resolve
from planner.request.sources import read_source
from planner.request.strategy_files import strategy_of
from planner.request.strategy_tables import StrategyFile
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions


class PlacedNetwork(Struct, frozen=True, kw_only=True):
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
        return _on_file(found, path, dataclasses.replace(request, source=found.model))
    if request.strategy is not None and degrees.asked_for:
        raise InputError(
            "give either a strategy or degrees of data, tensor and pipeline parallelism, not both"
        )
    if found is not None:
        request = dataclasses.replace(request, source=found)
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
    needed = samples_needed(degrees, request.num_gpus) if degrees.asked_for else 1
    setting = resolve(request, needed)
    if isinstance(found, Strategy):
        return PlacedNetwork(
            setting=setting,
            graph=micro_graph(setting, found.schedule.micro_batches),
            strategy=found,
            name="given strategy",
        )
    if degrees.asked_for:
        setting, degrees = with_default_micro_batches(setting, degrees)
        strategy, graph, named = strategy_by_degrees(setting, degrees, find_runtime(request))
        return PlacedNetwork(setting=setting, graph=graph, strategy=strategy, name=named)
    return by_name(setting, "data" if strategy is None else str(strategy), request.degree)


def _on_plan(plan: Plan, setting: Setting, notes: tuple[Note, ...]) -> PlacedNetwork:
    strategy = replace(plan.strategy, distributions=plan_distributions(plan, setting))
    return PlacedNetwork(
        setting=setting,
        graph=graph_of(setting, strategy),
        strategy=strategy,
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
    setting = resolve(dataclasses.replace(request, gpus=gpus).completed(**says))
    graph = micro_graph(setting, file.description.micro_batches)
    strategy, notes = strategy_of(file, path, graph, setting.cluster, gpus)
    return PlacedNetwork(
        setting=setting,
        graph=graph,
        strategy=strategy,
        name=os.path.basename(path),
        notes=notes,
    )


def by_name(setting: Setting, name: str, degree: int | None = None) -> PlacedNetwork:
    """A network placed by a usual strategy.

    Parameters
    ----------
    setting, name, degree
        As of `named_distributions`.

    Raises
    ------
    InputError
        When there is no such strategy, or it cannot be used there.
    """
    rows = named_distributions(setting, name, degree)
    return PlacedNetwork(
        setting=setting,
        graph=setting.graph,
        strategy=single_stage(rows, setting.machine.topology.shape),
        name=name,
    )
