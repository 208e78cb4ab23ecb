"""Several operators that are one layer: norms, activations, rotary positions, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.torch.nodes import arguments, module_calls, num_elements, operator_of, shape_of
from planner.torch.operators.attention import attention_written_out, products_written_out
from planner.torch.operators.elementwise import ELEMENTWISE, like, norm_of_features
from planner.torch.operators.registry import tensor_of
from planner.torch.translation import Translation, UnsupportedError
from planner.torch.values import AxisPart, Value

if TYPE_CHECKING:
    from torch.fx import Node

_FREE = frozenset({"to", "_to_copy", "_assert_tensor_metadata", "type_as", "float", "contiguous"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Operators that are one or a few layers.

    Parameters
    ----------
    nodes
        All of them.
    last
        The one whose tensor others read.
    make
        Makes the layers.
    """

    nodes: frozenset[Any]
    last: Any
    make: Callable[[Translation], object]


def find_regions(nodes: Sequence[Node], data: set[Node]) -> Iterator[Region]:
    """All regions of a graph, the larger ones first.

    Parameters
    ----------
    nodes
        All nodes, in order.
    data
        Those that depend on the samples.
    """
    calls: dict[str, list[Node]] = {}
    inner: dict[str, list[Node]] = {}
    for node in nodes:
        stack = module_calls(node) if node in data and node.op == "call_function" else []
        for key, _, _ in stack:
            calls.setdefault(key, []).append(node)
        if stack:
            inner.setdefault(stack[-1][0], []).append(node)
    for key, group in calls.items():
        yield from _experts(key, group, data)
    for key, group in inner.items():
        if group == calls[key]:
            yield from _router(group, data)
            yield from _module_region(group, data)
    for node in nodes:
        found = (
            products_written_out(node, data)
            if node in data and node.op == "call_function"
            else None
        )
        if found is not None:
            chain, query, key_, value = found
            yield Region(
                nodes=frozenset(chain),
                last=node,
                make=_attention_maker(node, (query, key_, value), chain),
            )
        if node in data and node.op == "call_function":
            yield from _rotary(node, data)
            yield from _gate(node, data)


def _attention_maker(
    node: Node, tensors: tuple[Any, Any, Any], chain: list[Any]
) -> Callable[[Translation], object]:
    return lambda net: attention_written_out(net, node, tensors, chain)


def _region_border(group: Sequence[Node], data: set[Node]) -> tuple[list[Any], list[Any]]:
    """What a group of nodes reads that depends on the samples, and those that others read."""
    own = set(group)
    reads = [one for node in group for one in node.all_input_nodes if one in data]
    outside = list(dict.fromkeys(one for one in reads if one not in own))
    # what does not depend on samples is no reader: checks of types, and tensors of the same shape
    read = [node for node in group if any(one in data and one not in own for one in node.users)]
    return outside, read


def _module_region(group: list[Node], data: set[Node]) -> Iterator[Region]:
    """A norm or an activation that a module of its own writes out."""
    # a norm may cast what it reads, and others read that, too
    while group and operator_of(group[0]) in _FREE:
        group = group[1:]
    work = [node for node in group if operator_of(node) not in _FREE]
    names = {operator_of(node) for node in work}
    if len(work) < 2:
        return
    outside, read = _region_border(group, data)
    if len(outside) != 1 or len(read) != 1:
        return
    source, last = outside[0], read[0]
    if num_elements(shape_of(source)) != num_elements(shape_of(last)):
        return
    if "mean" in names and names & {"rsqrt", "sqrt"} and names <= ELEMENTWISE | {"mean", "var"}:
        kind = "layer_norm" if "sub" in names else "rms_norm"
        weights = [one for node in group for one in node.all_input_nodes if one not in data]
        weights = [one for one in dict.fromkeys(weights) if len(shape_of(one)) == 1]
        yield Region(
            nodes=frozenset(group),
            last=last,
            make=lambda net: norm_of_features(
                net, last, tensor_of(net, source), kind, list(weights)
            ),
        )
    elif names <= ELEMENTWISE and all(shape_of(n) == shape_of(last) for n in work):
        constants = [o for n in group for o in n.all_input_nodes if o not in data]
        if not constants:
            yield Region(
                nodes=frozenset(group), last=last, make=_activation_maker(last, source, names)
            )


def _activation_maker(last: Node, source: Node, names: set[str]) -> Callable[[Translation], object]:
    function = "gelu_tanh" if "tanh" in names else "silu" if "sigmoid" in names else "gelu"

    def make(net: Translation) -> Value:
        value = net.settled(last, tensor_of(net, source))
        return like(net, value, net.add(last, "activation", value.layer, function=function))

    return make


def _only(node: Any, data: set[Node], name: str) -> Any:
    """What an operator of a name reads that depends on the samples, None where it is no such."""
    if not hasattr(node, "op") or node.op != "call_function" or operator_of(node) != name:
        return None
    inside = [one for one in node.all_input_nodes if one in data]
    return inside[0] if len(inside) == 1 else None


def _rotary(node: Node, data: set[Node]) -> Iterator[Region]:
    """x cos + (-x2, x1) sin: rotary positions, as most models write them."""
    if operator_of(node) != "add" or len(node.args) < 2:
        return
    straight, turned = _only(node.args[0], data, "mul"), _only(node.args[1], data, "mul")
    if straight is None or turned is None or operator_of(turned) not in ("cat", "concat"):
        return
    halves = list(arguments(turned)["tensors"])
    second = _only(halves[0], data, "neg") if len(halves) == 2 else None
    sources = {_only(one, data, "slice") for one in (second, halves[-1])}
    if sources != {straight}:
        return
    nodes = {node, node.args[0], node.args[1], turned, *halves, second}

    def make(net: Translation) -> Value:
        value = net.settled(node, tensor_of(net, straight))
        width = value.shape[-1]
        if value.dims[-1] != (AxisPart("hidden", 1, width),):
            raise UnsupportedError
        heads = value.axes["hidden"] // width
        return like(net, value, net.add(node, "rotary", value.layer, heads=heads))

    yield Region(nodes=frozenset(nodes), last=node, make=make)


