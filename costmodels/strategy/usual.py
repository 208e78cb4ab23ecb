"""Strategies of the usual kinds: a plan's distributions, and data x tensor x pipeline parallelism.

The hybrid is Megatron-LM's (Narayanan et al. 2021): tensor parallelism on the innermost devices,
context and data parallelism around it, and pipeline stages on contiguous blocks of devices outside.
Transformers are split as `costmodels.strategy.transformer` says; in other networks the filters of
all convolutions and linear layers are cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy.blocks import cut_stages, is_transformer
from costmodels.strategy.propagate import inner_first, propagate
from costmodels.strategy.shares import cut_by_shares
from costmodels.strategy.strategy import Schedule, Stage, Strategy
from costmodels.strategy.transformer import (
    Grid,
    check_transformer_degrees,
    transformer_distributions,
)

# Axes of parallelism by the level of the cluster that they take first, from the inside out.
AXES = ("tp", "cp", "ep", "dp", "pp")


def single_stage(distributions: Mapping[str, Distribution], shape: Sequence[int]) -> Strategy:
    """All layers on all devices, without a pipeline.

    Parameters
    ----------
    distributions
        Of every layer, in the order of the forward pass.
    shape
        Devices: members of each level, from the inside out. [items]
    """
    stage = Stage(layers=tuple(distributions), first_device=0, shape=tuple(shape))
    return Strategy(stages=(stage,), distributions=dict(distributions))


def stage_shape(shape: Sequence[int], groups: int) -> tuple[int, ...]:
    """Members of each level that one of several equal groups of devices has.

    Outer levels are divided first, an inner one only where the levels above are used up: so groups
    are contiguous blocks of devices.

    Raises
    ------
    InputError
        When the devices cannot be divided like that.
    """
    result, left = list(shape), groups
    for level in reversed(range(len(shape))):
        ways = math.gcd(left, shape[level])
        result[level] //= ways
        left //= ways
        if result[level] > 1:
            break
    if groups < 1 or left > 1:
        raise InputError(
            f"{math.prod(shape)} devices of shape {' x '.join(map(str, shape))} (inside out) must "
            f"divide into pipeline groups from the outer levels in but {groups} groups do not; "
            "choose a divisor of the outermost level, or all of it times one of the next"
        )
    return tuple(result)


def pipeline_stages(
    parts: Sequence[Sequence[str]], shape: Sequence[int], groups: int
) -> tuple[Stage, ...]:
    """Stages of equal groups of devices, round robin where there are more parts than groups.

    Parameters
    ----------
    parts
        Layers of each stage, in the order of the forward pass.
    shape
        Devices: members of each level, from the inside out. [items]
    groups
        Equal groups that they are divided into. [items]
    """
    inner = stage_shape(shape, groups)
    return tuple(
        Stage(layers=tuple(part), first_device=i % groups * math.prod(inner), shape=inner)
        for i, part in enumerate(parts)
    )


def _stage_grid(shape: tuple[int, ...], ways: Mapping[str, int], axes: Sequence[str]) -> Grid:
    """Ways of each axis at each level of a stage, inner axes on inner levels."""
    free = list(shape)
    rows: dict[str, tuple[int, ...]] = {}
    for axis in axes:
        if axis not in ("tp", "cp", "dp"):
            continue
        row = inner_first(ways[axis], free)
        if row is None:
            raise InputError(
                f"the degrees of parallelism must divide the {math.prod(shape)} devices of a stage "
                f"(shape {' x '.join(map(str, shape))}, inside out) level by level but {axis} of "
                f"{ways[axis]} does not divide what is left of them, {' x '.join(map(str, free))}; "
                "choose a divisor"
            )
        rows[axis] = row
        free = [size // taken for size, taken in zip(free, row, strict=True)]
    etp = inner_first(ways["etp"], rows["tp"])
    if etp is None:
        raise InputError(
            f"tensor parallelism within experts must divide tp of {ways['tp']} but is "
            f"{ways['etp']}; choose a divisor"
        )
    left = [
        math.prod(level) // used
        for *level, used in zip(rows["tp"], rows["cp"], rows["dp"], etp, strict=True)
    ]
    # inside of data parallelism, or around it
    way = 1 if axes.index("ep") < axes.index("dp") else -1
    ep = inner_first(ways["ep"], left[::way])
    if ep is None:
        raise InputError(
            f"expert parallelism must divide the {math.prod(left)} ranks of a stage that tensor "
            f"parallelism within experts leaves but is {ways['ep']}; choose a divisor"
        )
    return Grid(dp=rows["dp"], cp=rows["cp"], tp=rows["tp"], ep=ep[::way], etp=etp)


def _filter_distributions(
    graph: Graph, stages: Sequence[Stage], grid: Grid
) -> dict[str, Distribution]:
    """Filters of all convolutions and linear layers cut; all else follows, samples first."""
    shape = stages[0].shape
    dims = {
        layer.name: "filter"
        for layer in graph.compute_layers
        if layer.multiplies_weight and "filter" in layer.splittable
    }
    ways = math.prod(grid.tp)
    if ways > 1 and not dims:
        raise InputError(
            f"no layer of {graph.name} can be cut by tensor parallelism but its degree is {ways}; "
            "set tp to 1"
        )
    seeds = {
        name: Distribution(degrees={"sample": grid.dp, dim: grid.tp}, shape=shape)
        for name, dim in dims.items()
        if ways > 1
    }
    # what reads the data and nothing else begins with samples; all other layers follow from those
    for layer in graph.compute_layers:
        if all(graph.layers[edge.source].kind == "input" for edge in graph.producers[layer.name]):
            seeds.setdefault(layer.name, Distribution(degrees={"sample": grid.dp}, shape=shape))
    distributions, _ = propagate(graph, stages, seeds)
    return distributions


def hybrid(
    graph: Graph,
    cluster_shape: Sequence[int],
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    sequence_parallel: bool = False,
    uneven_heads: bool = True,
    cp_kind: str = "ring",
    axes: Sequence[str] = AXES,
    micro_batches: int = 1,
    schedule_kind: str = "1f1b",
    chunks: int = 1,
    blocks: str | Sequence[int] = "equal",
    max_in_flight: int | None = None,
    weights: Mapping[str, float] | None = None,
    by_shares: str | None = None,
) -> Strategy:
    """Data x context x tensor x pipeline parallelism, and experts over the first three.

    Parameters
    ----------
    graph
        The network at the batch of one micro-batch.
    cluster_shape
        Devices: members of each level, from the inside out. [items]
    dp, tp, pp, cp
        Degree of each; their product is the number of devices. [ways]
    ep, etp
        Degree of expert parallelism, and of tensor parallelism within experts, as `tp` by default.
        [ways]
    sequence_parallel, cp_kind
        As of `costmodels.strategy.transformer.transformer_distributions`.
    uneven_heads
        Whether heads that do not divide evenly over ranks are split all the same.
    axes
        The order in which axes take the levels of a stage, from the inside out.
    micro_batches
        Parts that the batch is cut into. [items]
    schedule_kind
        One of `SCHEDULES`.
    chunks
        Stages of each group of devices, more than one with the schedule "interleaved". [items]
    blocks, weights
        As of `cut_stages`.
    max_in_flight
        See `Schedule`.
    by_shares
        When a stage is full that is filled up by its share of the weights instead, one of
        `costmodels.strategy.shares.FULL`.

    Raises
    ------
    InputError
        When the degrees do not fit the devices or the network.
    """
    shape = tuple(cluster_shape)
    product = dp * tp * pp * cp
    if min(dp, tp, pp, cp, ep, chunks) < 1 or product != math.prod(shape):
        factors = {"dp": dp, "tp": tp, "pp": pp, **({"cp": cp} if cp > 1 else {})}
        raise InputError.rule(
            " x ".join(factors),
            f"be the {math.prod(shape)} devices",
            f"{' x '.join(map(str, factors.values()))} = {product}",
            f"change one of the {'four' if cp > 1 else 'three'}",
        )
    if chunks > 1 and schedule_kind != "interleaved":
        raise InputError(
            f"{chunks} stages a device group must be scheduled as 'interleaved' but the schedule "
            f"is '{schedule_kind}'; change it or leave chunks at 1"
        )
    transformer = is_transformer(graph)
    if transformer:
        heads = 1 if uneven_heads else tp * cp if cp_kind == "all-to-all" else tp
        check_transformer_degrees(graph, heads=heads, ep=ep)
    elif max(cp, ep) > 1 or sequence_parallel:
        raise InputError(
            f"{graph.name} has no attention, which sequence, context and expert parallelism are "
            "for; use dp, tp and pp"
        )
    parts = pp * chunks
    if by_shares:
        rows = cut_by_shares(graph, parts, by_shares)
    else:
        rows = cut_stages(graph, parts, weights, blocks)
    stages = pipeline_stages(rows, shape, pp)
    ways = {"dp": dp, "tp": tp, "cp": cp, "ep": ep, "etp": tp if etp is None else etp}
    grid = _stage_grid(stages[0].shape, ways, axes)
    if transformer:
        distributions = transformer_distributions(
            graph,
            grid,
            stages[0].shape,
            sequence_parallel=sequence_parallel,
            cp_kind=cp_kind,
        )
    else:
        distributions = _filter_distributions(graph, stages, grid)
    strategy = Strategy(
        stages=stages,
        distributions=distributions,
        schedule=Schedule(
            kind=schedule_kind, micro_batches=micro_batches, max_in_flight=max_in_flight
        ),
        gather_again=sequence_parallel or cp > 1,
        ring_attention=cp > 1 and cp_kind == "ring",
    )
    strategy.check(graph)
    return strategy


def shared_weights(graph: Graph, strategy: Strategy) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Weights that layers of several stages use, each with the stages, in their order.

    The gradients of such a weight are summed over those stages in every step (Narayanan et al.
    2021: the embeddings of the first and the last stage).
    """
    stage_of = {name: i for i, stage in enumerate(strategy.stages) for name in stage.layers}
    users: dict[str, set[int]] = {}
    for layer in graph.compute_layers:
        owner = layer.shares_weight_with
        if owner is not None:
            users.setdefault(owner, {stage_of[owner]}).add(stage_of[layer.name])
    return tuple((owner, tuple(sorted(s))) for owner, s in users.items() if len(s) > 1)
