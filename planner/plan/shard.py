"""From the splits of layers to meshes, placements and what moves between layers.

Ranks of a level are digits of the split dims, the most significant first (see
`costmodels.distribution`). The places at which the digits of any layer end cut a level into axes
that fit all layers, wherever each such place divides the one before it: always, where sizes are
powers of two.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.communication.layout import Layouts
from costmodels.communication.patterns import NOTHING, SEND_RECV, match
from costmodels.distribution import Candidates, Distribution, one_candidate
from costmodels.graph import DIMS, Axis, Graph, Layer, Tensor
from costmodels.strategy import Strategy
from planner.plan.sharding import (
    PARTIAL,
    PIPELINE_AXIS,
    REPLICATE,
    LayerSharding,
    Mesh,
    MeshAxis,
    Sharding,
    Shuffle,
    TensorPlacement,
    shard,
)
from planner.plan.weights import weight_tensors


class _Digit(Struct, frozen=True, kw_only=True):
    """Ranks of a level that tell blocks of a dim apart: those whose strides are in a range."""

    level: int
    dim: str
    stride: int
    ways: int


class _PlacedAxis(Struct, frozen=True, kw_only=True):
    """An axis of a mesh, and its place in the numbering of the ranks of a level."""

    axis: MeshAxis
    level: int
    stride: int

    def is_within(self, digit: _Digit) -> bool:
        """Whether the digit is made up of this axis, among others."""
        end = digit.stride * digit.ways
        return self.level == digit.level and digit.stride <= self.stride < end


class _Split(Struct, frozen=True, kw_only=True):
    """The split of a layer, its digits, and the axes of the mesh that tell them apart."""

    candidate: Candidates
    digits: tuple[_Digit, ...]
    axes: tuple[_PlacedAxis, ...]

    def names_of(self, dims: Container[str]) -> tuple[str, ...]:
        """Axes that split some dims."""
        digits = [digit for digit in self.digits if digit.dim in dims]
        return tuple(one.axis.name for one in self.axes if any(map(one.is_within, digits)))


def shard_plan(graph: Graph, strategy: Strategy, level_names: Sequence[str]) -> Sharding:
    """Meshes, placements and shuffles of a strategy.

    Parameters
    ----------
    graph
        The network at the batch of one micro-batch.
    strategy
        The split of every layer over the ranks of its stage.
    level_names
        Levels of the cluster, from the inside out.
    """
    meshes: list[Mesh] = []
    layers: dict[str, LayerSharding] = {}
    # layers that are alike but for their names have tensors that are
    known: dict[tuple[object, ...], LayerSharding] = {}
    for group, names in strategy.layers_of_groups.items():
        rows = {name: strategy.distributions[name] for name in names}
        cuts = {name: _cuts(graph.layers[name], row) for name, row in rows.items()}
        for together in _that_fit(cuts):
            shape = rows[together[0]].shape
            union = frozenset().union(*(cuts[name] for name in together))
            axes = _axes(shape, union, level_names)
            for name in together:
                layer, wanted = graph.layers[name], graph.input_gradients(name)
                split = tuple(rows[name].degrees.items())
                alike = (layer.signature, wanted, split, len(meshes))
                if alike not in known:
                    known[alike] = _sharded_layer(layer, wanted, rows[name], axes, len(meshes))
                layers[name] = known[alike]
            meshes.append(Mesh(first_rank=group[0], axes=tuple(one.axis for one in axes)))
    order = [layer.name for layer in graph.compute_layers]
    return Sharding(
        meshes=tuple(meshes),
        layers={name: layers[name] for name in order},
        shuffles=tuple(_layer_shuffles(graph, strategy, layers, meshes)),
    )


def _digits(distribution: Distribution) -> Iterator[_Digit]:
    for level, size in enumerate(distribution.shape):
        stride = size
        for dim in DIMS:
            ways = distribution.degrees.get(dim, (1,) * (level + 1))[level]
            if ways > 1:
                stride //= ways
                yield _Digit(level=level, dim=dim, stride=stride, ways=ways)


def _units_kept(axis: Axis, candidate: Candidates) -> tuple[int, ...]:
    """Ways that an axis is really cut at each level."""
    return tuple(int(ways) for ways in candidate.axis_degrees(axis)[0])


def _cuts(layer: Layer, distribution: Distribution) -> frozenset[tuple[int, int]]:
    """Levels, and strides within them, at which an axis of a mesh must end."""
    candidate = one_candidate(distribution)
    found = set()
    for digit in _digits(distribution):
        found.add((digit.level, digit.stride))
        for tensor in (*layer.inputs, layer.output):
            for axis in tensor.axes:
                if axis.dim == digit.dim and axis.units is not None:
                    kept = _units_kept(axis, candidate)[digit.level]
                    found.add((digit.level, digit.stride * digit.ways // kept))
    sizes = enumerate(distribution.shape)
    return frozenset(found - {(level, size) for level, size in sizes})


def _that_fit(cuts: Mapping[str, frozenset[tuple[int, int]]]) -> list[list[str]]:
    """Layers in as few groups as come by themselves, each of which one mesh fits."""
    groups: list[tuple[list[str], set[tuple[int, int]]]] = []
    place: dict[frozenset[tuple[int, int]], int] = {}
    for name, own in cuts.items():
        if own not in place:
            fits = (n for n, (_, known) in enumerate(groups) if _is_chain(known | own))
            place[own] = next(fits, len(groups))
            if place[own] == len(groups):
                groups.append(([], set()))
            groups[place[own]][1].update(own)
        groups[place[own]][0].append(name)
    return [names for names, _ in groups]


def _is_chain(cuts: Iterable[tuple[int, int]]) -> bool:
    """Whether the strides of each level divide each other."""
    ordered = sorted(cuts)
    return all(one[0] != other[0] or other[1] % one[1] == 0 for one, other in pairwise(ordered))


def _axes(
    shape: Sequence[int], cuts: Iterable[tuple[int, int]], level_names: Sequence[str]
) -> tuple[_PlacedAxis, ...]:
    """The axes of a mesh, from the outermost level to the innermost.

    Parameters
    ----------
    shape
        Members of each level, from the inside out. [items]
    cuts
        Levels, and strides within them, at which an axis must end.
    level_names
        What levels are called.
    """
    found: list[_PlacedAxis] = []
    for level in reversed(range(len(shape))):
        strides = sorted({1, *(stride for of, stride in cuts if of == level)}, reverse=True)
        before = shape[level]
        name = level_names[level]
        if name == PIPELINE_AXIS:
            name = f"{name}_level"  # its own name is that of another axis
        for number, stride in enumerate(strides):
            called = f"{name}_{number}" if len(strides) > 1 else name
            axis = MeshAxis(name=called, size=before // stride)
            # levels of one member tell nothing apart, but a mesh has an axis
            if axis.size > 1 or (level == 0 and not found):
                found.append(_PlacedAxis(axis=axis, level=level, stride=stride))
            before = stride
    return tuple(found)


def _sharded_layer(
    layer: Layer,
    wanted: Sequence[bool],
    distribution: Distribution,
    axes: tuple[_PlacedAxis, ...],
    mesh: int,
) -> LayerSharding:
    """The tensors of a layer.

    Parameters
    ----------
    layer, wanted, distribution
        The layer, which of its inputs want a gradient, and its split.
    axes, mesh
        The axes of its mesh, and which one that is.
    """
    split = _Split(
        candidate=one_candidate(distribution), digits=tuple(_digits(distribution)), axes=axes
    )
    inputs = tuple(
        _placed("input", tensor, split, layer.absent_dims(slot) if gradient else ())
        for slot, (tensor, gradient) in enumerate(zip(layer.inputs, wanted, strict=True))
    )
    lacking = set(layer.dims) - set(layer.weight_dims)
    weights = tuple(_placed(name, tensor, split, lacking) for name, tensor in weight_tensors(layer))
    output = _placed("output", layer.output, split, layer.reduced_dims)
    partial = tuple(
        PARTIAL if axis.axis.name in output.gradient_sums else placement
        for axis, placement in zip(axes, output.placements, strict=True)
    )
    over = layer.statistics.over if layer.statistics else ()
    return LayerSharding(
        mesh=mesh,
        inputs=inputs,
        weights=weights,
        output=replace(output, placements=partial, gradient_sums=()),
        statistics_sums=split.names_of(over),
    )


def _placed(name: str, tensor: Tensor, split: _Split, summed: Collection[str]) -> TensorPlacement:
    """A tensor of a layer.

    Parameters
    ----------
    name, tensor
        The tensor.
    split
        Of its layer.
    summed
        Dims of the layer whose split leaves partial sums of it.
    """
    candidate, axes = split.candidate, split.axes
    placements = {one.axis.name: REPLICATE for one in axes}
    sums = list(split.names_of(summed))
    for number, axis in enumerate(tensor.axes):
        digits = [digit for digit in split.digits if digit.dim == axis.dim]
        kept = _units_kept(axis, candidate) if digits else ()
        for digit in digits:
            # what repeats a block lies inside of what tells blocks apart
            repeats = digit.ways // kept[digit.level]
            apart = replace(digit, stride=digit.stride * repeats, ways=kept[digit.level])
            for one in axes:
                if one.is_within(apart):
                    placements[one.axis.name] = shard(number)
                elif one.is_within(digit) and summed:
                    sums.append(one.axis.name)
    return TensorPlacement(
        name=name,
        dims=tuple(axis.name for axis in tensor.axes),
        shape=tuple(axis.extent for axis in tensor.axes),
        local_shape=tuple(int(candidate.axis_extent(axis)[0]) for axis in tensor.axes),
        placements=tuple(placements.values()),
        gradient_sums=tuple(one.axis.name for one in axes if one.axis.name in sums),
    )


def _layer_shuffles(
    graph: Graph,
    strategy: Strategy,
    layers: Mapping[str, LayerSharding],
    meshes: Sequence[Mesh],
) -> Iterator[Shuffle]:
    """What moves between layers.

    Parameters
    ----------
    graph, strategy
        The network, and the split of every layer.
    layers, meshes
        Their placements, and the axes of those.
    """
    kinds: dict[object, str] = {}
    for layer in graph.compute_layers:
        for edge in graph.producers[layer.name]:
            if edge.source not in layers:
                continue  # samples are loaded as they are needed
            one, other = layers[edge.source], layers[edge.target]
            here, there = meshes[one.mesh], meshes[other.mesh]
            same = here == there
            collective = SEND_RECV
            if here.first_rank == there.first_rank:
                collective = _collective_between(
                    graph, strategy, edge.source, edge.target, edge.slot, kinds
                )
            if collective == NOTHING:
                continue
            reads = other.inputs[edge.slot].placements
            moved = zip(here.names, one.output.placements, reads, strict=True) if same else ()
            yield Shuffle(
                source=edge.source,
                target=edge.target,
                slot=edge.slot,
                collective=collective,
                axes=tuple(name for name, before, after in moved if before != after),
            )


def _collective_between(
    graph: Graph,
    strategy: Strategy,
    source: str,
    target: str,
    slot: int,
    known: dict[object, str],
) -> str:
    """What brings a tensor from where a layer leaves it to where another reads it.

    Parameters
    ----------
    graph, strategy
        The network, and the split of every layer.
    source, target, slot
        The layers, and which input of the second one.
    known
        Answers of before, by layouts, and by what layers and splits that are alike share.
    """
    first, second = graph.layers[source], graph.layers[target]
    rows = strategy.distributions[source], strategy.distributions[target]
    splits = ((row.shape, tuple(row.degrees.items())) for row in rows)
    like = (first.signature, second.signature, *splits, slot)
    if like in known:
        return known[like]
    before, after = (
        Layouts.of(one_candidate(row), tensor, dims)
        for row, tensor, dims in (
            (rows[0], first.output, first.reduced_dims),
            (rows[1], second.inputs[slot], second.absent_dims(slot)),
        )
    )
    key = np.concatenate([before.codes(), after.codes()]).tobytes()
    if key not in known:
        known[key] = match(before, after).kind
    known[like] = known[key]
    return known[like]
