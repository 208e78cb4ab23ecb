"""Norms of groups of channels, which exporters to ONNX write out in several operators.

Channels are put side by side group by group, normalised and put back; then come a product with the
weight and a sum with the bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.models.onnx.graph import Attributes, OnnxGraph
from planner.models.onnx.weights import own_vector
from planner.models.traced.nodes import TracedNode

if TYPE_CHECKING:
    from onnx import NodeProto

# What these make of a vector is that vector.
_SAME_VECTOR = frozenset({"Unsqueeze", "Cast", "CastLike", "Reshape", "Identity"})


def norm_put_back(graph: OnnxGraph, node: NodeProto, of: Attributes) -> TracedNode | None:
    """The norm of groups that ends in a reshape, None where it ends in another one.

    Parameters
    ----------
    graph, node, of
        What is known so far, the reshape, and its attributes.
    """
    norm = _maker(graph, node.input[0], "InstanceNormalization", "instance_norm")
    there = norm and _maker(graph, norm.input[0], "Reshape", "reshape")
    if norm is None or there is None:
        return None
    x = there.input[0]
    shape, grouped = graph.shape(x), graph.shape(there.output[0])
    if shape != graph.shape(node.output[0]) or len(shape) < 2:
        return None
    if shape[0] != grouped[0] or shape[1] % grouped[1]:
        return None
    if not all(_is_usual(graph, *row) for row in zip(norm.input[1:], (1, 0), strict=True)):
        return None
    for one in (norm, there):
        _leave_out(graph, graph.known[one.output[0]])
    given = {"input": graph.known[x], "weight": None, "bias": None}
    return graph.node("group_norm", given, [shape], norm)


def norm_with_weights(graph: OnnxGraph, node: NodeProto, of: Attributes) -> TracedNode | None:
    """The norm of groups whose bias a sum adds, None of another sum.

    Parameters
    ----------
    graph, node, of
        What is known so far, the sum, and its attributes.
    """
    for place, name in enumerate(node.input):
        product = _maker(graph, name, "Mul", "mul")
        for at, read in enumerate(product.input if product is not None else ()):
            if product is None or _maker(graph, read, "Reshape", "group_norm") is None:
                continue
            norm = graph.known[read]
            weight = _vector(graph, product, 1 - at, norm)
            bias = _vector(graph, node, 1 - place, norm)
            operands = ((product.input[1 - at], 1), (node.input[1 - place], 0))
            bare = all(_is_usual(graph, *row) for row in operands)
            if not bare and (weight is None or bias is None):
                return None
            for one in (graph.known[name], norm):
                _leave_out(graph, one)
            given = {"input": norm.arguments["input"], "weight": weight, "bias": bias}
            return graph.node("group_norm", given, norm.shapes, node)
    return None


def _maker(graph: OnnxGraph, name: str, kind: str, became: str) -> NodeProto | None:
    """The operator of a tensor that one operator alone reads, None where it is of another kind.

    Parameters
    ----------
    graph, name
        What is known so far, and the tensor.
    kind, became
        What ONNX calls the operator, and what PyTorch calls what it became.
    """
    # what a vector is cast like has no part in its numbers
    readers = [
        one
        for one in graph.readers.get(name, ())
        if one.op_type != "CastLike" or one.input[0] == name
    ]
    if len(readers) != 1 or graph.known[name].operator != became:
        return None
    if any(one.name == name for one in graph.model.graph.output):
        return None
    return _first_maker(graph, name, frozenset({kind}))


def _first_maker(graph: OnnxGraph, name: str, kinds: frozenset[str]) -> NodeProto | None:
    rows = (one for one in graph.model.graph.node if one.op_type in kinds)
    return next((one for one in rows if one.output[0] == name), None)


def _vector(graph: OnnxGraph, node: NodeProto, place: int, norm: TracedNode) -> TracedNode | None:
    """A trained number of each channel, None where an operand is another.

    Parameters
    ----------
    graph, node, place
        What is known so far, the operator, and which of its inputs.
    norm
        The norm of groups.
    """
    name = node.input[place]
    shape = graph.shape(name)
    whole = (1,) * (len(norm.shape) - len(shape)) + shape
    if whole != (1, norm.shape[1], *[1] * (len(norm.shape) - 2)):
        return None
    if graph.known[name] not in graph.trained:
        return None
    while (maker := _first_maker(graph, name, _SAME_VECTOR)) is not None:
        name = maker.input[0]
    return own_vector(graph, name, node)


def _is_usual(graph: OnnxGraph, name: str, usual: int) -> bool:
    """Whether a tensor is not trained and changes nothing.

    Parameters
    ----------
    graph, name, usual
        What is known so far, the tensor, and the number that it has everywhere then.
    """
    value = graph.values.get(name)
    if value is None or (value != usual).any():
        return False
    if graph.known[name] not in graph.trained:
        return True
    # what an exporter computed looks like a weight, but is said to be no parameter
    rows = (one for one in graph.model.graph.value_info if one.name == name)
    return any(prop.key.endswith(".folded_from") for one in rows for prop in one.metadata_props)


def _leave_out(graph: OnnxGraph, node: TracedNode) -> None:
    """Forget an operator that is a part of another."""
    graph.nodes.remove(node)
    graph.data.discard(node)
    for one in node.all_input_nodes:
        one.users.remove(node)
