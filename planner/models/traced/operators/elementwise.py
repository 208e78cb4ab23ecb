"""Operators that work position by position, and norms."""

from __future__ import annotations

import math

from msgspec.structs import replace

from costmodels.graph.kinds.pointwise import FUNCTIONS
from planner.models.traced.nodes import TracedNode
from planner.models.traced.operators.registry import dim_at, operator, tensor_of
from planner.models.traced.translation import (
    Translation,
    UnsupportedError,
    features,
    spatial_names,
)
from planner.models.traced.values import Value, reshaped

# Functions by the names of their operators, where those differ.
_CALLED = {
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
    "hardtanh": "hardtanh",
    "relu6": "relu6",
    "log_sigmoid": "logsigmoid",
}
UNARY = frozenset(
    {
        *(
            "abs",
            "neg",
            "pow",
            "sqrt",
            "rsqrt",
            "log",
            "log1p",
            "expm1",
            "cos",
            "erf",
            "reciprocal",
        ),
        *("clamp", "clamp_min", "clamp_max", "sign", "floor", "ceil", "round", "nan_to_num"),
        *("masked_fill", "logical_not", "bitwise_not", "fill", "tan", "atan", "exp2", "square"),
    }
)
ACTIVATIONS = frozenset({*FUNCTIONS, *_CALLED} - {"identity", "square", "prelu"})
BINARY = frozenset(
    {
        *("add", "sub", "rsub", "mul", "div", "true_divide", "maximum", "minimum", "lerp"),
        *("eq", "ne", "lt", "le", "gt", "ge", "where", "floor_divide", "remainder", "atan2"),
        *("logical_and", "logical_or", "bitwise_and", "bitwise_or", "__and__", "__or__"),
        *("addcmul", "addcdiv", "xlogy", "multiply", "subtract", "divide"),
    }
)
ELEMENTWISE = UNARY | ACTIVATIONS | BINARY


def like(net: Translation, value: Value, layer: str) -> Value:
    """What a layer writes that keeps the shape of a whole tensor.

    Parameters
    ----------
    net
        The network.
    value, layer
        The tensor, and the layer.
    """
    return replace(value, layer=layer, axes=net.axes(layer))


@operator(*sorted(ACTIVATIONS))
def _activation(net: Translation, node: TracedNode) -> Value:
    value = net.settled(node, tensor_of(net, node.all_input_nodes[0]))
    name = node.operator
    function = _CALLED.get(name, name)
    if name == "gelu" and node.arguments.get("approximate") == "tanh":
        function = "gelu_tanh"
    layer = net.add(node, "activation", value.layer, function=function)
    return like(net, value, layer)


@operator("prelu")
def _with_slopes(net: Translation, node: TracedNode) -> Value:
    value = net.settled(node, tensor_of(net, node.all_input_nodes[0]))
    slopes = node.all_input_nodes[1]
    count = math.prod(slopes.shape)
    if count > 1 and count != value.axes.get("channel"):
        if value.shape[1:2] != (count,):
            raise UnsupportedError
        # what were groups or features are channels
        value = net.renamed(node, value, ("channel", *spatial_names(len(value.dims) - 2)))
    new = net.new_weights([slopes], net.name(node))
    if not new:
        # slopes of another layer, or such as are not trained
        return like(net, value, net.add(node, "activation", value.layer, function="prelu"))
    options = {"slopes": 1} if count == 1 else {"weights": 1}
    return like(net, value, net.add(node, "pointwise", value.layer, **options))


@operator("detach")
def _without_gradient(net: Translation, node: TracedNode) -> Value:
    # a layer, so that plans that read views of what was written keep its gradient back, too
    value = net.settled(node, tensor_of(net, node.all_input_nodes[0]))
    return like(net, value, net.add(node, "pointwise", value.layer, keeps=False, detached=True))


