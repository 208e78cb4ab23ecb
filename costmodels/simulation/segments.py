"""Blocks of a network that can be computed again for the backward pass.

Those of transformers are what the names of their layers number (`h.3`). Of other networks the graph
says what they are: between two places that a single activation crosses lies a block, such as a
residual block, a layer of a DenseNet or an inception module. What is left are layers one after the
other, and blocks that hold so much that nothing is gained by computing them again as a whole:
these are cut behind every product with a weight, so that the outputs of products stay, and what is
normalised, activated and joined for the next product is computed again (Pleiss et al. 2017,
"Memory-Efficient Implementation of DenseNets"; Bulo et al. 2018, "In-Place Activated BatchNorm").
"""

from __future__ import annotations

from costmodels.graph import Graph
from costmodels.simulation.buckets import unit_of
from costmodels.strategy.blocks import is_transformer
from costmodels.strategy.cut import crossing_tensors

# A block with a larger part of all layers holds about as much while it is computed again as the
# network does without.
_LARGEST_PART = 0.5


def blocks_of_layers(graph: Graph) -> dict[str, str]:
    """For each layer the block that it is computed again with, by name; layers alone are their own.

    Parameters
    ----------
    graph
        The network.
    """
    if is_transformer(graph):
        return {layer.name: unit_of(layer.name) for layer in graph.compute_layers}
    return {name: block[0] for block in _structural_blocks(graph) for name in block}


def several_layers(blocks: dict[str, str]) -> dict[str, list[str]]:
    """The layers of the blocks that have several, in their order.

    Parameters
    ----------
    blocks
        As of `blocks_of_layers`.
    """
    members: dict[str, list[str]] = {}
    for name, block in blocks.items():
        members.setdefault(block, []).append(name)
    return {block: names for block, names in members.items() if len(names) > 1}


def _structural_blocks(graph: Graph) -> list[list[str]]:
    """Blocks by what the layers read, in the order of the forward pass."""
    layers, crossing = graph.compute_layers, crossing_tensors(graph)
    borders = [place for place, (count, _) in enumerate(crossing) if count <= 1 or not place]
    found: list[list[str]] = []
    run: list[str] = []
    behind = False  # whether the run lies behind a block
    for start, end in zip(borders, [*borders[1:], len(layers)], strict=True):
        names = [layer.name for layer in layers[start:end]]
        if 1 < len(names) <= _LARGEST_PART * len(layers):
            if run and behind:
                found[-1] += run  # such as the activation of a residual sum
            elif run:
                found.append(run)
            found.append(names)
            run, behind = [], True
            continue
        for layer in layers[start:end]:
            run.append(layer.name)
            if layer.multiplies_weight:
                found.append(run)
                run, behind = [], False
    return [*found, run] if run else found
