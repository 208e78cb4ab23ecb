"""Attention: the fused operator, and the products and the softmax that it is written out as."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from planner.models.traced.nodes import TracedNode
from planner.models.traced.operators.registry import operator, tensor_of
from planner.models.traced.translation import Translation, UnsupportedError
from planner.models.traced.values import AxisPart, Dims, Value, joined, whole

# The nodes of both products and what lies between, and what stands for queries, keys and values.
Products: TypeAlias = "tuple[list[Any], Any, Any, Any]"
Options: TypeAlias = "dict[str, Any]"

# What a mask is made with, where it hides all later positions, or all but the last ones.
_CAUSAL, _WINDOW = frozenset({"le", "ge", "tril", "triu"}), frozenset({"gt", "lt"})


@operator("scaled_dot_product_attention")
def _fused(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    tensors = [tensor_of(net, given[name]) for name in ("query", "key", "value")]
    causal, window = seen_by(given["attn_mask"])
    options: dict[str, Any] = {}
    if given["is_causal"] or causal:
        options["causal"] = True
    if window:
        options["window"] = window
    if given["dropout_p"]:
        options["dropout"] = True
    options |= _position_biases(net, node, [given["attn_mask"]], _num_heads(tensors[0]))
    return attention_of(net, node, tensors, options)


def _position_biases(
    net: Translation, node: TracedNode, masks: Sequence[object], heads: int
) -> dict[str, int]:
    """The option that counts what heads learn of distances.

    Parameters
    ----------
    net, node
        The network, and the operator.
    masks
        What is added to the scores.
    heads
        Heads of queries. [items]
    """
    learned = net.new_weights([one for one in masks if one is not None], net.name(node))
    if learned % heads:
        raise UnsupportedError
    return {"position_buckets": learned // heads} if learned else {}


def seen_by(mask: object) -> tuple[bool, int]:
    """Whether a mask hides later positions, and all but how many before.

    A mask has no values here: it is told by what it is made with.
    """
    seen: set[Any] = set()
    todo: list[Any] = [mask] if isinstance(mask, TracedNode) else []
    causal, window = False, 0
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        todo += node.all_input_nodes
        name = node.operator if node.is_call else ""
        compared = all(isinstance(one, TracedNode) for one in node.args[:2])
        causal |= node.hides_later or name in ("tril", "triu") or (name in _CAUSAL and compared)
        if name in _WINDOW:
            for one in node.all_input_nodes:
                far = one.args[1] if one.operator == "sub" and len(one.args) > 1 else 0
                window = int(far) if isinstance(far, int) and far > 0 else window
    return causal, window


def attention_of(
    net: Translation, node: TracedNode, tensors: Sequence[Value], options: Options
) -> Value:
    """Attention of queries, keys and values, each of samples, heads, positions and features.

    Parameters
    ----------
    net, node
        The network, and the operator.
    tensors
        Queries, keys and values.
    options
        Of the kind, beside heads.
    """
    shape = node.shape
    heads = _num_heads(tensors[0])
    kv_heads = min(_num_heads(tensors[1]), _num_heads(tensors[2]))
    more = {"heads": heads, **({"kv_heads": kv_heads} if kv_heads != heads else {}), **options}
    first = tensors[0].layer
    if _side_by_side(tensors, heads, kv_heads):
        layer = net.add(node, "attention", first, **more)
    else:
        sources = [_head_features(net, node, value) for value in tensors]
        layer = net.add(node, "attention", *sources, separate=True, **more)
    axes = net.axes(layer)
    width = axes["hidden"] // heads
    part = (AxisPart("hidden", width, heads),) if heads > 1 else ()
    dims: Dims = (
        whole("sample", axes["sample"]),
        part,
        whole("sequence", axes["sequence"]),
        (AxisPart("hidden", 1, width),) if width > 1 else (),
    )
    if len(shape) == 3:
        dims = (joined((*dims[0], *dims[1])), *dims[2:])
    found = Value(layer=layer, axes=axes, dims=dims)
    if found.shape != shape:
        raise UnsupportedError
    return found


def _num_heads(value: Value) -> int:
    """Heads of a tensor, those that it repeats counted once. [items]"""
    leading = [part for dim in value.dims[:-2] for part in dim if part.axis != "sample"]
    heads = 1
    for part in leading:
        heads *= part.extent if part.axis else 1
    return heads


def _side_by_side(tensors: Sequence[Value], heads: int, kv_heads: int) -> bool:
    """Whether one tensor holds queries, keys and values one after the other.

    Parameters
    ----------
    tensors
        The three of them.
    heads, kv_heads
        Heads of queries, and of keys and values. [items]
    """
    (query, *_) = tensors
    if any(value.layer != query.layer for value in tensors) or set(query.axes) != {
        "sample",
        "sequence",
        "hidden",
    }:
        return False
    width = query.shape[-1]
    start = 0
    for value, count in zip(tensors, (heads, kv_heads, kv_heads), strict=True):
        if value.slices.get("hidden") != (start, count * width) or not _is_plain(value):
            return False
        start += count * width
    return start == query.axes["hidden"]


def _is_plain(value: Value) -> bool:
    """Whether its dims are samples, heads, positions and features of tokens, in this order."""
    width = value.shape[-1]
    leading = joined([part for dim in value.dims[:-2] for part in dim if part.axis])
    sample = value.whole("sample")
    heads = leading[len(sample) :]
    return (
        leading[: len(sample)] == sample
        and value.dims[-2] == value.whole("sequence")
        and value.dims[-1] == ((AxisPart("hidden", 1, width),) if width > 1 else ())
        and (
            not heads
            or (len(heads) == 1 and heads[0] == AxisPart("hidden", width, heads[0].extent))
        )
    )


def _head_features(net: Translation, node: TracedNode, value: Value) -> str:
    """The layer that holds heads as features of tokens; keys and values as often as there are."""
    repeats = [part for dim in value.dims for part in dim if not part.axis]
    once = replace(
        value, dims=tuple(tuple(part for part in dim if part.axis) for dim in value.dims)
    )
    if set(value.axes) >= {"sequence", "hidden"} and _is_plain(once) and once.is_whole:
        return value.layer
    if repeats and any(not part.axis for part in value.dims[-2] + value.dims[-1]):
        raise UnsupportedError
    heads, (positions, width) = _num_heads(value), value.shape[-2:]
    along = {}
    if value.dims[-2] and len(value.dims[-2]) == 1:
        source = value.dims[-2][0].axis
        if source not in value.slices and value.dims[-2] == value.whole(source):
            along["sequence"] = source
    # features by heads stay in place where they are all those of an axis
    merged = joined([p for d in (*once.dims[:-2], once.dims[-1]) for p in d if p.axis != "sample"])
    if len(merged) == 1 and merged == value.whole(merged[0].axis) and not value.slices:
        along["hidden"] = merged[0].axis
    return net.add(
        node,
        "rearrange",
        value.layer,
        axes={"sequence": positions, "hidden": heads * width},
        along=along,
    )


# What may lie between the first product and the softmax, and between that and the second product.
_BETWEEN = re.compile(
    r"add|sub|mul|div|masked_fill|to|_to_copy|dropout|where|contiguous|clone|float|type_as|view"
    r"|reshape|expand|clamp|maximum|nan_to_num|unsqueeze|_unsafe_view|tanh"
)


def products_written_out(node: TracedNode, data: set[TracedNode]) -> Products | None:
    """The nodes of attention that end in a second product: all of them, and what it reads.

    Parameters
    ----------
    node
        A product.
    data
        Nodes that depend on the samples.
    """
    if node.operator not in ("matmul", "bmm") or len(node.all_input_nodes) < 2:
        return None
    weights, values = node.args[0], node.args[1]
    chain: list[Any] = [node]
    found_softmax = False
    current: Any = weights
    while current in data and current.is_call:
        name = current.operator
        inside = [one for one in current.all_input_nodes if one in data]
        if name in ("matmul", "bmm", "baddbmm") and found_softmax:
            if len(inside) != 2:
                return None
            query, key = inside[-2:]
            chain.append(current)
            if node.arguments.get("fused"):
                query, key = (_unscaled(one, data, chain) for one in (query, key))
            return chain, query, key, values
        if "softmax" in name:
            found_softmax = True
        elif not _BETWEEN.fullmatch(name):
            return None
        if name == "type_as":
            inside = inside[:1]  # of the other tensor it reads the type
        # checks of types are no readers
        if len(inside) != 1 or sum(user in data for user in current.users) != 1:
            return None
        chain.append(current)
        (current,) = inside
    return None


def _unscaled(node: Any, data: set[TracedNode], chain: list[Any]) -> Any:
    """What is scaled before the products, and is as a part of fused attention."""
    inside = [one for one in node.all_input_nodes if one in data]
    if node.operator not in ("mul", "div") or len(inside) != 1 or len(node.users) != 1:
        return node
    chain.append(node)
    return inside[0]


def attention_written_out(
    net: Translation, node: TracedNode, tensors: Sequence[object], nodes: Sequence[TracedNode]
) -> Value:
    """Attention of a softmax between two products.

    Parameters
    ----------
    net, node
        The network, and the second product.
    tensors
        What stands for queries, keys with their last two dims exchanged, and values.
    nodes
        All that it is made of.
    """
    query, key, value = (tensor_of(net, one) for one in tensors)
    key = replace(key, dims=(*key.dims[:-2], key.dims[-1], key.dims[-2]))
    options: dict[str, Any] = {} if node.arguments.get("fused") else {"fused": False}
    for one in nodes:
        if one.operator == "dropout" and one.arguments["p"] and one.arguments["train"]:
            options["dropout"] = True
    read = [each for one in nodes for each in one.all_input_nodes if each not in nodes]
    masks = [each for each in read if each not in tensors]
    for causal, window in map(seen_by, masks):
        if causal:
            options["causal"] = True
        if window:
            options["window"] = window
    options |= _position_biases(net, node, masks, _num_heads(query))
    return attention_of(net, node, [query, key, value], options)
