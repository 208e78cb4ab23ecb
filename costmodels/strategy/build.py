"""A complete strategy from a description that leaves most of it out.

Stages come first, then the splits of the layers that entries name, from which those of all others
follow along the data flow, then what subgraphs hand down to their layers. Of entries that say
different things of one layer the more specific one holds; equally specific ones must not contradict
each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from costmodels.distribution import Distribution, limit_reason
from costmodels.errors import InputError, closest
from costmodels.graph import DIMS, Graph, Layer
from costmodels.notes import Note
from costmodels.strategy.entries import Description, LayerEntry, SubgraphEntry
from costmodels.strategy.place import device_text, place_stages, selected
from costmodels.strategy.propagate import degrees_on_levels, propagate
from costmodels.strategy.strategy import MemoryConfig, Schedule, Stage, Strategy
from costmodels.strategy.tree import Node, Saying, strategy_tree, strongest

Partition = Mapping[str, int | tuple[int, ...]]


def _total(ways: int | tuple[int, ...]) -> int:
    return ways if isinstance(ways, int) else math.prod(ways)


def _check_partition(entry: LayerEntry) -> None:
    for dim, ways in entry.partition.items():
        if dim not in DIMS:
            raise InputError(
                f"{entry.label} must split dims of a layer but splits '{dim}'; use one of "
                f"{closest(dim, DIMS)}"
            )
        if min((ways,) if isinstance(ways, int) else ways, default=1) < 1:
            raise InputError(
                f"{entry.label} must split {dim} at least 1 way but splits it {ways} ways; "
                "correct it"
            )


def entry_distribution(entry: LayerEntry, shape: tuple[int, ...]) -> Distribution:
    """The split that an entry asks for over the devices of a stage.

    Ways at each level are taken as they are. Totals take what is left of the inner levels first,
    those of samples last.
    """
    ways = {dim: _total(w) for dim, w in entry.partition.items()}
    used, members = math.prod(ways.values()), math.prod(shape)
    if used > members:
        product = f"{' x '.join(map(str, ways.values()))} = " if len(ways) > 1 else ""
        raise InputError(
            f"{entry.label} must split at most as many ways as its stage has devices, {members}, "
            f"but splits {product}{used} ways; lower a degree"
        )
    rows = {dim: w for dim, w in entry.partition.items() if not isinstance(w, int)}
    for dim, row in rows.items():
        if len(row) != len(shape):
            raise InputError(
                f"{entry.label} must give {dim} a degree for each of the {len(shape)} levels of "
                f"the cluster (inside out) but gives {list(row)}; add or remove some"
            )
    taken = [math.prod(row[level] for row in rows.values()) for level in range(len(shape))]
    fits = all(size % part == 0 for size, part in zip(shape, taken, strict=True))
    free = [size // part for size, part in zip(shape, taken, strict=True)]
    totals = {dim: w for dim, w in entry.partition.items() if isinstance(w, int)}
    degrees = degrees_on_levels(totals, free) if fits else None
    if degrees is None:
        raise InputError(
            f"{entry.label} must divide the devices of its stage, {' x '.join(map(str, shape))} "
            "(inside out), but "
            f"{', '.join(f'{dim} = {_written(w)}' for dim, w in entry.partition.items())} does "
            "not; choose degrees whose product divides each level"
        )
    return Distribution(degrees={**rows, **degrees}, shape=shape)


def _written(ways: int | tuple[int, ...]) -> str:
    return str(ways) if isinstance(ways, int) else str(list(ways))


def _takes(layer: Layer, partition: Partition) -> bool:
    """Whether a layer has all dims that a partition splits."""
    return all(dim in layer.splittable or _total(ways) == 1 for dim, ways in partition.items())


def _partitioned(
    entry: LayerEntry, tree: Node, graph: Graph
) -> tuple[list[tuple[str, str]], list[str]]:
    """Layers that an entry splits, each with the node that it was found at, and those it cannot."""
    rows = [
        (name, node.path)
        for node in selected(tree, entry.name, entry.label)
        for name in node.own_layers
    ]
    if not entry.partition:
        raise InputError(
            f"{entry.label} must say how its layers are split but 'partition' is empty; write "
            "sample = 1 where they are not"
        )
    taking = [row for row in rows if _takes(graph.layers[row[0]], entry.partition)]
    if not taking:
        layer = graph.layers[rows[0][0]]
        dim = next(d for d, w in entry.partition.items() if not _takes(layer, {d: w}))
        have = ", ".join(d for d in DIMS if d in layer.splittable)
        raise InputError(
            f"{entry.label} must split dims that its layers have but '{layer.name}' "
            f"({layer.kind}) cannot be split by {dim}; use {have}"
        )
    return taking, [name for name, node in rows if (name, node) not in taking]


def _check_devices(entry: LayerEntry, name: str, stage: Stage) -> None:
    if entry.devices is not None and entry.devices != stage.group:
        raise InputError(
            f"{entry.label} must be on all devices of the stage of '{name}', "
            f"{device_text(stage.group)}, but is on {device_text(entry.devices)}; change its "
            "devices, or give the layer a stage of its own"
        )


def _entry_distributions(
    description: Description, tree: Node, graph: Graph, stages: Sequence[Stage]
) -> tuple[dict[str, Distribution], list[Note]]:
    """The splits of all layers that entries name, and notes."""
    stage_of = {name: stage for stage in stages for name in stage.layers}
    sayings: dict[str, list[Saying[Distribution]]] = {}
    notes: dict[Note, None] = {}  # in their order, each once
    for entry in description.layers:
        _check_partition(entry)
        taking, others = _partitioned(entry, tree, graph)
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            note = Note.of(
                "entry-leaves-out",
                entry=entry.label,
                layers=f"'{others[0]}'{more}",
                dims=" and ".join(entry.partition),
            )
            notes[note] = None
        for name, node in taking:
            stage = stage_of[name]
            _check_devices(entry, name, stage)
            saying = Saying(
                pattern=entry.name,
                node=node,
                value=entry_distribution(entry, stage.shape),
                label=entry.label,
            )
            sayings.setdefault(name, []).append(saying)
    named: dict[str, Distribution] = {}
    for name, rows in sayings.items():
        best = strongest(rows, name, "partition")
        named[name] = best.value
        reason = limit_reason(graph.layers[name], best.value)
        if reason is not None:
            raise InputError(f"{best.label} does not fit the network: {reason}; split it less")
        alike, devices = best.value.replication, math.prod(best.value.shape)
        if alike > 1:
            note = Note.of(
                "same-work",
                entry=best.label,
                ways=devices // alike,
                devices=devices,
                alike=alike,
            )
            notes[note] = None
    return named, list(notes)


def _handed_down(entries: Sequence[SubgraphEntry], tree: Node, what: str) -> dict[str, Saying[Any]]:
    """What subgraphs say of one setting of the layers below them."""
    sayings: dict[str, list[Saying[Any]]] = {}
    for entry in entries:
        value = getattr(entry, what)
        for node in selected(tree, entry.name, entry.label):
            for name in node.layers if value is not None else ():
                saying = Saying(pattern=entry.name, node=node.path, value=value, label=entry.label)
                sayings.setdefault(name, []).append(saying)
    return {name: strongest(rows, name, what) for name, rows in sayings.items()}


def _with_segments(stage: Stage, recompute: Mapping[str, Saying[bool]], label: str) -> Stage:
    """A stage that computes again what its subgraphs say, besides its own segments."""
    explicit = {name for segment in stage.recompute for name in segment}
    segments: list[list[str]] = []
    before = None
    for name in stage.layers:
        saying = recompute.get(name)
        if saying is None or not saying.value:
            if saying is not None and name in explicit:
                raise _two_places(label, saying.label, name)
            before = None
            continue
        if name in explicit:
            raise _two_places(label, saying.label, name)
        # what a deeper entry takes out of a subgraph leaves segments before and after
        if before != saying.node:
            segments.append([])
        segments[-1].append(name)
        before = saying.node
    rows = [*stage.recompute, *map(tuple, segments)]
    return replace(stage, recompute=tuple(sorted(rows, key=lambda r: stage.layers.index(r[0]))))


def _two_places(first: str, second: str, name: str) -> InputError:
    return InputError(
        f"{first} and {second} must not both say whether layer '{name}' is recomputed but do; "
        "remove one"
    )


def _memory_configs(
    entries: Sequence[SubgraphEntry], tree: Node, graph: Graph
) -> dict[str, MemoryConfig]:
    """Memory configs of the layers that have a weight of which anything is said."""
    fields = ("weights", "gradients", "state", "shard_size")
    said = {what: _handed_down(entries, tree, what) for what in fields}
    result = {}
    for layer in graph.compute_layers:
        values = {w: rows[layer.name].value for w, rows in said.items() if layer.name in rows}
        if layer.parameters and values:
            result[layer.name] = MemoryConfig(**values)
    return result


def _schedule(description: Description, stages: Sequence[Stage]) -> Schedule:
    shared = len({stage.group for stage in stages}) < len(stages)
    kind = description.kind or ("interleaved" if shared else "1f1b")
    if shared and kind != "interleaved":
        raise InputError(
            f"stages that share devices must be scheduled as 'interleaved' but the kind of "
            f"[schedule] is '{kind}'; change it, or give each stage devices of its own"
        )
    return Schedule(
        kind=kind,
        micro_batches=description.micro_batches,
        max_in_flight=description.max_in_flight,
    )


def build_strategy(
    description: Description,
    graph: Graph,
    shape: Sequence[int],
    *,
    weights: Mapping[str, float] | None = None,
) -> tuple[Strategy, tuple[Note, ...]]:
    """The strategy that a description stands for.

    Parameters
    ----------
    description
        What is written down.
    graph
        The network at the batch of one micro-batch.
    shape
        All devices: members of each level, from the inside out. [items]
    weights
        What a network that is cut evenly is balanced by, see `cut_stages`.

    Returns
    -------
        The strategy, and notes on what it does that one may not expect.

    Raises
    ------
    InputError
        When entries contradict each other or do not fit the network or the devices.
    """
    shape = tuple(shape)
    tree = strategy_tree([layer.name for layer in graph.compute_layers])
    stages = place_stages(description, tree, graph, shape, weights)
    schedule = _schedule(description, stages)
    named, notes = _entry_distributions(description, tree, graph, stages)
    distributions, more = propagate(graph, stages, named, default=description.default)
    recompute = _handed_down(description.subgraphs, tree, "recompute")
    labels = [entry.label for entry in description.stages] or [""] * len(stages)
    strategy = Strategy(
        stages=tuple(
            _with_segments(stage, recompute, label)
            for stage, label in zip(stages, labels, strict=True)
        ),
        distributions=distributions,
        schedule=schedule,
        memory=_memory_configs(description.subgraphs, tree, graph),
        gather_again=description.gather_again,
        ring_attention=description.ring_attention,
        keep_products=description.keep_products,
        offload=description.offload,
    )
    strategy.check(graph)
    if strategy.num_devices < math.prod(shape):
        devices = math.prod(shape)
        notes.append(Note.of("idle-devices", idle=devices - strategy.num_devices, devices=devices))
    return strategy, (*notes, *more)
