"""A short description of a strategy, from which the same strategy follows.

Splits that follow from others are left out: layers with a product of matrices are named first, and
then only what would come out otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.graph import DIMS, Graph
from costmodels.strategy.build import build_strategy
from costmodels.strategy.entries import Description, LayerEntry, StageEntry, SubgraphEntry
from costmodels.strategy.propagate import degrees_on_levels, propagate
from costmodels.strategy.strategy import MemoryConfig, Strategy
from costmodels.strategy.tree import Node, compress, find_nodes, strategy_tree

_NAMED_FIRST = ("conv", "linear", "embedding", "attention")


def _layer_patterns(tree: Node, layers: set[str]) -> tuple[str, ...]:
    """Patterns that select these layers and no others."""

    def walk(node: Node) -> list[str]:
        if node.path and not node.is_layer and layers.issuperset(node.layers):
            return [node.path]
        own = [node.path] if node.is_layer and node.path in layers else []
        return own + [path for child in node.children.values() for path in walk(child)]

    return compress(tree, walk(tree))


def _partition(distribution: Distribution) -> dict[str, int | tuple[int, ...]]:
    """Ways of each dim: in all where these go to the same levels, else at each level."""
    dims = [dim for dim in DIMS if dim in distribution.degrees]
    totals = {dim: distribution.degree(dim) for dim in dims}
    if degrees_on_levels(totals, distribution.shape) == dict(distribution.degrees):
        return dict(totals)
    return {dim: distribution.degrees[dim] for dim in dims}


def _named_distributions(strategy: Strategy, graph: Graph) -> dict[str, Distribution]:
    """Layers whose splits must be given, so that those of all others follow."""
    named = {
        layer.name: strategy.distributions[layer.name]
        for layer in graph.compute_layers
        if layer.kind in _NAMED_FIRST
    }
    while True:
        found, _ = propagate(graph, strategy.stages, named)
        wrong = [name for name in found if found[name] != strategy.distributions[name]]
        if not wrong:
            return {name: d for name, d in strategy.distributions.items() if name in named}
        named |= {name: strategy.distributions[name] for name in wrong}


def _layer_entries(tree: Node, named: Mapping[str, Distribution]) -> tuple[LayerEntry, ...]:
    groups: list[tuple[dict[str, int | tuple[int, ...]], list[str]]] = []
    for name, distribution in named.items():
        # a file must say that a layer is not split, lest it was forgotten
        partition = _partition(distribution) or {"sample": 1}
        for known, names in groups:
            if known == partition:
                names.append(name)
                break
        else:
            groups.append((partition, [name]))
    entries = [
        LayerEntry(name=pattern, partition=partition)
        for partition, names in groups
        for pattern in compress(tree, names)
    ]
    order = {name: place for place, name in enumerate(named)}
    return tuple(
        sorted(entries, key=lambda e: min(order[n.path] for n in find_nodes(tree, e.name)))
    )


def _memory_entries(
    tree: Node, graph: Graph, memory: Mapping[str, MemoryConfig]
) -> tuple[SubgraphEntry, ...]:
    weighted = [layer.name for layer in graph.compute_layers if layer.parameters]
    configs = {name: memory[name] for name in weighted if name in memory}
    if not configs:
        return ()
    kinds = list(dict.fromkeys(configs.values()))
    rows = [("", kinds[0])]
    if len(kinds) > 1 or len(configs) < len(weighted):
        # each layer is named: what holds for `a` would hold for `a.b` below it, too
        rows = [
            (pattern, kind)
            for kind in kinds
            for pattern in compress(tree, [n for n, config in configs.items() if config == kind])
        ]
    return tuple(
        SubgraphEntry(
            name=name,
            weights=c.weights,
            gradients=c.gradients,
            state=c.state,
            shard_size=c.shard_size,
        )
        for name, c in rows
    )


def _segment_nodes(tree: Node, segments: Sequence[tuple[str, ...]]) -> list[str] | None:
    """The subgraphs that segments are of, or None where one is no subgraph."""
    nodes = list(tree.nodes())
    paths: dict[str, None] = {}
    for segment in segments:
        around = [n.path for n in nodes if n.path and set(segment) <= set(n.layers)]
        if not around:
            return None
        paths[max(around, key=len)] = None
    return list(paths)


def describe_strategy(strategy: Strategy, graph: Graph, shape: Sequence[int]) -> Description:
    """What to write down of a strategy.

    Parameters
    ----------
    strategy
        The strategy.
    graph
        The network at the batch of one micro-batch.
    shape
        All devices: members of each level, from the inside out. [items]
    """
    tree = strategy_tree([layer.name for layer in graph.compute_layers])
    several = len(strategy.stages) > 1 or strategy.num_devices < math.prod(shape)
    plain = tuple(
        StageEntry(layers=_layer_patterns(tree, set(stage.layers)), devices=stage.group)
        for stage in strategy.stages
    )
    memory = _memory_entries(tree, graph, strategy.memory)
    segments = [segment for stage in strategy.stages for segment in stage.recompute]
    description = Description(
        stages=plain if several else (),
        layers=_layer_entries(tree, _named_distributions(strategy, graph)),
        kind=strategy.schedule.kind,
        micro_batches=strategy.schedule.micro_batches,
        max_in_flight=strategy.schedule.max_in_flight,
        gather_again=strategy.gather_again,
        ring_attention=strategy.ring_attention,
        keep_products=strategy.keep_products,
        offload=strategy.offload,
    )
    nodes = _segment_nodes(tree, segments)
    if nodes is not None:
        recompute = tuple(SubgraphEntry(name=n, recompute=True) for n in compress(tree, nodes))
        result = replace(description, subgraphs=(*recompute, *memory))
        built, _ = build_strategy(result, graph, shape)
        if [s.recompute for s in built.stages] == [s.recompute for s in strategy.stages]:
            return result
    return replace(
        description,
        stages=tuple(
            replace(entry, recompute=tuple(_layer_patterns(tree, set(s)) for s in stage.recompute))
            for entry, stage in zip(plain, strategy.stages, strict=True)
        ),
        subgraphs=memory,
    )
