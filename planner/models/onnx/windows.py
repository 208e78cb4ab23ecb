"""ONNX's operators with a window: convolutions and pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodels.errors import InputError
from planner.models.onnx.files import shown
from planner.models.onnx.graph import Attributes, OnnxGraph
from planner.models.traced.nodes import TracedNode

if TYPE_CHECKING:
    from onnx import NodeProto


def _symmetric_padding(of: Attributes, rank: int) -> list[int] | str | None:
    """Padding of each dim of space, "same", or None where the two ends differ.

    Parameters
    ----------
    of
        Attributes of the operator.
    rank
        Dims of space. [items]
    """
    automatic = of.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return "same"
    if automatic == "VALID":
        return [0] * rank
    pads = list(of.get("pads") or [0] * (2 * rank))
    return pads[:rank] if pads[:rank] == pads[rank:] else None


def _weight_and_bias(graph: OnnxGraph, node: NodeProto) -> dict[str, Any]:
    """Weight and bias; a bias that is not trained is none."""
    bias = graph.known[node.input[2]] if len(node.input) > 2 and node.input[2] else None
    return {
        "weight": graph.known[node.input[1]],
        "bias": bias if bias in graph.trained else None,
    }


def _pads_as_same(graph: OnnxGraph, node: NodeProto, of: Attributes) -> bool:
    """Whether padding that was written out is that of "same": of an odd number more at the end.

    Parameters
    ----------
    graph, node, of
        What is known so far, the convolution, and its attributes.
    """
    extents, kernel = graph.shape(node.input[0])[2:], graph.shape(node.input[1])[2:]
    outputs, rank = graph.shape(node.output[0])[2:], len(kernel)
    strides, dilations = of.get("strides", [1] * rank), of.get("dilations", [1] * rank)
    rows = zip(extents, outputs, kernel, strides, dilations, strict=True)
    total = []
    for extent, output, size, stride, dilation in rows:
        if output != -(-extent // stride):
            return False
        total.append(max(0, (output - 1) * stride + (size - 1) * dilation + 1 - extent))
    return list(of["pads"]) == [n // 2 for n in total] + [n - n // 2 for n in total]


def _with_zeros(
    graph: OnnxGraph, node: NodeProto, of: Attributes
) -> tuple[TracedNode, list[int]] | None:
    """What a convolution reads with the zeros that one end has more of, and what is left to pad.

    Parameters
    ----------
    graph, node, of
        What is known so far, the convolution, and its attributes.
    """
    shape = graph.shape(node.input[0])
    rank = len(shape) - 2
    firsts, lasts = list(of["pads"][:rank]), list(of["pads"][rank:])
    if min(*firsts, *lasts) < 0:
        return None
    both = [min(ends) for ends in zip(firsts, lasts, strict=True)]
    ends: list[int] = []
    extents = list(shape)
    for dim in reversed(range(rank)):  # PyTorch begins with the last dim
        ends += [firsts[dim] - both[dim], lasts[dim] - both[dim]]
        extents[2 + dim] += sum(ends[-2:])
    zeros = graph.node(
        "pad", {"self": graph.known[node.input[0]], "pad": ends}, [tuple(extents)], node
    )
    # an operator beside the convolution: that keeps the name of the module
    zeros.calls = zeros.calls[:-1]
    return zeros, both


def _check_channels(graph: OnnxGraph, node: NodeProto, of: Attributes) -> None:
    """Refuse a weight of other channels than those that are read: ONNX lets it pass.

    Parameters
    ----------
    graph, node, of
        What is known so far, the operator, and its attributes.
    """
    channels, weight = graph.shape(node.input[0])[1], graph.shape(node.input[1])
    groups, transposed = int(of.get("group", 1)), node.op_type == "ConvTranspose"
    filters = weight[1] * groups if transposed else weight[0]
    read = weight[0] if transposed else weight[1] * groups
    called = f"{shown(node)} of {graph.called}"
    if groups < 1 or channels % groups or filters % groups:
        rule = f"divide its {channels} channels and its {filters} filters"
        raise InputError.rule(f"the groups of {called}", rule, groups, "export it again")
    if channels != read:
        raise InputError.rule(
            f"the weight of {called}",
            f"read {channels} channels as its input has",
            f"{read} (of the shape {list(weight)} with {groups} group{'s' * (groups > 1)})",
            "export it again, or correct --input",
        )


def convolution_of(graph: OnnxGraph, node: NodeProto, of: Attributes) -> TracedNode | None:
    """A convolution, of which one end that has more zeros reads them from an operator before it.

    Parameters
    ----------
    graph, node, of
        What is known so far, the operator, and its attributes.
    """
    _check_channels(graph, node, of)
    if graph.known[node.input[1]] not in graph.trained:
        return None
    if _symmetric_padding(of, len(graph.shape(node.input[0])) - 2) is not None:
        return _convolved(graph, node, of, "conv", {})
    if _pads_as_same(graph, node, of):
        return _convolved(graph, node, of, "conv", {"padding": "same"})
    padded = _with_zeros(graph, node, of)
    if padded is None:
        return None
    return _convolved(graph, node, of, "conv", {"input": padded[0], "padding": padded[1]})


def transposed_convolution(graph: OnnxGraph, node: NodeProto, of: Attributes) -> TracedNode | None:
    """A transposed convolution, None where its padding is not the same at both ends.

    Parameters
    ----------
    graph, node, of
        What is known so far, the operator, and its attributes.
    """
    _check_channels(graph, node, of)
    rank = len(graph.shape(node.input[0])) - 2
    if "output_shape" in of or of.get("auto_pad") in ("SAME_UPPER", "SAME_LOWER"):
        return None
    beyond = {"output_padding": list(of.get("output_padding", [0] * rank))}
    return _convolved(graph, node, of, "conv_transpose", beyond)


def _convolved(
    graph: OnnxGraph, node: NodeProto, of: Attributes, operator: str, more: dict[str, Any]
) -> TracedNode | None:
    """What both kinds of convolutions have in common.

    Parameters
    ----------
    graph, node, of
        What is known so far, the operator, and its attributes.
    operator, more
        What PyTorch calls it, without its rank, and arguments of its own.
    """
    rank = len(graph.shape(node.input[0])) - 2
    strides = list(of.get("strides", [1] * rank))
    padding = more.get("padding", _symmetric_padding(of, rank))
    if padding is None or not 1 <= rank <= 3:
        return None
    given = {
        "input": graph.known[node.input[0]],
        **_weight_and_bias(graph, node),
        "stride": strides,
        "padding": padding,
        "dilation": list(of.get("dilations", [1] * rank)),
        "groups": int(of.get("group", 1)),
        **more,
    }
    return graph.node(f"{operator}{rank}d", given, [graph.shape(node.output[0])], node)


def pooling_of(graph: OnnxGraph, node: NodeProto, of: Attributes) -> TracedNode | None:
    """Pooling, of which one end that has more padding reads it from an operator before it.

    That is not needed where as many outputs are made, by rounding their number up if need be.

    Parameters
    ----------
    graph, node, of
        What is known so far, the operator, and its attributes.
    """
    rank = len(graph.shape(node.input[0])) - 2
    if not 1 <= rank <= 3:
        return None
    kernel, strides = list(of["kernel_shape"]), list(of.get("strides", [1] * rank))
    x, padding = graph.known[node.input[0]], _symmetric_padding(of, rank)
    ceil_mode = bool(of.get("ceil_mode", 0))
    if not isinstance(padding, list):
        pads = _written_pads(graph, node, of)
        padding, outputs = pads[:rank], graph.shape(node.output[0])[2:]
        ways = [
            up for up in (False, True) if _pooled_extents(graph, node, of, padding, up) == outputs
        ]
        if ways and _fit_pool(padding, kernel):
            ceil_mode = ways[0]
        else:
            padded = _with_zeros(graph, node, {**of, "pads": pads})
            if padded is None or not _fit_pool(padded[1], kernel):
                return None
            x, padding = padded
    if {*kernel, *strides} == {1} and not any(padding):
        return x
    kind = "max" if node.op_type == "MaxPool" else "avg"
    given = {
        "self": x,
        "kernel_size": kernel,
        "stride": strides,
        "padding": padding,
        "dilation": list(of.get("dilations", [1] * rank)),
        "ceil_mode": ceil_mode,
    }
    return graph.node(f"{kind}_pool{rank}d", given, [graph.shape(node.output[0])], node)


def _fit_pool(padding: list[int], kernel: list[int]) -> bool:
    """Whether pools may be padded so, by at most half of the kernel."""
    return all(0 <= 2 * pad <= size for pad, size in zip(padding, kernel, strict=True))


def _written_pads(graph: OnnxGraph, node: NodeProto, of: Attributes) -> list[int]:
    """Padding of a pool at the start of each dim of space, then at the end of each.

    Parameters
    ----------
    graph, node, of
        What is known so far, the pool, and its attributes.
    """
    if of.get("auto_pad", "NOTSET") == "NOTSET":
        return list(of["pads"])
    extents, outputs = graph.shape(node.input[0])[2:], graph.shape(node.output[0])[2:]
    rank = len(extents)
    strides, dilations = of.get("strides", [1] * rank), of.get("dilations", [1] * rank)
    rows = zip(extents, outputs, of["kernel_shape"], strides, dilations, strict=True)
    total = [max(0, (out - 1) * s + (k - 1) * d + 1 - extent) for extent, out, k, s, d in rows]
    smaller, larger = [n // 2 for n in total], [n - n // 2 for n in total]
    return smaller + larger if of["auto_pad"] == "SAME_UPPER" else larger + smaller


def _pooled_extents(
    graph: OnnxGraph, node: NodeProto, of: Attributes, padding: list[int], up: bool
) -> tuple[int, ...]:
    """Extents of what a pool with the same padding at both ends makes. [items]

    Parameters
    ----------
    graph, node, of
        What is known so far, the pool, and its attributes.
    padding, up
        Padding of each dim, and whether a last window that reaches beyond it counts.
    """
    extents, rank = graph.shape(node.input[0])[2:], len(padding)
    strides, dilations = of.get("strides", [1] * rank), of.get("dilations", [1] * rank)
    found = []
    rows = zip(extents, of["kernel_shape"], strides, dilations, padding, strict=True)
    for extent, size, stride, dilation, pad in rows:
        span = extent + 2 * pad - (size - 1) * dilation - 1
        count = (-(-span // stride) if up else span // stride) + 1
        # the last window must start inside the input or its left padding
        found.append(count - 1 if up and (count - 1) * stride >= extent + pad else count)
    return tuple(found)
