"""Blocks of a network, which its stages are made of.

A block is what lies under one number, as `h.3`. The stages of a transformer have equally many of
them, as in Megatron-LM; what comes before the first block is in the first stage and what comes
after the last in the last, and is not balanced. Where blocks do not divide, and in other networks,
stages are cut by the weights of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy.cut import cut_graph


def is_transformer(graph: Graph) -> bool:
    """Whether a network has attention, so that these splits are for it."""
    return any(layer.kind == "attention" for layer in graph.compute_layers)


def block_numbers(names: Sequence[str]) -> dict[str, int]:
    """The number of the block of each layer that lies in one, counted from 0 over all stacks."""
    blocks: dict[str, int] = {}
    result: dict[str, int] = {}
    for name in names:
        block = block_of(name)
        if block is not None:
            result[name] = blocks.setdefault(block, len(blocks))
    return result


def block_of(name: str) -> str | None:
    """The block that a layer lies in: its name up to the first number; None outside of blocks."""
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        if part.isdecimal():
            return ".".join(parts[: place + 1])
    return None


def _equal_parts(names: Sequence[str], parts: int) -> tuple[tuple[str, ...], ...] | None:
    """Equal numbers of blocks in every stage, what comes before them first, what after last.

    Parameters
    ----------
    names
        Layers in the order of the forward pass.
    parts
        Stages. [items]

    Returns
    -------
        None where blocks do not divide, or there are none.
    """
    numbers: Mapping[str, int] = block_numbers(names)
    count = len(set(numbers.values()))
    if not count or count % parts:
        return None
    stages: list[list[str]] = [[] for _ in range(parts)]
    stage = 0
    for name in names:
        if name in numbers:
            stage = numbers[name] * parts // count
        stages[stage].append(name)
    return tuple(map(tuple, stages))


def cut_stages(
    graph: Graph, parts: int, weights: Mapping[str, float] | None = None
) -> tuple[tuple[str, ...], ...]:
    """Stages of equally many blocks where there are any that divide, else of equal weights.

    Parameters
    ----------
    graph
        The network.
    parts
        Stages. [items]
    weights
        As of `cut_graph`.

    Raises
    ------
    InputError
        When a transformer has fewer blocks than there are stages, or a network fewer layers.
    """
    if not is_transformer(graph):
        return cut_graph(graph, parts, weights)
    names = [layer.name for layer in graph.compute_layers]
    blocks = len(set(block_numbers(names).values()))
    if parts > max(blocks, 1):
        raise InputError(
            f"{graph.name} has {blocks} blocks, and every stage must have one, but {parts} stages "
            "are asked for; choose fewer"
        )
    equal = _equal_parts(names, parts)
    return cut_graph(graph, parts, weights) if equal is None else equal
