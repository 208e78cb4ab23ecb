"""Operators that move nothing: they say where numbers lie, and make no layers."""

from __future__ import annotations

import math

from msgspec.structs import replace

from planner.models.traced.nodes import Arguments, TracedNode
from planner.models.traced.operators.registry import dim_at, operator, tensor_of
from planner.models.traced.translation import SPLITS, Translation, UnsupportedError
from planner.models.traced.values import AxisPart, Value, reshaped, sliced


@operator(
    *("to", "_to_copy", "type_as", "float", "contiguous", "clone", "alias", "identity"),
    *("lift_fresh_copy", "view_as_real", "requires_grad"),
)
def _as_it_is(net: Translation, node: TracedNode) -> Value:
    return tensor_of(net, node.all_input_nodes[0])


@operator("pad", "constant_pad_nd")
def _padded_view(net: Translation, node: TracedNode) -> Value:
    # files of ONNX give what is put at the ends as a tensor
    ends = node.arguments.get("pad")
    if ends is None or any(ends):
        raise UnsupportedError
    return tensor_of(net, node.arguments["self"])


@operator("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
def _reshape(net: Translation, node: TracedNode) -> Value:
    value, shape = tensor_of(net, node.all_input_nodes[0]), node.shape
    found = reshaped(value, shape) if math.prod(shape) == math.prod(value.shape) else None
    if found is None:
        raise UnsupportedError
    return found


# Operators that put dims in another order.
TURNS = (
    *("transpose", "permute", "t", "numpy_T", "mT", "movedim", "moveaxis", "swapaxes", "swapdims"),
)


def turned_order(name: str, given: Arguments, count: int) -> list[int]:
    """The dims of a tensor in the order in which an operator puts them.

    Parameters
    ----------
    name, given
        One of `TURNS`, and its arguments.
    count
        Dims of the tensor. [items]
    """
    order = list(range(count))
    if "dims" in given:
        return [int(dim) % count for dim in given["dims"]]
    if name in ("movedim", "moveaxis"):
        pairs = [given[end] for end in ("source", "destination")]
        source, target = ([one] if isinstance(one, int) else list(one) for one in pairs)
        moved = dict(zip((int(n) % count for n in target), source, strict=True))
        taken = {int(dim) % count for dim in source}
        rest = iter([dim for dim in order if dim not in taken])
        return [int(moved[n]) % count if n in moved else next(rest) for n in order]
    if name in ("t", "numpy_T"):
        return order[::-1]
    ends = [one for key, one in given.items() if key != "self"] or [-2, -1]
    first, second = (int(dim) % count for dim in ends)
    order[first], order[second] = second, first
    return order


@operator(*TURNS)
def _permute(net: Translation, node: TracedNode) -> Value:
    value = tensor_of(net, node.all_input_nodes[0])
    if not value.dims:
        raise UnsupportedError
    order = turned_order(node.operator, node.arguments, len(value.dims))
    return replace(value, dims=tuple(value.dims[dim] for dim in order))


@operator("expand", "expand_as", "broadcast_to")
def _expand(net: Translation, node: TracedNode) -> Value:
    value, shape = tensor_of(net, node.all_input_nodes[0]), node.shape
    dims = ((),) * (len(shape) - len(value.dims)) + value.dims
    found = []
    for dim, extent in zip(dims, shape, strict=True):
        own = math.prod(part.extent for part in dim)
        found.append(dim if own == extent else (AxisPart("", 1, extent),))
    return replace(value, dims=tuple(found))


def _taken(value: Value, dim: int, start: int, count: int) -> Value:
    found = sliced(value, dim, start, count)
    if found is None:
        raise UnsupportedError
    return found


@operator("slice")
def _slice(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    value = tensor_of(net, given["self"])
    dim = dim_at(value, given["dim"])
    extent = value.shape[dim]
    if given["step"] != 1:
        raise UnsupportedError
    start, end = (
        min(max(int(n) + extent * (int(n) < 0), 0), extent)
        for n in (given["start"] or 0, extent if given["end"] is None else given["end"])
    )
    return _taken(value, dim, start, end - start)


@operator("narrow")
def _narrow(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    value = tensor_of(net, given["self"])
    return _taken(value, dim_at(value, given["dim"]), given["start"], given["length"])


@operator("select")
def _select(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    value = tensor_of(net, given["self"])
    dim = dim_at(value, given["dim"])
    return _at(value, dim, int(given["index"]) % value.shape[dim])


def _at(value: Value, dim: int, index: int) -> Value:
    """One position of a dim, which is then gone."""
    found = _taken(value, dim, index, 1)
    return replace(found, dims=(*found.dims[:dim], *found.dims[dim + 1 :]))


@operator("unbind")
def _unbind(net: Translation, node: TracedNode) -> tuple[Value, ...]:
    given = node.arguments
    value = tensor_of(net, given["self"])
    dim = dim_at(value, given["dim"])
    return tuple(_at(value, dim, index) for index in range(value.shape[dim]))


@operator(*(name for name in SPLITS if name != "unbind"))
def _split_parts(net: Translation, node: TracedNode) -> tuple[Value, ...]:
    value = tensor_of(net, node.all_input_nodes[0])
    dim = dim_at(value, node.arguments["dim"])
    found, start = [], 0
    for part in node.shapes:
        count = part[dim]
        found.append(_taken(value, dim, start, count))
        start += count
    return tuple(found)


@operator("getitem")
def _getitem(net: Translation, node: TracedNode) -> object:
    source, index = node.args[0], node.args[1]
    found = net.known[source]
    if isinstance(found, tuple):
        return found[index]
    # the outputs of an operator that is one layer
    value = tensor_of(net, source)
    if value.shape == node.shape:
        return value
    return net.opaque(node)
