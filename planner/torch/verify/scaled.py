"""A plan on fewer ranks and a smaller network, with every kind of split that can be kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from costmodels.distribution import Distribution, limit_reason
from costmodels.errors import InputError
from costmodels.graph import DIMS, SPATIAL_DIMS, Graph, LayerSpec, Network, build_graph

REPLICATED = "replicated"
# Extents of space that are tried, smallest first. [items]
_EXTENTS = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320)
# Numbers that a batch norm has of each channel at least: fewer are too alike. [items]
_LEAST_COUNT = 32
# Samples that are tried, and how many times the least work may be done so that more splits are.
_BATCHES, _MOST_WORK = (2, 4, 8, 16, 32, 64), 4


class SmallPlan(Struct, frozen=True, kw_only=True):
    """What is run in place of a plan.

    Parameters
    ----------
    network
        The network.
    batch
        Samples of a step. [items]
    distributions
        The split of every layer.
    left_out
        Dims of layers whose split no layer keeps, by the kind of layer.
    """

    network: Network
    batch: int
    distributions: Mapping[str, Distribution]
    left_out: tuple[str, ...]


def fewer_ranks(shape: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Members of each level where there are fewer ranks: factors go around the levels.

    Parameters
    ----------
    shape
        Members of each level of the plan, from the inside out. [items]
    ranks
        How many there are to be. [items]
    """
    found = [1] * len(shape)
    while math.prod(found) < ranks:
        open_levels = [n for n, size in enumerate(shape) if found[n] * 2 <= size]
        if not open_levels:
            raise InputError(
                f"a plan on {math.prod(shape)} GPUs must be verified on at most as many ranks but "
                f"is on {ranks}; lower --ranks"
            )
        level = max(open_levels, key=lambda n: (shape[n] / found[n] / (1 + 9 * found[n]), -n))
        found[level] *= 2
    return tuple(found)


def fewer_ways(
    plan: Distribution, shape: tuple[int, ...], turn: int, extents: Mapping[str, int]
) -> Distribution:
    """The split of a layer on fewer ranks: as many of its dims as there is room for.

    Parameters
    ----------
    plan
        Its split in the plan.
    shape
        Members of each level. [items]
    turn
        Which of several dims comes first where there is no room for all.
    extents
        Positions of each dim. [items]
    """
    if shape == plan.shape:
        return plan
    ways = {dim: [1] * len(shape) for dim in plan.degrees}
    for level, size in enumerate(shape):
        wanted = {
            dim: degrees[level] for dim, degrees in plan.degrees.items() if degrees[level] > 1
        }
        alike = plan.level_replication[level]
        if alike > 1:
            wanted[REPLICATED] = alike
        given = dict.fromkeys(wanted, 1)
        order = sorted(wanted, key=lambda dim: dim == REPLICATED)
        order = order[turn % len(order) :] + order[: turn % len(order)] if order else []
        while math.prod(given.values()) * 2 <= size:
            room = [
                dim
                for dim in order
                if given[dim] * 2 <= wanted[dim]
                and (dim == REPLICATED or math.prod(ways[dim]) * given[dim] * 2 <= extents[dim])
            ]
            if not room:
                break
            # a dim that is not split yet comes before a further split of another
            dim = max(room, key=lambda one: (given[one] == 1, wanted[one] / given[one]))
            given[dim] *= 2
        for dim, number in given.items():
            if dim != REPLICATED:
                ways[dim][level] = number
    return Distribution(degrees={dim: tuple(row) for dim, row in ways.items()}, shape=shape)


def scaled_down(
    networks: Iterable[Network], layers: Mapping[str, Distribution], shape: tuple[int, ...]
) -> SmallPlan:
    """The least work on which most of the splits can be tried.

    Parameters
    ----------
    networks
        Networks of the same layers, with smaller images or fewer channels than the plan's.
    layers
        The splits of the plan.
    shape
        Members of each level. [items]
    """
    last: InputError | None = None
    best: tuple[int, int, SmallPlan] | None = None
    rows = [
        (_positions(one) * batch, n, one, batch)
        for n, one in enumerate(networks)
        for batch in _BATCHES
    ]
    for work, _, network, batch in sorted(rows, key=lambda row: row[:2]):
        if best is not None and (best[0] == 0 or work > _MOST_WORK * best[1]):
            break
        try:
            found = _small_plan(network, layers, shape, batch)
        except InputError as error:
            last = error
            continue
        if found is not None and (best is None or len(found.left_out) < best[0]):
            best = (len(found.left_out), work if best is None else best[1], found)
    if best is None:
        raise last or InputError(
            f"the network must have room for the splits of the plan on {math.prod(shape)} ranks "
            "but has none; use fewer ranks (--ranks)"
        )
    return best[2]


