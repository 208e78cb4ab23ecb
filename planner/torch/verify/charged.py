"""What the cost models charge for the communication of a step, message by message. [items]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from costmodels.communication.halo import halo_exchange
from costmodels.communication.layout import Layouts
from costmodels.communication.movement import movement
from costmodels.communication.patterns import NOTHING, SEND_RECV, SLICE, match
from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution, one_candidate
from costmodels.graph import Graph, Tensor
from costmodels.layers.local_work import local_parameters, local_size

# The layer (or "source -> target"), what it is for, and whether it is in the backward pass.
Key: TypeAlias = "tuple[str, str, bool]"


def charged_numbers(
    graph: Graph, distributions: Mapping[str, Distribution], topology: Topology
) -> dict[Key, float]:
    """Numbers that the busiest rank receives of each kind of message.

    Parameters
    ----------
    graph
        The network at the batch of a step.
    distributions
        The split of each layer.
    topology
        The levels that ranks lie in.
    """
    found: dict[Key, float] = {}
    for layer in graph.compute_layers:
        one = one_candidate(distributions[layer.name], layer.dims)
        wanted = graph.input_gradients(layer.name)
        for backward in (False, True):
            if backward and not any(wanted):
                continue
            halo = halo_exchange(layer, one, topology, backward=backward, element_size=1.0)
            found[layer.name, "halo", backward] = float(halo.num_bytes[0])
        members = float(one.group(set(one.dims) - set(layer.weight_dims)).prod())
        own = float(local_parameters(layer, one)[0])
        found[layer.name, "gradient", True] = 2 * own * (members - 1) / members
        if layer.statistics is not None:
            numbers = float(layer.statistics.count)
            for dim in layer.statistics.per:
                numbers *= float(one.local(dim, layer.dims[dim])[0])
            members = float(one.group(layer.statistics.over).prod())
            for backward in (False, *([True] if layer.name not in graph.untrained else [])):
                found[layer.name, "statistics", backward] = 2 * numbers * (members - 1) / members
        for edge in graph.producers[layer.name]:
            if edge.source not in distributions:
                continue
            name, source = f"{edge.source} -> {layer.name}", graph.layers[edge.source]
            writer = one_candidate(distributions[edge.source], source.dims)
            tensor = layer.inputs[edge.slot]
            before = Layouts.of(writer, source.output, source.reduced_dims)
            after = Layouts.of(one, tensor, layer.absent_dims(edge.slot))
            # of queries, keys and values side by side, each input is a part
            part = tensor.size / source.output.size
            written = float(local_size(source.output, writer)[0]) * part
            blocks = written, float(local_size(tensor, one)[0])
            key = (name, "shuffle", False)
            moved = _numbers(before, after, blocks, tensor, topology)
            found[key] = found.get(key, 0.0) + moved
            if wanted[edge.slot]:
                key = (name, "shuffle", True)
                moved = _numbers(after, before, blocks[::-1], tensor, topology)
                found[key] = found.get(key, 0.0) + moved
    return {key: numbers for key, numbers in found.items() if numbers > 0.0}


def _numbers(
    before: Layouts, after: Layouts, blocks: tuple[float, float], tensor: Tensor, topology: Topology
) -> float:
    """Numbers that a rank receives when a tensor changes its layout. [items]

    Parameters
    ----------
    before, after
        The layouts.
    blocks
        A rank's block in both. [items]
    tensor, topology
        The tensor, and the levels that ranks lie in.
    """
    pattern = match(before, after)
    members = 1
    for size in pattern.group:
        members *= size
    part = (members - 1) / members
    if pattern.kind in (NOTHING, SLICE):
        return 0.0
    if pattern.kind == "all_reduce":
        return 2 * blocks[0] * part
    if pattern.kind == "all_gather":
        return blocks[1] * part
    if pattern.kind == SEND_RECV:
        # sums are scattered first; then what is missing is counted
        volume = movement(before, after, topology).volume[0, 0] / topology.devices_below
        lacking = float(volume.sum()) * tensor.size
        return lacking + blocks[0] * part
    return blocks[0] * part
