"""What a framework computes in one kernel: activations, additions and biases with their producer.

A fused layer stays in the graph, with its distribution and its memory, but launches no kernel: its
operation is one of `FUSED_OPERATIONS`. An activation is fused into the normalisation, the addition
or the convolution that it alone reads; an addition into a normalisation that nothing else reads,
and then reads the other operand only; the bias of a convolution into the convolution.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph.layer import Layer
from costmodels.graph.network import Graph

FUSIONS = ("activation", "add", "bias")
# An activation that its producer computes, and an addition that is part of a normalisation.
FUSED_OPERATIONS = ("fused_activation", "fused_add")
_BEFORE_ACTIVATIONS = ("batch_norm", "affine", "layer_norm", "add", "conv")


def fused(graph: Graph, fusions: Collection[str]) -> Graph:
    """The graph as a framework runs it that fuses some layers with those they read.

    Parameters
    ----------
    graph
        The network.
    fusions
        Some of `FUSIONS`.
    """
    for name in fusions:
        if name not in FUSIONS:
            raise InputError.rule(
                "what a runtime fuses",
                f"be some of {', '.join(FUSIONS)}",
                f"'{name}'",
                "correct it",
            )
    if not fusions:
        return graph
    layers = {name: _fused_layer(graph, layer, fusions) for name, layer in graph.layers.items()}
    return Graph(name=graph.name, layers=layers, edges=graph.edges)


def apart(graph: Graph, operations: Mapping[str, str]) -> Graph:
    """The graph as a framework runs it that has several kernels for some kinds of layers.

    Parameters
    ----------
    graph
        The network.
    operations
        What layers are timed as, by their kind.
    """
    if not operations:
        return graph
    layers = {
        name: replace(layer, operation=operations[layer.kind])
        if layer.kind in operations
        else layer
        for name, layer in graph.layers.items()
    }
    return Graph(name=graph.name, layers=layers, edges=graph.edges)


def _fused_layer(graph: Graph, layer: Layer, fusions: Collection[str]) -> Layer:
    """A layer as it runs."""
    before = [
        graph.layers[edge.source].kind
        for edge in graph.producers[layer.name]
        if len(graph.consumers[edge.source]) == 1
    ]
    if layer.kind == "activation" and "activation" in fusions:
        if any(kind in _BEFORE_ACTIVATIONS for kind in before):
            return replace(layer, operation="fused_activation")
    elif layer.kind == "add" and "add" in fusions:
        if "batch_norm" in before and len(layer.inputs) == 2:
            return replace(layer, operation="fused_add")
    elif layer.biased and "bias" in fusions:
        return replace(layer, biased=False)
    return layer