def _positions(network: Network) -> int:
    """Positions of space of a sample. [items]"""
    return math.prod(n for axis, n in network.input_shape.items() if axis in SPATIAL_DIMS)


def _small_plan(
    network: Network, layers: Mapping[str, Distribution], shape: tuple[int, ...], batch: int
) -> SmallPlan | None:
    """The splits on a network and a batch, None where a norm has too few numbers.

    Parameters
    ----------
    network, layers, shape
        As of `scaled_down`.
    batch
        Samples of a step. [items]
    """
    graph = build_graph(network, batch)
    found: dict[str, Distribution] = {}
    turns: dict[str, int] = {}
    for layer in graph.compute_layers:
        plan = layers[layer.name]
        alike = f"{layer.kind} {plan}"
        turn = turns.setdefault(alike, 0)
        turns[alike] += 1
        found[layer.name] = fewer_ways(plan, shape, turn, layer.dims)
        reason = limit_reason(layer, found[layer.name])
        if reason:
            raise InputError(f"{reason}; use fewer ranks (--ranks)")
    if not has_room(graph, found):
        return None
    left = tuple(_splits_left_out(graph, layers, found))
    return SmallPlan(network=network, batch=batch, distributions=found, left_out=left)


def has_room(graph: Graph, found: Mapping[str, Distribution]) -> bool:
    """Whether norms have enough numbers."""
    for layer in graph.compute_layers:
        own = found[layer.name]
        if layer.kind == "batch_norm":
            dims = [dim for dim in layer.dims if dim != "channel"]
            count = math.prod(layer.dims[dim] // own.degree(dim) for dim in dims)
            if count < _LEAST_COUNT:
                return False
    return True


def _splits_left_out(
    graph: Graph, layers: Mapping[str, Distribution], found: Mapping[str, Distribution]
) -> Iterator[str]:
    """Splits that no layer of a kind keeps."""
    wanted: dict[tuple[str, str], bool] = {}
    for layer in graph.compute_layers:
        for dim in layers[layer.name].degrees:
            key = (layer.kind, dim)
            wanted[key] = wanted.get(key, False) or found[layer.name].degree(dim) > 1
    for (kind, dim), kept in sorted(
        wanted.items(), key=lambda row: (row[0][0], DIMS.index(row[0][1]))
    ):
        if not kept:
            yield f"{kind} by {dim}"


def smaller_images(shape: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Axes of samples with less space, the smallest first. [items]"""
    space = [axis for axis in shape if axis in SPATIAL_DIMS]
    largest = max((shape[axis] for axis in space), default=1)
    for extent in (*(extent for extent in _EXTENTS if extent < largest), largest):
        yield {axis: min(n, extent) if axis in space else n for axis, n in shape.items()}


def smaller_networks(network: Network, ranks: int = 8) -> Iterator[Network]:
    """A network with smaller images and fewer channels; with all of them where that cannot be."""
    # as many channels as ranks split are enough, which counts where windows are of three dims
    volumes = sum(axis in SPATIAL_DIMS for axis in network.input_shape) == 3
    least = 4 if volumes and ranks <= 4 else 8
    narrow = tuple(_narrower(row, least) for row in network.layers)
    for shape in smaller_images(network.input_shape):
        for layers in (narrow, network.layers):
            small = replace(network, input_shape=shape, layers=layers)
            try:
                build_graph(small, 2)
            except InputError:
                continue
            yield small
            break


def _narrower(row: LayerSpec, least: int) -> LayerSpec:
    """A layer with fewer filters, and as many groups as divide them."""
    options = dict(row.options)
    if "filters" in options:
        filters = int(options["filters"])
        groups = int(options.get("groups", 1))
        options["filters"] = _width(filters, least)
        if groups > 1:
            options["groups"] = _width(filters, least) if groups == filters else min(groups, 4)
    return LayerSpec(name=row.name, kind=row.kind, inputs=row.inputs, options=options)


def _width(filters: int, least: int) -> int:
    """Fewer filters, more where there were more. [items]"""
    if filters <= least:
        return filters
    return least if filters <= 64 else 2 * least if filters <= 256 else 3 * least
