"""Splits of all layers from those of a few (Proteus, VII: strategy propagation).

A layer that nothing is said about takes the layouts that its inputs lie in: a dim that indexes a
split axis of an input is split likewise, so that nothing has to move. Partial sums are taken as
reduced, which leaves replicas. Where nothing upstream says anything, the consumers do: their
inputs' layouts become that of the output. Splits of samples are inherited first. What a layer
cannot split is replicated there, with a note. Ranks that no split uses are replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from costmodels.distribution import Distribution, limit_reason, shared_distribution
from costmodels.errors import InputError
from costmodels.graph import DIMS, Graph, Layer, Tensor
from costmodels.notes import Fact, Note
from costmodels.strategy.strategy import Stage

Degrees = Mapping[str, tuple[int, ...]]


def inner_first(ways: int, free: Sequence[int]) -> tuple[int, ...] | None:
    """Ways of one dim at each level, inner levels as far as they go; None where it cannot divide.

    Parameters
    ----------
    ways
        How often the dim is split in all. [ways]
    free
        Members of each level that no other dim uses, from the inside out. [items]
    """
    row = []
    for members in free:
        row.append(math.gcd(ways, members))
        ways //= row[-1]
    return tuple(row) if ways == 1 else None


def degrees_on_levels(totals: Mapping[str, int], shape: Sequence[int]) -> Degrees | None:
    """Ways of each dim at each level: samples get what the other dims, inside, leave over.

    Parameters
    ----------
    totals
        Ways of each dim over all levels. [ways]
    shape
        Members of each level, from the inside out. [items]

    Returns
    -------
        None where the ways do not divide the levels.
    """
    free, result = list(shape), {}
    # the last dims of the canonical order are the innermost within a level, so across levels too
    for dim in sorted(totals, key=DIMS.index, reverse=True):
        row = inner_first(totals[dim], free)
        if row is None:
            return None
        result[dim] = row
        free = [members // ways for members, ways in zip(free, row, strict=True)]
    return result


def data_parallel(samples: int, shape: Sequence[int]) -> Distribution:
    """Samples over all devices, from the outermost level in, as far as there are enough of them."""
    row, left = [], samples
    for members in reversed(shape):
        ways = max(n for n in range(1, members + 1) if members % n == 0 and n <= left)
        row.append(ways)
        left //= ways
    return Distribution(degrees={"sample": tuple(reversed(row))}, shape=tuple(shape))


class _Notes:
    """Notes, each with the layers that it is true of."""

    def __init__(self) -> None:
        self._layers: dict[Note, list[str]] = {}

    def add(self, layer: str, kind: str, **facts: Fact) -> None:
        """Note facts of a kind about one more layer."""
        self._layers.setdefault(Note.of(kind, **facts), []).append(layer)

    def all(self) -> tuple[Note, ...]:
        """Every note once, with the first of its layers and the number of the others."""
        rows = []
        for note, layers in self._layers.items():
            more = f" (and {len(layers) - 1} more)" if len(layers) > 1 else ""
            rows.append(Note.of(note.kind, **dict(note.facts), layers=f"{layers[0]}{more}"))
        return tuple(rows)


def _layout(tensor: Tensor, distribution: Distribution) -> Degrees:
    """Ways of each split axis of a tensor, by the axis."""
    return {
        axis.name: distribution.degrees[axis.dim]
        for axis in tensor.axes
        if axis.dim is not None and axis.dim in distribution.degrees
    }


def _inherit(
    layer: Layer, shape: tuple[int, ...], wanted: Iterable[tuple[Tensor, Degrees]], notes: _Notes
) -> Distribution:
    """The split of a layer whose tensors lie in the given layouts."""
    rows: list[tuple[str, tuple[int, ...]]] = []
    whole: dict[str, int] = {}
    for tensor, layout in wanted:
        dim_of = {axis.name: axis.dim for axis in tensor.axes}
        for axis, ways in layout.items():
            dim = dim_of.get(axis)
            if dim is None:
                whole[axis] = math.prod(ways)
            else:
                rows.append((dim, ways))
    # samples first, of several the finest; the others in the order of the inputs
    rows.sort(key=lambda row: (row[0] != "sample", -math.prod(row[1]) * (row[0] == "sample")))
    split: dict[str, tuple[int, ...]] = {}
    for dim, ways in rows:
        if dim in split:
            continue
        total = math.prod(ways)
        reason = limit_reason(layer, shared_distribution(((dim, ways),), shape))
        if reason is not None:
            notes.add(layer.name, "split-not-possible", dim=dim, ways=total, layer_kind=layer.kind)
            continue
        used = [math.prod(row[level] for row in split.values()) for level in range(len(shape))]
        if any(n % (u * w) for n, u, w in zip(shape, used, ways, strict=True)):
            others = " and ".join(split)
            notes.add(layer.name, "devices-split-already", dim=dim, ways=total, others=others)
            continue
        split[dim] = ways
    known = {
        axis.name
        for tensor in (*layer.inputs, layer.output)
        for axis in tensor.axes
        if axis.dim in split
    }
    for axis, total in whole.items():
        if axis not in known:
            notes.add(layer.name, "axis-needed-whole", axis=axis, ways=total, layer_kind=layer.kind)
    return shared_distribution(tuple(split.items()), shape)


def _inherit_from_producers(
    graph: Graph,
    known: dict[str, Distribution],
    shapes: Mapping[str, tuple[int, ...]],
    notes: _Notes,
) -> bool:
    """Give layers what their producers say; whether any layer was given something."""
    before = len(known)
    for layer in graph.compute_layers:
        if layer.name in known:
            continue
        shape = shapes[layer.name]
        wanted = [
            (layer.inputs[edge.slot], _layout(graph.layers[edge.source].output, known[edge.source]))
            for edge in graph.producers[layer.name]
            if edge.source in known and known[edge.source].shape == shape
        ]
        if wanted:
            known[layer.name] = _inherit(layer, shape, wanted, notes)
    return len(known) > before


def _inherit_from_consumers(
    graph: Graph,
    known: dict[str, Distribution],
    shapes: Mapping[str, tuple[int, ...]],
    notes: _Notes,
) -> bool:
    """Give layers what their consumers say; whether any layer was given something."""
    before = len(known)
    for layer in reversed(graph.compute_layers):
        if layer.name in known:
            continue
        shape = shapes[layer.name]
        wanted = [
            (layer.output, _layout(graph.layers[edge.target].inputs[edge.slot], known[edge.target]))
            for edge in graph.consumers[layer.name]
            if edge.target in known and known[edge.target].shape == shape
        ]
        if wanted:
            known[layer.name] = _inherit(layer, shape, wanted, notes)
    return len(known) > before


def propagate(
    graph: Graph,
    stages: Sequence[Stage],
    seeds: Mapping[str, Distribution],
    *,
    default: str = "data",
) -> tuple[dict[str, Distribution], tuple[Note, ...]]:
    """A distribution for every layer from those of some.

    Splits go from stage to stage where the stages have the same shape, and never against a layer
    whose split is given.

    Parameters
    ----------
    graph
        The network at the batch of one micro-batch.
    stages
        Stages that hold every layer once.
    seeds
        Distributions of some layers, over the devices of their stages.
    default
        What a layer gets that nothing reaches: "data" splits samples over all devices of the
        stage, "replicated" splits nothing.

    Returns
    -------
        The distributions in the order of the forward pass, and notes on splits that end.

    Raises
    ------
    InputError
        When a given distribution does not fit its layer.
    """
    if default not in ("data", "replicated"):
        raise InputError.rule(
            "what nothing is said about",
            "be split as 'data' or 'replicated'",
            f"'{default}'",
            "choose one of the two",
        )
    shapes = {name: stage.shape for stage in stages for name in stage.layers}
    for name, distribution in seeds.items():
        reason = limit_reason(graph.layers[name], distribution)
        if reason is not None:
            raise InputError(f"the strategy does not fit the network: {reason}; split it less")
    known, notes = dict(seeds), _Notes()
    passes = (_inherit_from_producers, _inherit_from_consumers)
    # from the front again after every layer that only its consumers could tell
    while any(inherit(graph, known, shapes, notes) for inherit in passes):
        pass
    for layer in graph.compute_layers:
        if layer.name not in known:
            known[layer.name] = _default_split(layer, shapes[layer.name], default, notes)
    return {layer.name: known[layer.name] for layer in graph.compute_layers}, notes.all()


def _default_split(
    layer: Layer, shape: tuple[int, ...], default: str, notes: _Notes
) -> Distribution:
    """The split of a layer that nothing reaches."""
    if default == "replicated":
        return Distribution(degrees={}, shape=shape)
    samples = layer.dims["sample"]
    split = data_parallel(samples, shape)
    if split.replication > 1:
        notes.add(layer.name, "too-few-samples", samples=samples, devices=math.prod(shape))
    return split
