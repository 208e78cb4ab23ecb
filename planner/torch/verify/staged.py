"""A plan of a transformer on fewer ranks: its stages, splits, shards and recomputation, in small.

The layers of the module that is run are planned as those of the plan that their names begin with.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import DIMS, Graph, Network, build_graph
from costmodels.strategy import MemoryConfig, Schedule, Stage, Strategy
from costmodels.strategy.blocks import block_of
from planner.plan import Plan
from planner.plan.shard import shard_plan
from planner.torch.verify.scaled import fewer_ranks, fewer_ways


class Outline(Struct, frozen=True, kw_only=True):
    """What of a plan is kept on fewer ranks.

    Parameters
    ----------
    groups, shape
        Groups of ranks that have stages, and members of each level of one. [items]
    stage_of
        The stage, of those that are kept, that each layer of the plan is in.
    blocks
        Blocks of the plan that those of the small network stand for, in order.
    stages
        How many stages are kept. [items]
    """

    groups: int
    shape: tuple[int, ...]
    stage_of: Mapping[str, int]
    blocks: tuple[str, ...]
    stages: int


def outline_of(plan: Plan, ranks: int) -> Outline:
    """What of a plan is kept on so many ranks.

    Parameters
    ----------
    plan
        The plan.
    ranks
        How many. [items]

    Raises
    ------
    InputError
        When there are more ranks than the plan has.
    """
    if ranks > plan.gpus:
        raise InputError(
            f"a plan on {plan.gpus} GPUs must be verified on at most as many ranks but is on "
            f"{ranks}; lower --ranks"
        )
    strategy = plan.strategy
    groups = len(strategy.groups)
    if ranks < plan.gpus:
        inner = plan.gpus // groups
        kept = 2 if groups > 1 and (ranks > 2 or inner == 1) else 1
        groups = min(groups, kept)
    # one group has no others to take turns with
    chunks = len(strategy.stages) // len(strategy.groups) if groups > 1 else 1
    stages = groups * (min(chunks, 2) if ranks < plan.gpus else chunks)
    shape = fewer_ranks(strategy.stages[0].shape, ranks // groups)
    stage_of = {
        name: number * stages // len(strategy.stages)
        for number, stage in enumerate(strategy.stages)
        for name in stage.layers
    }
    first: dict[int, list[str]] = {}
    for name, stage in stage_of.items():
        block = block_of(name)
        if block is not None and block not in first.setdefault(stage, []):
            first[stage].append(block)
    kept_blocks = [
        block for stage in sorted(first) for block in first[stage][: max(1, 2 // stages)]
    ]
    return Outline(
        groups=groups,
        shape=shape,
        stage_of=stage_of,
        blocks=tuple(kept_blocks),
        stages=stages,
    )


def planned_as(name: str, plan: Plan, outline: Outline, in_small: bool) -> str:
    """The layer of a plan that a layer of the module is planned as.

    Parameters
    ----------
    name
        The layer of the module.
    plan, outline
        The plan, and what is kept of it.
    in_small
        Whether blocks are those that are kept.

    Raises
    ------
    InputError
        When there is none.
    """
    block = block_of(name)
    wanted = name
    if in_small and block is not None:
        number = int(block.rpartition(".")[2])
        wanted = outline.blocks[number] + name[len(block) :]
    while wanted:
        for one in (wanted, re.sub(r"_\d+$", "", wanted)):
            if one in plan.layers:
                return one
        wanted = wanted.rpartition(".")[0]
    raise InputError(
        f"the module must have the layers of the plan but its layer '{name}' is none of them; give "
        "the module that was planned (--module)"
    )


def small_plan(
    plan: Plan, network: Network, outline: Outline, names: Mapping[str, str]
) -> tuple[Plan, Graph]:
    """The plan of a small network on fewer ranks, and the network at one micro-batch.

    Parameters
    ----------
    plan, network
        The plan, and the network that is run.
    outline
        What is kept of the plan.
    names
        The layer of the plan that each layer of the network is planned as.
    """
    count = plan.schedule.micro_batches
    count = min(count, 2 * outline.groups) if count > 1 else 1
    if outline.groups > 1 and count % outline.groups:
        count = outline.groups * max(1, count // outline.groups)
    batch = 2 * math.prod(outline.shape)
    graph = build_graph(network, batch)
    splits = {
        layer.name: fewer_ways(
            plan.layers[names[layer.name]].distribution, outline.shape, 0, layer.dims
        )
        for layer in graph.compute_layers
    }
    schedule = replace(plan.schedule, micro_batches=count, max_in_flight=None)
    strategy = _strategy(plan, outline, names, splits, schedule)
    strategy.check(graph)
    layers = {
        name: replace(
            plan.layers[names[name]],
            name=name,
            kind=graph.layers[name].kind,
            degrees=splits[name].degrees,
            shape=outline.shape,
            shard_size=strategy.memory[name].shard_size if name in strategy.memory else None,
        )
        for name in splits
    }
    found = dataclasses.replace(
        plan,
        model=network.name,
        input_shape=network.input_shape,
        global_batch_size=batch * count,
        gpus=outline.groups * math.prod(outline.shape),
        shape=outline.shape,
        layers=layers,
        stages=strategy.stages if len(strategy.stages) > 1 or plan.stages else (),
        schedule=schedule,
        sharding=shard_plan(graph, strategy, plan.level_names),
    )
    return found, graph


def not_kept(plan: Plan, small: Plan) -> Iterator[str]:
    """Splits of a plan that none in small has: those of layers, the stages and uneven shares."""
    kinds = {layer.kind for layer in small.layers.values()}
    wanted, kept = (
        {
            (layer.kind, dim)
            for layer in each.layers.values()
            for dim in layer.degrees
            if layer.distribution.degree(dim) > 1
        }
        for each in (plan, small)
    )
    for kind, dim in sorted(wanted - kept, key=lambda row: (row[0], DIMS.index(row[1]))):
        if kind in kinds:
            yield f"{kind} by {dim}"
    if plan.num_groups > small.num_groups == 1:
        yield f"layers into {plan.num_groups} groups of stages"
    if plan.shares:
        yield "samples into uneven shares"


def _strategy(
    plan: Plan,
    outline: Outline,
    names: Mapping[str, str],
    splits: Mapping[str, Distribution],
    schedule: Schedule,
) -> Strategy:
    """The strategy in small.

    Parameters
    ----------
    plan, outline, names
        As of `small_plan`.
    splits, schedule
        The split of every layer, and the schedule.
    """
    old = plan.strategy
    size = math.prod(outline.shape)
    stages = []
    for number in range(outline.stages):
        own = [name for name in splits if outline.stage_of[names[name]] == number]
        stages.append(
            Stage(
                layers=tuple(own),
                first_device=number % outline.groups * size,
                shape=outline.shape,
                recompute=tuple(_kept_segments(old.stages, own, names)),
            )
        )
    memory = {
        name: _memory(old.memory[names[name]], size) for name in splits if names[name] in old.memory
    }
    return Strategy(
        stages=tuple(stages),
        distributions=dict(splits),
        schedule=schedule,
        memory=memory,
        gather_again=old.gather_again,
        ring_attention=old.ring_attention,
    )


def _memory(one: MemoryConfig, size: int) -> MemoryConfig:
    if one.shard_size is None or one.shard_size < size:
        return one
    return replace(one, shard_size=2 if size > 2 else None)


def _kept_segments(
    stages: Sequence[Stage], own: Sequence[str], names: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """What a stage computes again."""
    found = []
    for stage in stages:
        for segment in stage.recompute:
            kept = tuple(name for name in own if names[name] in segment)
            if kept:
                found.append(kept)
    return sorted(found, key=lambda row: own.index(row[0]))
