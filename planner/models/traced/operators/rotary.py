"""Rotary positions (Su et al. 2021), however they are written out.

Pairs of features of a head are turned by angles of their positions: halves of the head or
neighbours are paired, in all of it or in its first part. All forms are sums of parts of one
tensor, times constants, side by side again, and never leave the last dim.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.models.traced.nodes import TracedNode
from planner.models.traced.operators.elementwise import like
from planner.models.traced.operators.registry import tensor_of
from planner.models.traced.translation import SPLITS, Translation, UnsupportedError
from planner.models.traced.values import AxisPart, Value

# Operators that it is made of, and the most of them: neighbours in a part of each head take 17.
_MADE_OF = frozenset(
    {
        *("add", "sub", "mul", "neg", "cat", "concat", "stack", "slice", "getitem", *SPLITS),
        *("flatten", "view", "reshape", "unsqueeze", "squeeze", "to", "_to_copy", "float"),
        *("type_as", "contiguous", "clone"),
    }
)
_MOST_OF_ROTARY = 32
_SIDE_BY_SIDE = frozenset({"cat", "concat", "stack"})


def rotary_written_out(
    node: TracedNode, data: set[TracedNode], places: Mapping[TracedNode, int]
) -> tuple[list[TracedNode], TracedNode] | None:
    """The operators that turn the features of one tensor and end in one of them, and that tensor.

    Parameters
    ----------
    node
        The last one.
    data
        Nodes that depend on the samples.
    places
        Where each node is in the order of all. [items]
    """
    if node.operator not in ("add", "cat", "concat"):
        return None
    own, ends = [node], _samples_read(node, data)
    while len(ends) > 1 and len(own) < _MOST_OF_ROTARY:
        # the tensor that all begins with comes before whatever is made of it
        latest = max(ends, key=places.__getitem__)
        own.append(latest)
        ends = (ends | _samples_read(latest, data)) - set(own)
        if latest.operator not in _MADE_OF:
            return None
    if len(ends) != 1 or not _is_turn(own, data):
        return None
    (source,) = ends
    return (own, source) if source.shape == node.shape else None


def _samples_read(node: TracedNode, data: set[TracedNode]) -> set[TracedNode]:
    return {one for one in node.all_input_nodes if one in data}


def _is_turn(own: list[TracedNode], data: set[TracedNode]) -> bool:
    """Whether operators multiply by constants and join, in the last dim, and nobody reads parts."""
    names = {one.operator for one in own}
    outer = own[0].shape[:-1]
    inside = set(own)
    return (
        "mul" in names
        and bool(names & _SIDE_BY_SIDE)
        and all(shape[: len(outer)] == outer for one in own for shape in one.shapes)
        and all(len(_samples_read(one, data)) == 1 for one in own if one.operator == "mul")
        and all(user in inside or user not in data for one in own[1:] for user in one.users)
    )


def rotary_of(net: Translation, node: TracedNode, source: TracedNode) -> Value:
    """The layer of rotary positions.

    Parameters
    ----------
    net, node
        The network, and the last operator.
    source
        What is turned.
    """
    value = net.settled(node, tensor_of(net, source))
    width = value.shape[-1]
    if value.dims[-1] != (AxisPart("hidden", 1, width),):
        raise UnsupportedError
    heads = value.axes["hidden"] // width
    return like(net, value, net.add(node, "rotary", value.layer, heads=heads))
