"""What is computed again together: blocks by the names of layers, or else by what they read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.graph import Graph, Network, build_graph
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.segments import blocks_of_layers, several_layers
from planner.models import load_network


def renamed(network: Network) -> Graph:
    """The network with names that say nothing of blocks."""
    letters = {spec.name: f"layer_{place}_" for place, spec in enumerate(network.layers)}
    layers = tuple(
        replace(
            spec,
            name=letters[spec.name],
            inputs=tuple(letters.get(name, name) for name in spec.inputs),
            options=spec.options
            | {key: letters[str(of)] for key, of in spec.options.items() if key == "share"},
        )
        for spec in network.layers
    )
    return build_graph(replace(network, layers=layers), 8)


def blocks_of(graph: Graph) -> list[list[int]]:
    """The blocks by the places of their layers."""
    place = {layer.name: number for number, layer in enumerate(graph.compute_layers)}
    several = several_layers(blocks_of_layers(graph)).values()
    return [[place[name] for name in names] for names in several]


def test_a_layer_of_a_densenet_is_a_block() -> None:
    graph = build_graph(load_network("densenet121"), 8)
    blocks = blocks_of_layers(graph)
    for block, layers in enumerate((6, 12, 24, 16), start=1):
        for layer in range(1, layers + 1):
            path = f"denseblock{block}.denselayer{layer}."
            inside = {blocks[name] for name in blocks if name.startswith(path)}
            assert inside == {f"{path}norm1"}
            assert sum(name == f"{path}norm1" for name in blocks.values()) == 7


@pytest.mark.parametrize("model", ["resnet18", "seresnext50_32x4d"])
def test_residual_blocks_are_found_without_their_names(model: str) -> None:
    network = load_network(model)
    named: dict[str, list[int]] = {}
    for place, layer in enumerate(build_graph(network, 8).compute_layers):
        named.setdefault(unit_of(layer.name), []).append(place)
    found = blocks_of(renamed(network))
    *blocks, last = (block for block in named.values() if len(block) > 1)
    assert all(block in found for block in blocks)
    assert last[:-1] in found  # what activates its sum goes with the classifier


@pytest.mark.parametrize("model", ["unet", "inception_v3", "mesh-1k", "efficientdet_d0"])
def test_every_layer_lies_in_one_block_of_neighbours_that_is_not_most_of_all(model: str) -> None:
    graph = renamed(load_network(model))
    blocks = blocks_of(graph)
    count = len(graph.compute_layers)
    assert len(blocks) > 5
    assert all(block == list(range(block[0], block[-1] + 1)) for block in blocks)
    assert max(map(len, blocks)) <= count / 2
    places = [place for block in blocks for place in block]
    assert len(places) == len(set(places))
    assert len(places) > 0.7 * count
