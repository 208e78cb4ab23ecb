"""What is computed again for the backward pass, from what `--recompute` says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.simulation.segments import blocks_of_layers, several_layers
from costmodels.strategy import Strategy
from costmodels.strategy.blocks import block_numbers
from costmodels.strategy.place import selected
from costmodels.strategy.tree import strategy_tree
from planner.request.inputs.recompute import block_range

# What a request may say, checked (`planner.request.inputs.recompute.recomputed`).
Recomputed = str | int | bool | Sequence[str | int]
Segments = list[tuple[str, ...]]


def with_recomputation(strategy: Strategy, graph: Graph, what: Recomputed) -> Strategy:
    """The strategy with activations that are computed again.

    Parameters
    ----------
    strategy, graph
        The strategy, and the network at one micro-batch.
    what
        "none"; "selective", the attention layers; "operations", every block but what is costly of
        it; "full", every block of several layers; of how many blocks of a stage, the first ones;
        or numbers of blocks and names of layers, between commas.

    Raises
    ------
    InputError
        When there are no such blocks or layers.
    """
    if what in ("none", 0):
        return strategy
    listed = isinstance(what, str) and what not in _WORDS
    chosen = _listed_segments(graph, str(what)) if listed else None
    stages, blocks = [], several_layers(blocks_of_layers(graph)).values()
    for stage in strategy.stages:
        if what == "selective":
            attention = (n for n in stage.layers if graph.layers[n].kind == "attention")
            segments: Segments = [(name,) for name in attention]
        else:
            # of a block that is cut, each stage computes its part again
            inside = set(stage.layers)
            wanted = blocks if chosen is None else chosen
            parts = (tuple(n for n in names if n in inside) for names in wanted)
            segments = [names for names in parts if names]
            if isinstance(what, int):
                segments = segments[:what]
        stages.append(replace(stage, recompute=tuple(segments)))
    return replace(strategy, stages=tuple(stages), keep_products=what == "operations")


_WORDS = ("selective", "operations", "full")


def _listed_segments(graph: Graph, text: str) -> Segments:
    """Segments by numbers of blocks, and by names as in strategy files, each layer in the first."""
    names = [layer.name for layer in graph.compute_layers]
    found: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for key, layers in _named_layers(names, text):
        left = tuple(name for name in layers if name not in taken)
        taken.update(left)
        if left:
            found[key] = left
    order = {name: place for place, name in enumerate(names)}
    return sorted(found.values(), key=lambda segment: order[segment[0]])


def _named_layers(names: list[str], text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What each part of the text names."""
    numbers = block_numbers(names)
    tree = strategy_tree(names)
    last = max(numbers.values(), default=-1)
    for part in text.split(","):
        bounds = block_range(part)
        if bounds is None:
            for node in selected(tree, part, "what is computed again (--recompute)"):
                yield node.path, node.own_layers
            continue
        if bounds[1] > last:
            has = f"blocks 0 to {last}" if last >= 0 else "no blocks"
            raise InputError(
                f"blocks that are computed again (--recompute) must be some of the network but "
                f"'{part}' is not, as it has {has}; correct it"
            )
        for number in range(bounds[0], bounds[1] + 1):
            yield f"block {number}", tuple(n for n, of in numbers.items() if of == number)
