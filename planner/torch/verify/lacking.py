"""How much ranks lack of what they read, counted from where the plan says that blocks lie. [items]

This is what messages between layers bring where no collective does it, for any blocks. It counts
boxes, and knows nothing of how they are sent.
"""

from __future__ import annotations

from collections import defaultdict

from costmodels.graph import Graph
from planner.plan.sharding import Sharding
from planner.torch.apply.layout import Box, Layout, box_size, common_box, layout_of


def lacking_numbers(source: Layout, target: tuple[Box, ...]) -> tuple[float, float]:
    """Numbers that the busiest rank lacks: of all summands, or of sums that are made first.

    Parameters
    ----------
    source
        Where a tensor lies.
    target
        The box that each rank gets of it.
    """
    holders = dict(zip(source.holders, source.boxes, strict=True))
    sums: dict[Box, int] = defaultdict(int)
    for box in holders.values():
        sums[box] += 1
    direct = summed = 0.0
    for rank, wanted in enumerate(target):
        own = source.boxes[rank]
        mine = box_size(common_box(own, wanted))
        all_of = sum(box_size(common_box(box, wanted)) for box in holders.values())
        whole = sum(box_size(common_box(box, wanted)) for box in sums)
        members = sums[own]
        direct = max(direct, all_of - mine)
        summed = max(summed, 2 * box_size(own) * (members - 1) / members + whole - mine)
    return direct, summed


def shuffle_sizes(
    graph: Graph, sharding: Sharding, source: str, reader: str, *, backward: bool
) -> list[float]:
    """Numbers that messages between two layers bring, by one way and by another. [items]

    Parameters
    ----------
    graph, sharding
        The network, and where its tensors lie.
    source, reader
        The layers.
    backward
        Whether gradients go from the reader to the source.
    """
    placed = sharding.layers[reader]
    mesh = sharding.meshes[placed.mesh]
    totals = [0.0, 0.0]
    for edge in graph.producers[reader]:
        if edge.source != source:
            continue
        read = placed.inputs[edge.slot]
        if source in sharding.layers:
            writes = layout_of(sharding.layers[source].output, mesh)
        else:
            writes = _samples(graph, sharding)
        if backward:
            gradient = layout_of(read, mesh, read.gradient_sums)
            found = lacking_numbers(gradient, writes.boxes)
        else:
            found = lacking_numbers(writes, layout_of(read, mesh).boxes)
        totals = [one + more for one, more in zip(totals, found, strict=True)]
    return totals


def _samples(graph: Graph, sharding: Sharding) -> Layout:
    """Where samples lie: as the first layer that reads them has them."""
    for name, placed in sharding.layers.items():
        for edge in graph.producers[name]:
            if edge.source not in sharding.layers:
                mesh = sharding.meshes[placed.mesh]
                return layout_of(placed.inputs[edge.slot], mesh).whole
    raise AssertionError("a network reads samples")
