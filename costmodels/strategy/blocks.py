"""Blocks of a network, which its stages are made of.

A block is what lies under one number, as `h.3`. The stages of a transformer have equally many of
them, as in Megatron-LM; what comes before the first block is in the first stage and what comes
after the last in the last, and is not balanced. Where blocks do not divide, stages of whole blocks
are as equal in weight as can be. Other networks are cut between any two layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy.cut import cut_evenly, cut_graph
from costmodels.units import format_items


def is_transformer(graph: Graph) -> bool:
    """Whether a network has attention, so that these splits are for it."""
    return any(layer.kind == "attention" for layer in graph.compute_layers)


def is_stack_on_tokens(kinds: Mapping[str, str]) -> bool:
    """Whether a network is one stack of blocks with attention on what it embeds.

    Images are not embedded, and an encoder and a decoder are two stacks.

    Parameters
    ----------
    kinds
        Of each layer by its name, in their order.
    """
    blocks = {name: block for name in kinds if (block := block_of(name)) is not None}
    stacks = {block.rpartition(".")[0] for block in blocks.values()}
    before = itertools.takewhile(lambda name: name not in blocks, kinds)
    embeds = any(kinds[name] == "embedding" for name in before)
    return "attention" in kinds.values() and len(stacks) == 1 and embeds


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


def _by_blocks(graph: Graph, counts: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Stages of so many blocks each: what comes before them in the first, what after in the last.

    What lies between blocks, such as the embedding of a decoder, is with those before it.
    """
    names = [layer.name for layer in graph.compute_layers]
    numbers = block_numbers(names)
    ends = list(itertools.accumulate(counts))
    stages: list[list[str]] = [[] for _ in counts]
    stage = 0
    for name in names:
        if name in numbers:
            stage = next(place for place, end in enumerate(ends) if numbers[name] < end)
        stages[stage].append(name)
    # a stage without blocks is one of what comes before or after them
    if not stages[-1]:
        outside = [name for name in stages[stage] if name not in numbers]
        last = [n for n in outside if names.index(n) > max(map(names.index, numbers), default=0)]
        stages[stage] = [name for name in stages[stage] if name not in last]
        stages[-1] = last
    return tuple(map(tuple, stages))


def cut_stages(
    graph: Graph,
    parts: int,
    weights: Mapping[str, float] | None = None,
    blocks: str | Sequence[int] = "equal",
) -> tuple[tuple[str, ...], ...]:
    """Stages of a network.

    Parameters
    ----------
    graph
        The network.
    parts
        Stages. [items]
    weights
        As of `cut_graph`.
    blocks
        Of a transformer: "equal" for equally many in every stage or, where they do not divide,
        whole ones of the most equal weight, "balanced" for stages of equal weights, cut between
        any two layers, or how many each stage has. [items]

    Raises
    ------
    InputError
        When a transformer has fewer blocks than there are stages, or a network fewer layers, or
        the numbers of blocks are not as many, or not all of them.
    """
    if not is_transformer(graph):
        return cut_graph(graph, parts, weights)
    count = len(set(block_numbers([layer.name for layer in graph.compute_layers]).values()))
    if parts > max(count, 1):
        raise InputError(
            f"{graph.name} has {count} blocks, and every stage must have one, but {parts} stages "
            "are asked for; choose fewer"
        )
    if not isinstance(blocks, str):
        if len(blocks) != parts or sum(blocks) != count or 0 in blocks[:-1]:
            raise InputError(
                f"the {count} blocks of {graph.name} must be dealt out to "
                f"{format_items(parts, 'stage')}, each but the last with one or more, but "
                f"are {', '.join(map(str, blocks))}; correct them"
            )
        return _by_blocks(graph, blocks)
    if blocks == "equal" and count:
        return _by_blocks(graph, _dealt_blocks(graph, count, parts, weights))
    return cut_graph(graph, parts, weights)


def _dealt_blocks(
    graph: Graph, count: int, parts: int, weights: Mapping[str, float] | None
) -> Sequence[int]:
    """Blocks of each stage: equally many or, where they do not divide, of the most equal weight.

    Parameters
    ----------
    graph, count
        The network, and how many blocks it has. [items]
    parts, weights
        As of `cut_stages`.
    """
    if count % parts == 0:
        return [count // parts] * parts
    each, block = [0.0] * count, 0
    numbers = block_numbers([layer.name for layer in graph.compute_layers])
    for layer in graph.compute_layers:
        block = numbers.get(layer.name, block)
        each[block] += float(layer.macs if weights is None else weights.get(layer.name, 0.0))
    starts = cut_evenly(each, parts, [0.0] * count)
    assert starts is not None, "there are no fewer blocks than stages"
    return [end - start for start, end in itertools.pairwise((*starts, count))]
