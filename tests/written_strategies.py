"""Networks and strategies as they are written down."""

from __future__ import annotations

from machines import graph as make_graph

from costmodels.graph import Graph
from costmodels.strategy import (
    Description,
    LayerEntry,
    StageEntry,
    build_strategy,
)

IMAGE = {"channel": 3, "height": 16, "width": 16}


def residual(batch: int = 8) -> Graph:
    """A residual block between two convolutions, with a fork that is joined by channels."""
    conv = {"filters": 8, "kernel": 3, "padding": 1}
    return make_graph(
        IMAGE,
        [
            ("stem", "conv", conv),
            ("block.conv", "conv", conv),
            ("block.bn", "batch_norm", {}),
            ("block.add", "add", {}, ["block.bn", "stem"]),
            ("fork.conv", "conv", conv),
            ("fork.concat", "concat", {}, ["fork.conv", "block.add"]),
            ("pool", "global_pool", {}),
            ("fc", "linear", {"filters": 10}),
            ("loss", "loss", {}),
        ],
        batch,
    )


def entry(name: str, **partition: int | tuple[int, ...]) -> LayerEntry:
    return LayerEntry(name=name, partition=partition, label=f'[[layer]] "{name}"')


def splits(description: Description, graph: Graph, *shape: int) -> dict[str, str]:
    strategy, _ = build_strategy(description, graph, shape)
    return {name: str(distribution) for name, distribution in strategy.distributions.items()}


def stages(*rows: tuple[tuple[str, ...], tuple[int, int] | None]) -> tuple[StageEntry, ...]:
    return tuple(
        StageEntry(layers=layers, devices=devices, label=f"[[stage]] {i}")
        for i, (layers, devices) in enumerate(rows, start=1)
    )
