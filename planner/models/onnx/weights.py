"""Which weights of an ONNX file are the same one, and which only began with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.models.onnx.graph import OnnxGraph, module_of
from planner.models.traced.nodes import TracedNode

if TYPE_CHECKING:
    from onnx import NodeProto

# What these make of a weight is that weight.
_SAME_WEIGHT = frozenset({"identity", "cast", "castlike", "transpose", "t", "reshape"})


def trained_input(
    graph: OnnxGraph, node: NodeProto, place: int, matrix: TracedNode | None = None
) -> TracedNode | None:
    """A weight that is trained, None where there is none.

    Parameters
    ----------
    graph, node, place
        What is known so far, the operator, and which of its inputs.
    matrix
        The weight that it is the bias of.
    """
    name = node.input[place] if len(node.input) > place else ""
    found = graph.known[name] if name else None
    if found is None or not (found in graph.trained or found in graph.data):
        return None
    return own_vector(graph, name, node, matrix)


def own_vector(
    graph: OnnxGraph, name: str, node: NodeProto, matrix: TracedNode | None = None
) -> TracedNode:
    """A vector as that of its weight or module, where several operators read it.

    Exporters keep vectors once that begin with the same numbers.

    Parameters
    ----------
    graph, name
        What is known so far, and the vector.
    node, matrix
        What reads it, and the weight that it is the bias of.
    """
    found = graph.known[name]
    vector = sum(extent != 1 for extent in found.shape) == 1 or len(found.shape) == 1
    if not found.weight or not vector or len(graph.readers[name]) == 1:
        return found
    owner = module_of(node) if matrix is None else _origin(graph, matrix)
    called = f"{name} of {owner or node.output[0]}"
    if called not in graph.known:
        graph.give(called, graph.types[name], weight=called)
    return graph.known[called]


def _origin(graph: OnnxGraph, weight: TracedNode) -> str:
    """What a weight is called that was only transposed, shaped or cast since."""
    while not weight.weight and weight.operator in _SAME_WEIGHT:
        read = [one for one in weight.all_input_nodes if one in graph.trained]
        if len(read) != 1:
            break
        (weight,) = read
    return weight.weight or weight.name
