"""What is to be simulated: a plan, a strategy file, or a network with a strategy by name."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph, Network, build_graph
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.pieces import Pieces
from costmodels.strategy import Strategy
from costmodels.strategy.usual import hybrid, single_stage
from planner.plan import Plan
from planner.request.plans import options_of, plan_distributions, plan_setting
from planner.request.setting import Setting, resolve
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions

Source = str | os.PathLike[str] | Plan | Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Data, tensor and pipeline parallelism by degree, and the schedule of the pipeline.

    Parameters
    ----------
    dp, tp, pp
        Ways of each; dp of None is what the others leave. [ways]
    micro_batches
        Parts that the batch is cut into. [items]
    schedule
        One of `costmodels.strategy.SCHEDULES`.
    chunks
        Stages of each device group, with the schedule "interleaved". [items]
    max_in_flight
        Forward passes of a stage whose backward pass is still to come; None for the schedule's.
        [items]
    recompute
        Whether the activations of every block of layers are computed again for backward.
    """

    dp: int | None = None
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    max_in_flight: int | None = None
    recompute: bool = False

    @property
    def given(self) -> bool:
        """Whether any of it was asked for."""
        return self != Degrees()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationInput:
    """A network, a machine and a complete strategy.

    Parameters
    ----------
    setting
        The inputs, at the batch of a step.
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
    notes: tuple[str, ...] = ()

    @property
    def distributions(self) -> Mapping[str, Distribution]:
        """How each layer is split over the devices of its stage."""
        return self.strategy.distributions


def find_subject(
    source: Source,
    *,
    gpus: int | None = None,
    strategy: str | os.PathLike[str] | Plan | Strategy | None = None,
    degree: int | None = None,
    degrees: Degrees | None = None,
    **options: Any,
) -> SimulationInput:
    """Find out what is to be simulated.

    Parameters
    ----------
    source
        A plan or its file, a strategy file, or a network as of `planner.optimize`.
    gpus
        Number of GPUs, which plans and strategy files may tell. [items]
    strategy
        With a network: a name in `planner.request.usual_strategies.STRATEGIES`, a plan, a strategy,
        or a file of either; "data" by default.
    degree
        As of `planner.evaluate`.
    degrees
        With a network, instead of a strategy: ways of data, tensor and pipeline parallelism.
    options
        As of `planner.request.setting.resolve`.
    """
    degrees = degrees or Degrees()
    if isinstance(source, Plan) or _is_json(source):
        _refuse(strategy is not None or degrees.given, "a plan")
        return _from_plan(source, gpus, options)
    if _is_strategy_file(source):
        _refuse(strategy is not None or degrees.given, "a strategy file")
        return _from_file(None, Path(os.fspath(source)), gpus, options)  # type: ignore[arg-type]
    if strategy is not None and degrees.given:
        raise InputError(
            "give either a strategy or degrees of data, tensor and pipeline parallelism, not both"
        )
    model = source if isinstance(source, Network) else os.fspath(source)
    if isinstance(strategy, Plan) or _is_json(strategy):
        plan = strategy if isinstance(strategy, Plan) else Plan.load(os.fspath(strategy))  # type: ignore[arg-type]
        return _from_plan(plan, gpus, options, model)
    if _is_strategy_file(strategy):
        return _from_file(model, Path(os.fspath(strategy)), gpus, options)  # type: ignore[arg-type]
    if gpus is None:
        raise InputError("the number of GPUs must be given with a network; add --gpus")
    setting = resolve(model, gpus=gpus, **options)
    if isinstance(strategy, Strategy):
        return SimulationInput(
            setting=setting,
            graph=micro_graph(setting, strategy.schedule.micro_batches),
            strategy=strategy,
            name="given strategy",
        )
    if degrees.given:
        return _from_degrees(setting, degrees)
    return _from_name(setting, str(strategy or "data"), degree)


def micro_graph(setting: Setting, micro_batches: int) -> Graph:
    """The network at the batch of one micro-batch."""
    if micro_batches < 1 or setting.batch % micro_batches:
        raise InputError(
            f"the global batch must be a multiple of the micro-batches but {setting.batch} is none "
            f"of {micro_batches}; change one of them"
        )
    return build_graph(setting.model, setting.batch // micro_batches)


def with_recomputation(strategy: Strategy, graph: Graph) -> Strategy:
    """The strategy with the activations of every block of several layers computed again."""
    stages = []
    for stage in strategy.stages:
        blocks: dict[str, list[str]] = {}
        for name in stage.layers:
            blocks.setdefault(unit_of(name), []).append(name)
        segments = tuple(tuple(names) for names in blocks.values() if len(names) > 1)
        stages.append(replace(stage, recompute=segments))
    return replace(strategy, stages=tuple(stages))


def _refuse(given: bool, what: str) -> None:
    if given:
        raise InputError(f"{what} says how the network is split; leave strategy and degrees out")


def _is_json(source: object) -> bool:
    """Whether it is a JSON file that is no network."""
    if not isinstance(source, str | os.PathLike) or not os.fspath(source).endswith(".json"):
        return False
    try:
        document = json.loads(Path(os.fspath(source)).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True  # reading it as a plan says what is wrong
    return not (isinstance(document, dict) and "format" not in document and "name" in document)


def _is_strategy_file(source: object) -> bool:
    """Whether it is a TOML file that says so; network files are TOML, too."""
    if not isinstance(source, str | os.PathLike) or not os.fspath(source).endswith(".toml"):
        return False
    try:
        document = tomllib.loads(Path(os.fspath(source)).read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # no UTF-8, no TOML, or numbers of thousands of digits
        reason = str(error)
    else:
        return document.get("format") == "planner-strategy"
    raise InputError(f"the file {os.fspath(source)} cannot be read ({reason}); correct it")


def _from_plan(
    source: Source, gpus: int | None, options: Mapping[str, Any], model: str | Network | None = None
) -> SimulationInput:
    plan = source if isinstance(source, Plan) else Plan.load(os.fspath(source))  # type: ignore[arg-type]
    if model is None:
        given = {key: value for key, value in options.items() if value is not None}
        setting = plan_setting(plan, gpus, given)
    else:
        setting = resolve(model, gpus=gpus or plan.gpus, **options_of(plan, options))
    distributions = plan_distributions(plan, setting)
    return SimulationInput(
        setting=setting,
        graph=setting.graph,
        strategy=single_stage(distributions, setting.machine.topology.shape),
        name="plan",
        plan=plan,
    )


def _from_file(
    model: str | Network | None, path: Path, gpus: int | None, options: Mapping[str, Any]
) -> SimulationInput:
    from planner.request.strategy_files import load_strategy, read_strategy_file

    file = read_strategy_file(path)
    network, devices = model or file.model, gpus or file.gpus
    for value, what, option in (
        (network, "the network", "the network"),
        (devices, "the number of GPUs", "--gpus"),
    ):
        if value is None:
            raise InputError(f"{path} does not say {what}; add it to the file, or give {option}")
    assert network is not None, "checked above"
    assert devices is not None, "checked above"
    says = {
        "cluster": file.cluster,
        "global_batch_size": file.global_batch_size,
        "precision": file.precision,
    }
    given = {k: v for k, v in options.items() if v is not None}
    setting = resolve(network, gpus=devices, **{**says, **given})
    graph = micro_graph(setting, file.description.micro_batches)
    strategy, notes = load_strategy(path, graph, setting.cluster, devices)
    return SimulationInput(
        setting=setting, graph=graph, strategy=strategy, name=path.name, notes=tuple(notes)
    )


def _from_degrees(setting: Setting, degrees: Degrees) -> SimulationInput:
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
        strategy = cut(_seconds(setting, graph, strategy))
    if degrees.recompute:
        strategy = with_recomputation(strategy, graph)
    return SimulationInput(
        setting=setting,
        graph=graph,
        strategy=strategy,
        name=f"dp {dp} x tp {degrees.tp} x pp {degrees.pp}",
    )


def _seconds(setting: Setting, graph: Graph, strategy: Strategy) -> dict[str, float]:
    """Computation of every layer on one micro-batch, by which stages are balanced. [s]"""
    machine = setting.machine
    network = Topology.of(setting.cluster, strategy.stages[0].shape)
    pieces = Pieces(graph, replace(machine, topology=network))
    result = {}
    for name, distribution in strategy.distributions.items():
        piece = pieces.of(name, distribution)
        result[name] = piece.forward + piece.backward
    return result


def _from_name(setting: Setting, name: str, degree: int | None) -> SimulationInput:
    if name not in STRATEGIES:
        raise InputError(
            f"the strategy must be one of {', '.join(STRATEGIES)}, or a plan or strategy file, but "
            f"is '{name}'; choose one"
        )
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    rows = strategy_distributions(setting.graph, name, shape, host, degree)
    if isinstance(rows, Infeasible):
        raise InputError(
            f"strategy {name} cannot be used for {setting.model.name} on {setting.gpus} GPUs: "
            f"{rows.reason}; choose fewer GPUs, another degree or another strategy"
        )
    return SimulationInput(
        setting=setting, graph=setting.graph, strategy=single_stage(rows, shape), name=name
    )