def _gate(node: Node, data: set[Node]) -> Iterator[Region]:
    """One half of the features through an activation, times the other half."""
    if operator_of(node) != "mul" or len(node.all_input_nodes) != 2:
        return
    for one, other in (node.all_input_nodes, node.all_input_nodes[::-1]):
        name = operator_of(one) if one.op == "call_function" else ""
        half = _only(one, data, name) if name in ("silu", "gelu", "sigmoid", "relu") else None
        first, second = (_only(each, data, "getitem") for each in (half, other))
        if half is None or first is None or first is not second or first.op != "call_function":
            continue
        source = _only(first, data, operator_of(first))
        halves = (
            len(first.meta["val"]) == 2 if isinstance(first.meta.get("val"), list | tuple) else 0
        )
        along = int(arguments(first).get("dim", 0)) % max(len(shape_of(node)), 1)
        if operator_of(first) not in ("chunk", "split") or not halves or source is None:
            continue
        if along != len(shape_of(node)) - 1 or len(one.users) != 1:
            continue
        make = _gate_maker(node, source, name)
        yield Region(nodes=frozenset({node, one, half, other, first}), last=node, make=make)


def _gate_maker(node: Node, source: Node, function: str) -> Callable[[Translation], object]:
    def make(net: Translation) -> Value:
        value = net.settled(node, tensor_of(net, source))
        axis = "hidden" if "hidden" in value.axes else "channel"
        if value.dims[-1] != value.whole(axis):
            raise UnsupportedError
        layer = net.add(node, "glu", value.layer, function=function)
        order = [p.axis for dim in value.dims[:-1] for p in dim]
        return net.value(layer, [*order, axis], shape_of(node))

    return make


def _router(group: list[Node], data: set[Node]) -> Iterator[Region]:
    """Scores of experts, and the choice of the best, which takes next to nothing."""
    products = [node for node in group if operator_of(node) == "linear"]
    outside, _ = _region_border(group, data)
    if len(products) != 1 or len(outside) != 1 or "topk" not in map(operator_of, group):
        return
    given = arguments(products[0])

    def make(net: Translation) -> Value:
        value = net.settled(group[-1], tensor_of(net, outside[0]))
        if not {"sequence", "hidden"} <= set(value.axes):
            raise UnsupportedError
        options = {"bias": True} if given["bias"] is not None else {}
        experts = shape_of(given["weight"])[0]
        layer = net.add(products[0], "router", value.layer, experts=experts, **options)
        for name in ("weight", "bias"):
            net.weight(given[name], layer)
        return net.value(layer)

    yield Region(nodes=frozenset(group), last=group[-1], make=make)


def _experts(key: str, group: list[Node], data: set[Node]) -> Iterator[Region]:
    """Grouped products over tokens that are sorted by their experts.

    Parameters
    ----------
    key, group
        A call of a module, and the nodes inside of it.
    data
        Nodes that depend on the samples.
    """
    products = [node for node in group if "grouped_mm" in operator_of(node)]
    if len(products) != 2 or {module_calls(node)[-1][0] for node in products} != {key}:
        return
    outside, read = _region_border(group, data)
    picks = [one for one in outside if one.op == "call_function" and operator_of(one) != "topk"]
    tokens = [one for one in picks if shape_of(one)[-1:] == shape_of(products[0].args[0])[-1:]]
    if len(read) != 1 or len(tokens) != 1:
        return
    yield Region(
        nodes=frozenset(group),
        last=read[0],
        make=_experts_maker(read[0], tokens[0], outside, products),
    )


def _experts_maker(
    last: Node, tokens: Node, outside: Sequence[Any], products: Sequence[Node]
) -> Callable[[Translation], object]:
    """Makes the layers of a mixture of experts.

    Parameters
    ----------
    last, tokens
        What the experts make, and what they read.
    outside
        All that they read; what is not tokens is of the router.
    products
        The two grouped products.
    """

    def make(net: Translation) -> Value:
        scores = next(
            (
                v
                for one in outside
                if one is not tokens and isinstance(v := net.known.get(one), Value)
            ),
            None,
        )
        if scores is None:
            raise UnsupportedError
        experts, hidden, wide = shape_of(products[0].args[1])
        inner, out = shape_of(products[1].args[1])[1:]
        value = net.settled(last, tensor_of(net, tokens))
        if "sequence" not in value.axes or value.axes.get("hidden") != hidden or out != hidden:
            raise UnsupportedError
        if net.axes(scores.layer).get("hidden") != experts:
            raise UnsupportedError
        rows = shape_of(products[0].args[0])[0]
        top_k = rows // (value.axes["sequence"] * net.batch)
        sent = net.add(last, "dispatch", value.layer, experts=experts, top_k=top_k)
        first = net.add(last, "linear", sent, filters=wide, bias=False)
        gated = net.add(last, *(("glu", first) if wide == 2 * inner else ("activation", first)))
        second = net.add(last, "linear", gated, filters=out, bias=False)
        for product, layer in zip(products, (first, second), strict=True):
            net.new_weights([product.args[1]], layer)
        return net.value(net.add(last, "combine", second, scores.layer), shape=shape_of(last))

    return make
