"""What recomputation changes of a micro-batch: forward passes that run again, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.graph import Graph
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.recomputation import computed_again
from costmodels.simulation.segments import blocks_of_layers

Floats = NDArray[np.float64]


class Again(Struct, frozen=True, kw_only=True, eq=False):
    """What is computed again, layer by layer.

    Parameters
    ----------
    computed
        Whether the forward pass of a layer runs again.
    kept
        What waits for the backward pass even so. [B]
    beside
        What is there again of layers before it, in the backward pass of each layer. [B]
    """

    computed: NDArray[np.bool_]
    kept: Floats
    beside: Floats


def units_of(layers: Sequence[str]) -> dict[str, list[int]]:
    """The places of the layers of every unit, such as a block, in their order."""
    units: dict[str, list[int]] = {}
    for place, name in enumerate(layers):
        units.setdefault(unit_of(name), []).append(place)
    return units


class Recomputation:
    """What can be computed again of one network.

    Parameters
    ----------
    graph
        The network.
    blocks
        The places of the layers of every block.
    stops_early
        Whether it ends with the last tensor that a backward pass reads.
    """

    def __init__(self, graph: Graph, blocks: Sequence[Sequence[int]], stops_early: bool) -> None:
        layers = [layer.name for layer in graph.compute_layers]
        self.attends = np.array([graph.layers[name].kind == "attention" for name in layers])
        self.blocks, block_of = blocks, blocks_of_layers(graph)
        self.inside = np.zeros(len(layers), dtype=bool)
        self.computed = np.zeros(len(layers), dtype=bool)
        self.leaves = np.zeros(len(layers), dtype=bool)
        for places in self.blocks:
            names = [layers[place] for place in places]
            again = computed_again(graph, names, {}, stops_early)
            self.inside[places] = True
            self.computed[places] = [name in again for name in names]
            for place, name in zip(places, names, strict=True):
                readers = graph.consumers[name]
                # what other units read stays
                self.leaves[place] = any(block_of[e.target] != block_of[name] for e in readers)

    def none(self, kept: Floats) -> Again:
        """Nothing is computed again."""
        nothing = np.zeros(len(kept))
        return Again(computed=nothing.astype(bool), kept=kept, beside=nothing)

    def selective(self, kept: Floats, output: Floats) -> Again:
        """Attention is computed again; what the next layer reads of it stays. [B]"""
        left = np.where(self.attends, np.minimum(kept, output), kept)
        return Again(computed=self.attends, kept=left, beside=np.zeros(len(kept)))

    def full(self, kept: Floats, read: Floats) -> Again:
        """Blocks are computed again from what they read of others. [B]"""
        left = np.where(self.inside, np.where(self.leaves, read, 0.0), kept)
        beside = np.zeros(len(kept))
        for places in self.blocks:
            saved = kept[places] - left[places]
            # by the backward pass of a layer, what those behind it kept is gone
            beside[places] = np.cumsum(saved) - saved
        return Again(computed=self.computed, kept=left, beside=beside)
