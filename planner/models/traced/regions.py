"""Several operators that are one layer: norms, activations, rotary positions, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from planner.models.traced.nodes import TracedNode, num_elements
from planner.models.traced.operators.attention import attention_written_out, products_written_out
from planner.models.traced.operators.elementwise import ELEMENTWISE, like, norm_of_features
from planner.models.traced.operators.registry import tensor_of
from planner.models.traced.operators.rotary import rotary_of, rotary_written_out
from planner.models.traced.translation import Translation, UnsupportedError
from planner.models.traced.values import Value

_FREE = frozenset({"to", "_to_copy", "_assert_tensor_metadata", "type_as", "float", "contiguous"})


class Region(Struct, frozen=True, kw_only=True):
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


def find_regions(nodes: Sequence[TracedNode], data: set[TracedNode]) -> Iterator[Region]:
    """All regions of a graph, the larger ones first.

    Parameters
    ----------
    nodes
        All nodes, in order.
    data
        Those that depend on the samples.
    """
    calls: dict[str, list[TracedNode]] = {}
    inner: dict[str, list[TracedNode]] = {}
    for node in nodes:
        stack = node.calls if node in data and node.is_call else []
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
    places = {node: number for number, node in enumerate(nodes)}
    for node in nodes:
        # a part of each head that is turned, and the rest beside it
        if node in data and node.operator in ("cat", "concat"):
            yield from _rotary(node, data, places)
    for node in nodes:
        found = products_written_out(node, data) if node in data and node.is_call else None
        if found is not None:
            chain, query, key_, value = found
            yield Region(
                nodes=frozenset(chain),
                last=node,
                make=_attention_maker(node, (query, key_, value), chain),
            )
    # what caps scores between the products is no activation of its own
    for node in nodes:
        if node in data and node.is_call:
            yield from _rotary(node, data, places)
            yield from _gate(node, data)
            yield from _activation_region(node, data)


def _attention_maker(
    node: TracedNode, tensors: tuple[Any, Any, Any], chain: list[Any]
) -> Callable[[Translation], object]:
    return lambda net: attention_written_out(net, node, tensors, chain)


def _region_border(
    group: Sequence[TracedNode], data: set[TracedNode]
) -> tuple[list[Any], list[Any]]:
    """What a group of nodes reads that depends on the samples, and those that others read."""
    own = set(group)
    reads = [one for node in group for one in node.all_input_nodes if one in data]
    outside = list(dict.fromkeys(one for one in reads if one not in own))
    # what does not depend on samples is no reader: checks of types, and tensors of the same shape
    read = [node for node in group if any(one in data and one not in own for one in node.users)]
    return outside, read


def _module_region(group: list[TracedNode], data: set[TracedNode]) -> Iterator[Region]:
    """A norm or an activation that a module of its own writes out."""
    work = [node for node in group if node.operator not in _FREE]
    names = {node.operator for node in work}
    if len(work) < 2:
        return
    # a norm may cast what it reads, and others read that, too; some parts may read it uncast
    rest = group[next(n for n, node in enumerate(group) if node.operator not in _FREE) :]
    outside, read = _region_border(rest, data)
    if len(outside) == 1:
        group = rest
    else:
        outside, read = _region_border(group, data)
    if len(outside) != 1 or len(read) != 1:
        return
    source, last = outside[0], read[0]
    if num_elements(source.shape) != num_elements(last.shape):
        return
    if "mean" in names and names & {"rsqrt", "sqrt"} and names <= ELEMENTWISE | {"mean", "var"}:
        kind = "layer_norm" if "sub" in names else "rms_norm"
        weights = [one for node in group for one in node.all_input_nodes if one not in data]
        weights = [one for one in dict.fromkeys(weights) if len(one.shape) == 1]
        yield Region(
            nodes=frozenset(group),
            last=last,
            make=lambda net: norm_of_features(
                net, last, tensor_of(net, source), kind, list(weights)
            ),
        )
    elif names <= ELEMENTWISE and all(n.shape == last.shape for n in work):
        constants = [o for n in group for o in n.all_input_nodes if o not in data]
        if not constants:
            yield Region(
                nodes=frozenset(group), last=last, make=_activation_maker(last, source, names)
            )


# The largest activation that is written out, the tanh form of GELU, has so many operators. [items]
_MOST_OF_AN_ACTIVATION = 12
# What an activation that is written out has more than products and sums, and its function.
_TOLD_BY = {"erf": "gelu", "tanh": "gelu_tanh", "sigmoid": "silu", "hardsigmoid": "hardswish"}


def _activation_region(node: TracedNode, data: set[TracedNode]) -> Iterator[Region]:
    """x times a function of x, as activations such as SiLU and GELU are written out."""
    if node.operator != "mul":
        return
    ways = [node]
    # a factor may come last
    inside = [one for one in node.all_input_nodes if one in data]
    if len(inside) == 1 and inside[0].operator == "mul" and len(inside[0].users) == 1:
        ways.append(inside[0])
    for last in ways:
        own, source = _back_to_one(last, data)
        names = {one.operator for one in own}
        found = [name for name in _TOLD_BY if name in names]
        if source is not None and len(found) == 1 and names <= ELEMENTWISE:
            nodes = {*own, node}
            yield Region(
                nodes=frozenset(nodes), last=node, make=_activation_maker(node, source, names)
            )
            return


def _back_to_one(
    last: TracedNode, data: set[TracedNode]
) -> tuple[list[TracedNode], TracedNode | None]:
    """The operators between two ways from one tensor and where these meet, and that tensor."""
    own = [last]
    while len(own) <= _MOST_OF_AN_ACTIVATION:
        outside = [
            one
            for node in own
            for one in node.all_input_nodes
            if one in data and one not in own and one.shape == last.shape
        ]
        ends = list(dict.fromkeys(outside))
        if len(ends) == 1 and len(own) > 1:
            read = any(user not in own for one in own[1:] for user in one.users)
            plain = all(num_elements(one.shape) == 1 for one in _constants(own, data))
            return (own, ends[0]) if plain and not read else (own, None)
        # the one that is read last is not the tensor that all begins with
        more = [one for one in ends if one.operator in ELEMENTWISE and set(one.users) <= set(own)]
        if not more:
            break
        own.append(more[-1])
    return own, None


def _constants(nodes: Sequence[TracedNode], data: set[TracedNode]) -> list[TracedNode]:
    return [one for node in nodes for one in node.all_input_nodes if one not in data]


def _activation_maker(
    last: TracedNode, source: TracedNode, names: set[str]
) -> Callable[[Translation], object]:
    function = next((kind for name, kind in _TOLD_BY.items() if name in names), "gelu")

    def make(net: Translation) -> Value:
        value = net.settled(last, tensor_of(net, source))
        return like(net, value, net.add(last, "activation", value.layer, function=function))

    return make


def _only(node: Any, data: set[TracedNode], name: str) -> Any:
    """What an operator of a name reads that depends on the samples, None where it is no such."""
    if not isinstance(node, TracedNode) or not node.is_call or node.operator != name:
        return None
    inside = [one for one in node.all_input_nodes if one in data]
    return inside[0] if len(inside) == 1 else None


def _rotary(
    node: TracedNode, data: set[TracedNode], places: Mapping[TracedNode, int]
) -> Iterator[Region]:
    found = rotary_written_out(node, data, places)
    if found is not None:
        own, source = found
        yield Region(nodes=frozenset(own), last=node, make=lambda net: rotary_of(net, node, source))


def _gate(node: TracedNode, data: set[TracedNode]) -> Iterator[Region]:
    """One half of the features through an activation, times the other half."""
    if node.operator != "mul" or len(node.all_input_nodes) != 2:
        return
    for one, other in (node.all_input_nodes, node.all_input_nodes[::-1]):
        name = one.operator if one.is_call else ""
        half = _only(one, data, name) if name in ("silu", "gelu", "sigmoid", "relu") else None
        first, second = (_only(each, data, "getitem") for each in (half, other))
        if half is None or first is None or first is not second or not first.is_call:
            continue
        source = _only(first, data, first.operator)
        halves = len(first.shapes) == 2
        along = int(first.arguments.get("dim", 0)) % max(len(node.shape), 1)
        if first.operator not in ("chunk", "split") or not halves or source is None:
            continue
        if along != len(node.shape) - 1 or len(one.users) != 1:
            continue
        make = _gate_maker(node, source, name)
        yield Region(nodes=frozenset({node, one, half, other, first}), last=node, make=make)


def _gate_maker(
    node: TracedNode, source: TracedNode, function: str
) -> Callable[[Translation], object]:
    def make(net: Translation) -> Value:
        value = net.settled(node, tensor_of(net, source))
        axis = "hidden" if "hidden" in value.axes else "channel"
        if value.dims[-1] != value.whole(axis):
            raise UnsupportedError
        layer = net.add(node, "glu", value.layer, function=function)
        order = [p.axis for dim in value.dims[:-1] for p in dim]
        return net.value(layer, [*order, axis], node.shape)

    return make


def _router(group: list[TracedNode], data: set[TracedNode]) -> Iterator[Region]:
    """Scores of experts, and the choice of the best, which takes next to nothing."""
    products = [node for node in group if node.operator == "linear"]
    outside, _ = _region_border(group, data)
    if len(products) != 1 or len(outside) != 1 or "topk" not in (one.operator for one in group):
        return
    given = products[0].arguments

    def make(net: Translation) -> Value:
        value = net.settled(group[-1], tensor_of(net, outside[0]))
        if not {"sequence", "hidden"} <= set(value.axes):
            raise UnsupportedError
        options = {"bias": True} if given["bias"] is not None else {}
        experts = given["weight"].shape[0]
        layer = net.add(products[0], "router", value.layer, experts=experts, **options)
        for name in ("weight", "bias"):
            net.weight(given[name], layer)
        return net.value(layer)

    yield Region(nodes=frozenset(group), last=group[-1], make=make)


def _experts(key: str, group: list[TracedNode], data: set[TracedNode]) -> Iterator[Region]:
    """Grouped products over tokens that are sorted by their experts.

    Parameters
    ----------
    key, group
        A call of a module, and the nodes inside of it.
    data
        Nodes that depend on the samples.
    """
    products = [node for node in group if "grouped_mm" in node.operator]
    if len(products) != 2 or {node.calls[-1][0] for node in products} != {key}:
        return
    outside, read = _region_border(group, data)
    picks = [one for one in outside if one.is_call and one.operator != "topk"]
    tokens = [one for one in picks if one.shape[-1:] == products[0].args[0].shape[-1:]]
    if len(read) != 1 or len(tokens) != 1:
        return
    yield Region(
        nodes=frozenset(group),
        last=read[0],
        make=_experts_maker(read[0], tokens[0], outside, products),
    )


def _experts_maker(
    last: TracedNode, tokens: TracedNode, outside: Sequence[Any], products: Sequence[TracedNode]
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
        experts, hidden, wide = products[0].args[1].shape
        inner, out = products[1].args[1].shape[1:]
        value = net.settled(last, tensor_of(net, tokens))
        if "sequence" not in value.axes or value.axes.get("hidden") != hidden or out != hidden:
            raise UnsupportedError
        if net.axes(scores.layer).get("hidden") != experts:
            raise UnsupportedError
        rows = products[0].args[0].shape[0]
        top_k = rows // (value.axes["sequence"] * net.batch)
        sent = net.add(last, "dispatch", value.layer, experts=experts, top_k=top_k)
        first = net.add(last, "linear", sent, filters=wide, bias=False)
        gated = net.add(last, *(("glu", first) if wide == 2 * inner else ("activation", first)))
        second = net.add(last, "linear", gated, filters=out, bias=False)
        for product, layer in zip(products, (first, second), strict=True):
            net.new_weights([product.args[1]], layer)
        return net.value(net.add(last, "combine", second, scores.layer), shape=last.shape)

    return make
