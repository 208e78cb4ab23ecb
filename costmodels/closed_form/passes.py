"""What all closed forms need of a layer: the work of its passes under one distribution."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.compute import Work
from costmodels.distribution import Candidates, Distribution, one_candidate
from costmodels.errors import InputError
from costmodels.graph import Graph, Layer
from costmodels.layers.local_work import local_work


def sample_blocks(ways: int) -> Candidates:
    """Samples divided so many ways, everything else whole."""
    return one_candidate(Distribution(degrees={"sample": (ways,)}, shape=(ways,)))


def needs_input_gradient(graph: Graph, layer: Layer) -> bool:
    """Whether any input of the layer wants a gradient: the data does not."""
    return any(graph.input_gradients(layer.name))


def pass_work(graph: Graph, layer: Layer, candidates: Candidates) -> tuple[list[Work], list[Work]]:
    """Local work of the forward pass and of the backward pass.

    Parameters
    ----------
    graph, layer
        The network, and one of its layers.
    candidates
        Its distributions.
    """
    directions = []
    if needs_input_gradient(graph, layer) or (not layer.is_dense and layer.parameters):
        directions.append("backward_data")
    if layer.trains_weight or (layer.multiplies_activations and needs_input_gradient(graph, layer)):
        directions.append("backward_weight")
    backward = [work for way in directions for work in local_work(layer, candidates, way)]
    return local_work(layer, candidates, "forward"), backward


def distribution_of(distributions: Mapping[str, Distribution], layer: Layer) -> Distribution:
    """The layer's distribution; a plan without one is the caller's mistake."""
    if layer.name not in distributions:
        raise InputError(
            f"the plan must give every layer a distribution but has none for '{layer.name}'; add it"
        )
    return distributions[layer.name]