@operator("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def _dropout_of(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    value = tensor_of(net, given.get("input", given.get("self")))  # in place it is "self"
    if not given.get("train", True) or not given["p"]:
        return value
    value = net.settled(node, value)
    return like(net, value, net.add(node, "dropout", value.layer, rate=float(given["p"])))


@operator(*sorted((BINARY | UNARY) - ACTIVATIONS))
def _pointwise(net: Translation, node: TracedNode) -> Value:
    values = [v for one in node.all_input_nodes if isinstance(v := net.known.get(one), Value)]
    name = node.operator
    if len(values) == 2 and values[0].shape != values[1].shape:
        return _broadcast(net, node, values)
    if len(values) > 2:
        raise UnsupportedError
    values = _alike(net, node, values)
    shape = node.shape
    if math.prod(shape) != math.prod(values[0].shape):
        raise UnsupportedError  # made larger by a constant
    product = name not in ("add", "sub", "rsub", "subtract")
    if len(values) == 2:
        if not product:
            return like(net, values[0], net.add(node, "add", *(one.layer for one in values)))
        layer = net.add(node, "pointwise", *(one.layer for one in values))
        return like(net, values[0], layer)
    return _with_constants(net, node, values[0], product)


def _with_constants(net: Translation, node: TracedNode, value: Value, product: bool) -> Value:
    """A tensor and what does not depend on the samples.

    Parameters
    ----------
    net, node
        The network, and the operator.
    value
        The tensor.
    product
        Whether it is more than a sum.
    """
    layer = net.name(node)
    weights = net.new_weights(node.all_input_nodes, layer)
    width = value.axes.get(features(value), 0)
    if weights and (not width or weights % width):
        raise UnsupportedError
    if weights == width and weights and not product:
        return like(net, value, net.add(node, "bias", value.layer))
    # the derivative of a function of one tensor is read from it, that of a product with a number
    # or a mask is not
    keeps = node.operator in UNARY - {"neg", "masked_fill", "clamp"}
    keeps = keeps or (weights > 0 and net.trains(node.all_input_nodes))
    more = {"weights": weights // width} if weights else {}
    return like(net, value, net.add(node, "pointwise", value.layer, keeps=keeps, **more))


def _alike(net: Translation, node: TracedNode, values: list[Value]) -> list[Value]:
    """Tensors with the same axes in the same places."""
    found = [net.settled(node, value) for value in values]
    if len(found) == 1 or found[0].dims == found[1].dims:
        return found
    first, second = found
    if _straight(second) and not _straight(first):
        return [_axes_of(net, node, first, second), second]
    return [first, _axes_of(net, node, second, first)]


def _straight(value: Value) -> bool:
    """Whether every part of its dims is a whole axis."""
    return all(part.stride == 1 and part.extent == value.axes[part.axis] for part in value.parts)


def _axes_of(net: Translation, node: TracedNode, value: Value, model: Value) -> Value:
    """A tensor with the axes of another one of its shape.

    Parameters
    ----------
    net, node
        The network, and the operator.
    value, model
        The tensor, and the other one.
    """
    parts = model.parts
    if not _straight(model) or parts[:1] != model.whole("sample"):
        raise UnsupportedError
    found = reshaped(value, [part.extent for part in parts])
    if found is None:
        raise UnsupportedError
    # kinds of layers compare axes in their order
    placed = dict(zip((part.axis for part in parts), found.dims, strict=True))
    names = [axis for axis in model.axes if axis in placed]
    found = replace(found, dims=tuple(placed[axis] for axis in names))
    return replace(net.renamed(node, found, names[1:]), dims=model.dims)


def _broadcast(net: Translation, node: TracedNode, values: list[Value]) -> Value:
    """A tensor and a smaller one that is the same for all positions of some axes."""
    large, small = sorted(values, key=lambda value: -math.prod(value.shape))
    large, small = net.settled(node, large), net.settled(node, small)
    shape = node.shape
    fits = math.prod(shape) == math.prod(large.shape) and len(small.dims) <= len(large.dims)
    dims = ((),) * (len(large.dims) - len(small.dims)) + small.dims
    alike = all(one in ((), other) for one, other in zip(dims, large.dims, strict=True))
    if not fits or not alike:
        raise UnsupportedError
    return like(net, large, net.add(node, "scale", large.layer, small.layer))


@operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    value = net.settled(node, tensor_of(net, node.all_input_nodes[0]))
    dim = value.dims[dim_at(value, given["dim"])]
    if dim != value.whole(features(value)):
        raise UnsupportedError
    return like(net, value, net.add(node, "softmax", value.layer))


@operator("batch_norm", "_native_batch_norm_legit_functional", "native_batch_norm")
def _batch_norm_of(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    return _norm_of_channels(net, node, given["input"], given["weight"], given["bias"])


@operator("group_norm", "instance_norm")
def _group_norm(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    net.remarks["Group and instance norm are costed as batch norm, which moves as much."] = None
    return _norm_of_channels(net, node, given["input"], given["weight"], given["bias"])


def _norm_of_channels(
    net: Translation, node: TracedNode, tensor: object, weight: object, bias: object
) -> Value:
    """A norm of a feature map.

    Parameters
    ----------
    net, node
        The network, and the operator.
    tensor, weight, bias
        What it reads; weight and bias may be None.
    """
    value = net.settled(node, tensor_of(net, tensor))
    if "channel" not in value.axes or value.dims[1:2] != (value.whole("channel"),):
        # what were features are channels and positions of space
        value = net.renamed(node, value, ("channel", *spatial_names(len(value.dims) - 2)))
    options: dict[str, object] = dict(_weight_vectors(net, weight, bias))
    if any(name.endswith("SyncBatchNorm") for _, _, name in node.calls[-1:]):
        options["statistics"] = "synchronised"
    layer = net.add(node, "batch_norm", value.layer, **options)
    return like(net, value, _counted(net, layer, weight, bias))


def _weight_vectors(net: Translation, weight: object, bias: object) -> dict[str, int]:
    """The option of how many vectors of a norm are trained, left out where both are."""
    vectors = sum(one is not None and not net.weight(one) for one in (weight, bias))
    return {} if vectors == 2 else {"weights": vectors}


def _counted(net: Translation, layer: str, *weights: object) -> str:
    for weight in weights:
        net.weight(weight, layer)
    return layer


@operator("layer_norm", "rms_norm", "_fused_rms_norm")
def _layer_norm_of(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    weight, bias = given["weight"], given.get("bias")
    kind = "layer_norm" if node.operator == "layer_norm" else "rms_norm"
    if len(given["normalized_shape"]) != 1:
        raise UnsupportedError
    return norm_of_features(net, node, tensor_of(net, given["input"]), kind, [weight, bias])


def norm_of_features(
    net: Translation, node: TracedNode, value: Value, kind: str, weights: list[object]
) -> Value:
    """A norm of the last dim of a tensor.

    Parameters
    ----------
    net, node
        The network, and the operator.
    value
        The tensor.
    kind
        "layer_norm" or "rms_norm".
    weights
        What stands for its weight and its bias; None for what it has not.
    """
    value = net.settled(node, value)
    last, axis = value.dims[-1], features(value)
    if last == value.whole(axis):
        usual = 2 if kind == "layer_norm" else 1
        vectors = sum(one is not None and not net.weight(one) for one in weights)
        options = {} if vectors == usual else {"weights": vectors}
        layer = net.add(node, kind, value.layer, **options)
    elif len(last) == 1 and last[0].axis == axis == "hidden" and last[0].stride == 1:
        heads = value.axes[axis] // last[0].extent
        count = sum(one is not None and not net.weight(one) for one in weights)
        layer = net.add(node, "head_norm", value.layer, heads=heads, weights=count)
    else:
        raise UnsupportedError
    return like(net, value, _counted(net, layer, *weights))


@operator("cross_entropy_loss", "nll_loss", "nll_loss_nd")
def _loss(net: Translation, node: TracedNode) -> Value:
    value = net.settled(node, tensor_of(net, node.arguments["self"]))
    layer = net.add(node, "loss", value.layer)
    return Value(layer=layer, axes=net.axes(layer), dims=())
