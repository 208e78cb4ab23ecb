"""Operators that multiply by a weight, have a window, or change extents of space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.graph import SPATIAL_DIMS
from planner.models.traced.nodes import TracedNode
from planner.models.traced.operators.registry import dim_at, operator, tensor_of
from planner.models.traced.translation import Constant, Translation, UnsupportedError, spatial_names
from planner.models.traced.values import Value, joined


def _plain(values: Any) -> Any:
    """One number where all are alike, as network files are written."""
    if not isinstance(values, list | tuple):
        return values
    found = tuple(int(value) for value in values)
    return found[0] if len(set(found)) == 1 else found


def _image(net: Translation, node: TracedNode, value: Value) -> Value:
    """A tensor of channels and positions of space."""
    return net.renamed(node, value, ("channel", *spatial_names(len(value.dims) - 2)))


def _shared(net: Translation, weight: object) -> dict[str, str]:
    """The option that says whose weight this is, where a layer has counted it."""
    owner = net.weight(weight)
    return {"share": owner} if owner else {}


@operator("conv1d", "conv2d", "conv3d")
def _convolution(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    weight = given["weight"].shape
    x = tensor_of(net, given["input"])
    if len(x.dims) != len(weight):
        raise UnsupportedError
    padding = given["padding"]
    if isinstance(padding, str):
        padding = "same" if padding == "same" else 0
    options = {
        "filters": weight[0],
        "kernel": _plain(weight[2:]),
        "stride": _plain(given["stride"]),
        "padding": padding if isinstance(padding, str) else _plain(padding),
        "dilation": _plain(given["dilation"]),
        "groups": int(given["groups"]),
        "bias": given["bias"] is not None,
    }
    usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": False}
    options = {name: value for name, value in options.items() if usual.get(name) != value}
    shared = _shared(net, given["weight"])
    if x.is_whole and set(x.axes) == {"sample", "channel"} and set(weight[2:]) == {1}:
        # what is left of space after it was averaged
        options = {"filters": weight[0], "bias": given["bias"] is not None}
        layer = net.add(node, "linear", x.layer, **options, **shared)
    else:
        layer = net.add(node, "conv", _image(net, node, x).layer, **options, **shared)
    _count_weights(net, layer, given)
    return net.value(layer, shape=node.shape)


def _count_weights(net: Translation, layer: str, given: Mapping[str, Any]) -> None:
    """Count weight and bias at a layer."""
    for name in ("weight", "bias"):
        net.weight(given.get(name), layer)


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    weight = given["weight"].shape
    x = tensor_of(net, given["input"])
    kernel = list(weight[2:])
    apart = list(given["stride"]) * (len(kernel) // len(given["stride"])) == kernel
    if not apart or any(given["padding"]) or any(given["output_padding"]) or given["groups"] != 1:
        raise UnsupportedError
    layer = net.add(
        node,
        "conv",
        _image(net, node, x).layer,
        filters=weight[1],
        kernel=_plain(kernel),
        stride=_plain(kernel),
        bias=given["bias"] is not None,
        transposed=True,
        **_shared(net, given["weight"]),
    )
    _count_weights(net, layer, given)
    return net.value(layer, shape=node.shape)


def times_weight(
    net: Translation, node: TracedNode, value: Value, weight: object, filters: int, bias: object
) -> Value:
    """Features times a weight, at whatever positions there are.

    Parameters
    ----------
    net, node
        The network, and the operator.
    value
        The tensor, whose last dim is the features.
    weight, bias
        What stands for both; the bias may be None.
    filters
        Features of the output. [items]
    """
    if not value.dims:
        raise UnsupportedError
    last, leading = value.dims[-1], joined([p for dim in value.dims[:-1] for p in dim])
    if [part for part in leading if part.axis == "sample"] != list(value.whole("sample")):
        raise UnsupportedError
    middle, axes = joined([part for part in leading if part.axis != "sample"]), value.axes
    again = bias is not None and net.weight(bias) == net.weight(weight)
    shared = _shared(net, weight)
    # layers that share a weight are as large as each other, whatever their biases are
    apart = bias is not None and (not again if shared else _has_other_bias(node, weight, bias, net))
    options = {**shared, "filters": filters, "bias": bias is not None and not apart}
    space = tuple(axis for axis in axes if axis in SPATIAL_DIMS)
    outside = tuple(axis for axis in ("sequence",) if axis in axes)
    kept = joined([part for axis in (*outside, *space) for part in value.whole(axis)])
    rest = [part for axis in axes if axis != "sample" for part in value.whole(axis)]
    if (value.is_whole and not middle and not outside and last == joined(rest)) or (
        value.is_whole and "hidden" in axes and not space and middle == kept
    ):
        layer = net.add(node, "linear", value.layer, **options)
    elif value.is_whole and space and middle == kept and last == value.whole("channel"):
        layer = net.add(node, "conv", value.layer, kernel=1, **options)
    else:
        positions = math.prod(part.extent for part in middle)
        width = value.shape[-1]
        names = {"sequence": positions, "hidden": width} if middle else {"channel": width}
        along = {}
        for name, dim in zip(names, (middle, last) if middle else (last,), strict=True):
            source = dim[0].axis if len(dim) == 1 else ""
            if source and source not in value.slices and dim == value.whole(source):
                along[name] = source
        source = net.add(node, "rearrange", value.layer, axes=names, along=along)
        before = [axis for axis in net.axes(source) if axis != "sample"]
        before.insert(1 if middle and leading[-1].axis == "sample" else 0, "sample")
        net.moves[source] = (value, net.value(source, before, value.shape))
        layer = net.add(node, "linear", source, **options)
    net.weight(weight, layer)
    if apart:
        layer = net.add(node, "bias", layer)
    net.weight(bias, layer)
    written = net.axes(layer)
    order = [axis for axis in written if axis not in ("channel", "hidden")]
    if leading and leading[-1].axis == "sample":
        order = [*order[1:], "sample"]
    return net.value(layer, [*order, *(n for n in written if n not in order)], node.shape)


def _has_other_bias(node: TracedNode, weight: object, bias: object, net: Translation) -> bool:
    """Whether another linear operator reads a weight with another bias, or with none.

    Parameters
    ----------
    node, weight, bias, net
        As of `times_weight`.
    """
    if not isinstance(weight, TracedNode) or not weight.weight:
        return False
    if isinstance(bias, TracedNode) and len(bias.users) > 1:
        return False  # a bias that is added by itself is counted at each layer that adds it
    others = (one for held in net.holders(weight.weight) for one in held.users if one is not node)
    biases = (one.arguments.get("bias") for one in others if one.operator == node.operator)
    same = isinstance(bias, TracedNode) and bias.weight
    return any(not isinstance(one, TracedNode) or one.weight != same for one in biases)


@operator("linear")
def _linear(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    x = tensor_of(net, given["input"])
    filters = given["weight"].shape[0]
    return times_weight(net, node, x, given["weight"], filters, given["bias"])


@operator("addmm", "mm", "matmul")
def _product(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    names = (
        ("mat1", "mat2") if "mat1" in given else ("self", "mat2" if "mat2" in given else "other")
    )
    x, weight = (given[name] for name in names)
    constant = net.known.get(weight)
    if not isinstance(constant, Constant) or len(weight.shape) != 2 or not constant.weights:
        raise UnsupportedError
    bias = given["self"] if node.operator == "addmm" else None
    return times_weight(net, node, tensor_of(net, x), weight, weight.shape[1], bias)


@operator("embedding")
def _embedding_of(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    indices = tensor_of(net, given["indices"])
    rows, filters = given["weight"].shape
    x = net.settled(node, indices)
    if "channel" in x.axes and "sequence" not in x.axes:
        x = net.renamed(node, x, ("sequence",))
    layer = net.add(
        node,
        "embedding",
        x.layer,
        rows=rows,
        filters=filters,
        **_shared(net, given["weight"]),
    )
    net.weight(given["weight"], layer)
    return net.value(layer, shape=node.shape)


@operator(
    *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),
)
def _pool_of(net: Translation, node: TracedNode) -> object:
    given = node.arguments
    x = tensor_of(net, given["self"])
    if any(n != 1 for n in given.get("dilation") or ()):
        raise UnsupportedError
    layer = net.add(
        node,
        "pool",
        _image(net, node, x).layer,
        kernel=_plain(given["kernel_size"]),
        stride=_plain(given["stride"] or given["kernel_size"]),
        padding=_plain(given["padding"]),
        mode="max" if node.operator.startswith("max") else "average",
        ceil_mode=bool(given["ceil_mode"]),
    )
    found = net.value(layer, shape=node.shape)
    return (found, found) if node.operator.endswith("indices") else found


@operator(
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
)
def _adaptive_pool(net: Translation, node: TracedNode) -> object:
    x, wanted = tensor_of(net, node.all_input_nodes[0]), node.shape[2:]
    there = x.shape[2:]
    mode = "max" if "max" in node.operator else "average"
    if there == wanted:
        return x
    source = _image(net, node, x).layer
    if set(wanted) == {1} and mode == "average":
        return net.value(net.add(node, "global_pool", source), shape=node.shape)
    if any(extent % target for extent, target in zip(there, wanted, strict=True)):
        # windows that differ by one where the division leaves a remainder change no count
        net.remarks["Adaptive pooling is costed with windows of one size."] = None
    steps = [extent // target for extent, target in zip(there, wanted, strict=True)]
    kernel = [e - (t - 1) * s for e, t, s in zip(there, wanted, steps, strict=True)]
    layer = net.add(node, "pool", source, kernel=_plain(kernel), stride=_plain(steps), mode=mode)
    found = net.value(layer, shape=node.shape)
    return (found, found) if mode == "max" else found


@operator("mean", "sum")
def _mean_of(net: Translation, node: TracedNode) -> Value:
    given = node.arguments
    x = tensor_of(net, given["self"])
    dims = sorted(dim_at(x, dim) for dim in given.get("dim") or ())
    space = tuple(axis for axis in x.axes if axis in SPATIAL_DIMS)
    reduced = joined([part for dim in dims for part in x.dims[dim]])
    everything = joined([part for axis in space for part in x.whole(axis)])
    if not x.is_whole or not space or reduced != everything:
        raise UnsupportedError
    layer = net.add(node, "global_pool", x.layer)
    order = list(dict.fromkeys(p.axis for p in x.parts if p.axis not in space))
    return net.value(layer, [*order, *(set(net.axes(layer)) - set(order))], node.shape)


@operator(
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("upsample_bilinear2d", "upsample_trilinear3d", "upsample_linear1d", "upsample_bicubic2d"),
)
def _upsample(net: Translation, node: TracedNode) -> Value:
    x = tensor_of(net, node.all_input_nodes[0])
    before, after = x.shape[2:], node.shape[2:]
    factors = {
        large // small if large % small == 0 else 0
        for small, large in zip(before, after, strict=True)
    }
    if len(factors) != 1 or 0 in factors:
        raise UnsupportedError
    layer = net.add(node, "upsample", _image(net, node, x).layer, factor=factors.pop())
    return net.value(layer, shape=node.shape)


@operator("cat", "concat", "concatenate")
def _concatenate(net: Translation, node: TracedNode) -> Value:
    parts: Sequence[object] = node.arguments["tensors"]
    found = [net.known.get(part) for part in parts]
    values = [one for one in found if isinstance(one, Value)]
    dim = dim_at(values[0], node.arguments["dim"])
    if len(values) < len(found):
        return _with_class_tokens(net, node, found, values, dim)
    if len(values) == 1:
        return values[0]
    if dim != 1 or len({len(value.dims) for value in values}) != 1:
        raise UnsupportedError
    sources = [_image(net, node, value).layer for value in values]
    return net.value(net.add(node, "concat", *sources), shape=node.shape)


def _with_class_tokens(
    net: Translation, node: TracedNode, found: Sequence[object], values: Sequence[Value], dim: int
) -> Value:
    """Learned tokens before those of positions of space, to which positions are added next.

    Parameters
    ----------
    net, node
        The network, and the operator.
    found, values
        All that is put together, and what of it depends on the samples.
    dim
        Along which dim. [items]
    """
    reader = next(iter(node.users), None)
    (x, *others) = values
    space = tuple(axis for axis in x.axes if axis in SPATIAL_DIMS)
    positions = joined([part for axis in space for part in x.whole(axis)])
    shaped = len(x.dims) == 3 and x.dims[1] == positions and x.dims[2] == x.whole("channel")
    added = reader is not None and reader.operator == "add" and len(node.users) == 1
    if others or dim != 1 or not space or not x.is_whole or not shaped or not added:
        raise UnsupportedError
    more = node.shape[1] - x.shape[1]
    read = reader.all_input_nodes if reader is not None else []
    position = next((one for one in read if one is not node), None)
    known = net.known.get(position) if position is not None else None
    if not isinstance(known, Constant) or len(known.weights) != 1:
        raise UnsupportedError
    if sum(net.sizes[name] for name in known.weights) != math.prod(node.shape[1:]):
        raise UnsupportedError
    layer = net.add(node, "tokens", x.layer, class_tokens=more)
    for one in (*found, known):
        if isinstance(one, Constant):
            net.owners |= dict.fromkeys(one.weights, layer)
    return net.value(layer, shape=node.shape)
