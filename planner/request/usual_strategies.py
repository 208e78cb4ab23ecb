"""The usual strategies, each one rule for all layers (Kahira et al. 2021, section III).

They are what a plan is compared with, and what `planner evaluate` costs. A strategy splits all
devices one way, or, as a hybrid, samples across hosts and something else within a host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from costmodels.distribution import Distribution, limit_reason, shared_distribution
from costmodels.errors import InputError
from costmodels.graph import SPATIAL_DIMS, Graph, Layer

STRATEGIES = ("data", "spatial", "filter", "channel", "data+filter", "data+spatial")


class Infeasible(Struct, frozen=True, kw_only=True):
    """A strategy that a network or a number of devices rules out, and why."""

    reason: str


def strategy_degrees(
    strategy: str, shape: Sequence[int], host_index: int, inner: int | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ways that samples and the other dim are split at each level.

    Parameters
    ----------
    strategy
        One of `STRATEGIES`.
    shape
        Members of each level, from the inside out. [items]
    host_index
        Index of the level that makes up one host.
    inner
        Ways of the dim that is not the sample in a hybrid; a host's devices by default. [ways]

    Raises
    ------
    InputError
        When the strategy is unknown or the devices do not divide by `inner`.
    """
    if strategy not in STRATEGIES:
        raise InputError.rule(
            "the strategy",
            f"be one of {', '.join(STRATEGIES)}, megatron:tp=4, or a plan or strategy file",
            f"'{strategy}'",
            "choose one",
        )
    if inner is not None and "+" not in strategy:
        raise InputError(
            f"a degree must come with a strategy of two parts, data+filter or data+spatial, but "
            f"the strategy is {strategy}; leave the degree out"
        )
    ones = (1,) * len(shape)
    if strategy == "data":
        return tuple(shape), ones
    if "+" not in strategy:
        return ones, tuple(shape)
    if inner is not None and inner < 1:
        raise InputError.rule(
            f"the degree of {strategy.split('+')[1]}",
            "be at least 1",
            inner,
            f"choose a divisor of the {math.prod(shape)} devices",
        )
    rest = math.prod(shape[: host_index + 1]) if inner is None else inner
    if math.prod(shape) % rest:
        raise InputError.rule(
            f"the degree of {strategy.split('+')[1]}",
            f"divide the {math.prod(shape)} devices",
            rest,
            "choose a divisor",
        )
    others = []
    for size in shape:
        ways = math.gcd(size, rest)
        others.append(ways)
        rest //= ways
    return tuple(s // o for s, o in zip(shape, others, strict=True)), tuple(others)


def _default_inner(devices: int, per_host: int, batch: int) -> int:
    """The devices of a host, or of as many hosts as it takes to leave each group a sample."""
    return next(
        n
        for n in range(per_host, devices + 1)
        if devices % n == 0 and n % per_host == 0 and (devices // n <= batch or n == devices)
    )


def _spatial_degrees(layer: Layer, ways: int) -> dict[str, int] | None:
    """Near-square division over the spatial dims, or None when it does not fit."""
    dims = [d for d in SPATIAL_DIMS if d in layer.splittable]
    degrees = dict.fromkeys(dims, 1)
    rest = ways
    factor = 2
    factors = []
    while rest > 1:
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
        factor += 1
    for factor in sorted(factors, reverse=True):
        fits = [d for d in dims if degrees[d] * factor <= layer.dims[d]]
        if not fits:
            return None
        # the dim with the longest blocks, the first of equals (rows are contiguous in memory)
        best = max(fits, key=lambda d: layer.dims[d] / degrees[d])
        degrees[best] *= factor
    return degrees


def _split(layer: Layer, kind: str, others: Sequence[int]) -> dict[str, tuple[int, ...]] | str:
    """Degrees of the dims of one layer at each level for the part that is not samples."""
    if kind in ("filter", "channel"):
        if layer.kind not in ("conv", "linear") or kind not in layer.splittable:
            return {}
        return {kind: tuple(others)}
    dims = [d for d in SPATIAL_DIMS if d in layer.splittable]
    if not dims:
        return {}
    total = _spatial_degrees(layer, math.prod(others))
    if total is None:
        extents = " x ".join(str(layer.dims[d]) for d in dims)
        return (
            f"layer '{layer.name}' has {extents} positions, too few for {math.prod(others)} blocks"
        )
    # inner levels take their share of each dim's ways first
    left = dict(total)
    rows: dict[str, list[int]] = {d: [] for d in dims}
    for ways in others:
        rest = ways
        for dim in sorted(dims, key=lambda d: -left[d]):
            part = math.gcd(rest, left[dim])
            rows[dim].append(part)
            left[dim] //= part
            rest //= part
    return {dim: tuple(levels) for dim, levels in rows.items() if math.prod(levels) > 1}


def strategy_distributions(
    graph: Graph,
    strategy: str,
    shape: Sequence[int],
    host_index: int,
    inner: int | None = None,
) -> Mapping[str, Distribution] | Infeasible:
    """One distribution for every layer, or why the strategy cannot be used.

    Layers without the split dim are replicated over its ranks. The first layer is left out of
    channel parallelism, since images have three channels; spatial parallelism gathers what it has
    before the first layer with too few positions, when most of the work lies before it, and
    replicates the rest (Kahira et al., appendix B).

    Parameters
    ----------
    graph
        The network with its batch.
    strategy
        A name in `STRATEGIES`.
    shape
        Children of each level that take part, from the inside out. [items]
    host_index
        The level whose parent is a host.
    inner
        Ways of the dim that is not the sample in a hybrid; None for a host's devices. [ways]
    """
    batch = graph.layers["input"].dims["sample"]
    if inner is None and "+" in strategy:
        inner = _default_inner(math.prod(shape), math.prod(shape[: host_index + 1]), batch)
    samples, others = strategy_degrees(strategy, shape, host_index, inner)
    kind = strategy.split("+")[-1]
    first = {edge.target for edge in graph.edges if graph.layers[edge.source].kind == "input"}
    result: dict[str, Distribution] = {}
    known: dict[tuple[object, ...], Distribution] = {}
    done, gathered = 0, False
    for layer in graph.compute_layers:
        # blocks are alike, and their layers share what they are made of
        parts = id(layer.dims), id(layer.splittable)
        like = (
            layer.kind,
            layer.evenly,
            *parts,
            gathered,
            kind == "channel" and layer.name in first,
        )
        if like in known:
            result[layer.name] = known[like]
            done += layer.macs
            continue
        degrees: dict[str, tuple[int, ...]] = {}
        if math.prod(samples) > 1:
            degrees["sample"] = samples
        if (
            math.prod(others) > 1
            and not gathered
            and not (kind == "channel" and layer.name in first)
        ):
            split = _split(layer, kind, others)
            if isinstance(split, str):
                if done < graph.macs / 2:
                    return Infeasible(reason=split)
                gathered, split = True, {}
            degrees.update(split)
        done += layer.macs
        distribution = shared_distribution(tuple(degrees.items()), tuple(shape))
        reason = limit_reason(layer, distribution)
        if reason is not None:
            return Infeasible(reason=reason)
        result[layer.name] = known[like] = distribution
    if (
        kind != "data"
        and math.prod(others) > 1
        and not any(set(d.degrees) - {"sample"} for d in result.values())
    ):
        return Infeasible(reason=f"no layer of {graph.name} can be split by {kind}")
    return result
