"""Which parts of a network wait for each other: blocks in series, and the longest chains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.graph import Graph
from planner.joint.cuts import Cuts

Floats = NDArray[np.float64]


def blocks_in_series(graph: Graph, cuts: Cuts) -> bool:
    """Whether each block of a network reads what the one before it makes, as what is after does."""
    if not cuts.first:
        return False
    block = np.searchsorted(cuts.pieces, np.arange(len(cuts.place)), side="right") - 1
    reads = {
        (block[cuts.place[edge.source]], block[cuts.place[name]])
        for name in cuts.place
        for edge in graph.producers[name]
        if edge.source in cuts.place
    }
    return all((number - 1, number) in reads for number in range(1, len(cuts.pieces)))


def in_series(graph: Graph) -> list[bool]:
    """Of each layer, whether the last one waits for it."""
    layers = graph.compute_layers
    needed = {layers[-1].name}
    for layer in reversed(layers):
        if layer.name in needed:
            needed.update(edge.source for edge in graph.producers[layer.name])
    return [layer.name in needed for layer in layers]


def series_starts(graph: Graph) -> list[int]:
    """The first layers of blocks of which each waits for the whole one before it, as 0, 4, 9.

    Layers that the last one does not wait for count as none.
    """
    layers, counts = graph.compute_layers, in_series(graph)
    place = {layer.name: number for number, layer in enumerate(layers)}
    starts, oldest, following = [], len(layers), len(layers)
    for number in reversed(range(len(layers))):
        if not counts[number]:
            continue
        # all that follows reads of this layer, and of none before it
        if following < len(layers) and oldest == number:
            starts.append(following)
        inputs = [place.get(e.source, -1) for e in graph.producers[layers[number].name]]
        oldest, following = min([oldest, *inputs] if inputs else [-1]), number
    return [0, *reversed(starts)]


def longest_series(graph: Graph, times: Floats, starts: Sequence[int]) -> Floats:
    """The longest chain of layers in each block, each of which waits for the one before. [s]

    Parameters
    ----------
    graph
        The network.
    times
        What each of its layers takes in both passes, in several cases: (cases, layers). [s]
    starts
        The first layer of each block.

    Returns
    -------
    (cases, blocks)
    """
    place: dict[str, int] = {}
    begins = set(starts)
    ends = np.array(times.T, order="C")
    for number, layer in enumerate(graph.compute_layers):
        if number in begins:
            place.clear()
        for edge in graph.producers[layer.name]:
            if edge.source in place:
                waits = ends[place[edge.source]] + times[:, number]
                np.maximum(ends[number], waits, out=ends[number])
        place[layer.name] = number
    found: Floats = np.maximum.reduceat(ends, starts).T
    return found
