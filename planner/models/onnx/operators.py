"""ONNX's operators in the terms of PyTorch's: what the layers of traced modules are made from.

An operator that is not here keeps its own name, and becomes an opaque layer where it depends on the
samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from planner.models.onnx.files import clean
from planner.models.onnx.graph import OnnxGraph, attributes, numbers_of
from planner.models.onnx.norms import norm_put_back, norm_with_weights
from planner.models.onnx.weights import trained_input
from planner.models.onnx.windows import convolution_of, pooling_of, transposed_convolution
from planner.models.traced.nodes import TracedNode

if TYPE_CHECKING:
    from onnx import NodeProto

# What an operator makes first; None where it is used as PyTorch has no operator for.
Found: TypeAlias = "TracedNode | None"
Translator: TypeAlias = "Callable[[OnnxGraph, NodeProto, dict[str, Any]], TracedNode | None]"

# Operators of the same meaning that read tensors alone.
_SAME = {
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Exp", "Log")},
    **{name: name.lower() for name in ("Abs", "Neg", "Erf", "Cos", "Sin", "Sign", "Floor", "Ceil")},
    **{name: name.lower() for name in ("Relu", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Mish")},
    **{name: name.lower() for name in ("Softplus", "Softsign", "HardSigmoid", "HardSwish")},
    **{name: name.lower() for name in ("Where", "Reciprocal", "Round", "PRelu", "Tan", "Atan")},
    "LeakyRelu": "leaky_relu",
    "Swish": "silu",
    "ThresholdedRelu": "threshold",
    "Max": "maximum",
    "Min": "minimum",
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "And": "logical_and",
    "Or": "logical_or",
    "Not": "logical_not",
    "Shrink": "softshrink",
    "Resize": "upsample_nearest2d",
    "Upsample": "upsample_nearest2d",
    "Expand": "expand",
    "Reshape": "reshape",
    "Flatten": "reshape",
    "Squeeze": "reshape",
    "Unsqueeze": "reshape",
}
# Operators whose first tensor is what they make, at least as far as its cost goes.
_PASSED_ON = frozenset({"Identity", "Cast", "CastLike"})


def translate(graph: OnnxGraph, node: NodeProto) -> None:
    """Add what an operator is, and say which node makes each of its tensors."""
    made = [name for name in node.output if name]
    if all(name in graph.known for name in made):
        return  # a part of what was before it
    of = attributes(node)
    found: Found = None
    ours = node.domain in ("", "ai.onnx")
    if node.op_type == "Constant" and ours:
        _constant(graph, node, of)
        return
    depends = any(graph.known[name] in graph.data for name in node.input if name)
    if depends and ours and node.op_type not in ("Shape", "Size"):
        if node.op_type in _PASSED_ON:
            found = graph.known[node.input[0]]
        elif node.op_type in _TRANSLATED:
            found = _TRANSLATED[node.op_type](graph, node, of)
    if found is None:
        found = _as_is(graph, node)
    if not made:
        return
    graph.known[made[0]] = graph.known.get(made[0], found)
    for place, name in enumerate(node.output):
        if name and name not in graph.known:
            graph.known[name] = graph.node(
                "getitem", {"0": found, "1": place}, [graph.shape(name)], node
            )


def _constant(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> None:
    """Numbers in the graph itself."""
    import numpy as np
    from onnx import helper

    (value,) = of.values()
    name = node.output[0]
    graph.give(name, graph.types[name])
    kind = helper.tensor_dtype_to_np_dtype(graph.types[name].tensor_type.elem_type)
    found = numbers_of(value) if hasattr(value, "raw_data") else np.array(value, dtype=kind)
    if found is not None and found.shape == graph.shape(name):
        graph.values[name] = found


def _as_is(graph: OnnxGraph, node: NodeProto) -> TracedNode:
    """An operator as it is; masks and positions are told by how these are made."""
    name = _SAME.get(node.op_type, clean(node.op_type).lower())
    if node.op_type == "Trilu":
        name = "triu" if attributes(node).get("upper", 1) else "tril"
    if node.op_type in ("Shape", "Size"):
        name = "sym_size"
    given = [graph.argument(one) for one in node.input if one]
    if node.op_type in _PASSED_ON:
        given = given[:1]
    shapes = [graph.shape(one) for one in node.output if one]
    return graph.node(name, {str(n): one for n, one in enumerate(given)}, shapes, node)


def _first(
    graph: OnnxGraph, node: NodeProto, operator: str, arguments: dict[str, Any]
) -> TracedNode:
    """An operator of which the first tensor alone is read.

    Parameters
    ----------
    graph, node
        What is known so far, and the operator of the file.
    operator, arguments
        What it is.
    """
    found = graph.node(operator, arguments, [graph.shape(node.output[0])], node)
    # others are of statistics and positions, which cost nothing by themselves
    for name in filter(None, node.output[1:]):
        graph.give(name, graph.types[name])
    graph.known[node.output[0]] = found
    return found


def _norm(operator: str) -> Translator:
    def make(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
        shape = graph.shape(node.input[0])
        weights = {"weight": trained_input(graph, node, 1), "bias": trained_input(graph, node, 2)}
        axis = int(of.get("axis", -1)) % max(len(shape), 1)
        given = {"input": graph.known[node.input[0]], **weights, "normalized_shape": shape[axis:]}
        return _first(graph, node, operator, given)

    return make


def _times_matrix(
    graph: OnnxGraph, node: NodeProto, weight: TracedNode, transposed: bool, bias: Found
) -> TracedNode:
    """Features times a weight.

    Parameters
    ----------
    graph, node
        What is known so far, and the operator.
    weight, bias
        Both; the bias may be None.
    transposed
        Whether the weight has its outputs last.
    """
    if transposed:
        weight = graph.node("t", {"self": weight}, [weight.shape[::-1]], node)
    given = {"input": graph.known[node.input[0]], "weight": weight, "bias": bias}
    return graph.node("linear", given, [graph.shape(node.output[0])], node)


def _matrix_product(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    weight = graph.known[node.input[1]]
    if weight in graph.trained and len(weight.shape) == 2:
        bias, reader = _bias_added_next(graph, node, weight.shape[1])
        found = _times_matrix(graph, node, weight, True, bias)
        if reader is not None:
            graph.known[reader.output[0]] = found
        return found
    left, right = (graph.known[name] for name in node.input)
    fused = any("'scaled_dot_product_attention" in one.value for one in node.metadata_props)
    given = {"self": left, "other": right, "fused": fused}
    return graph.node("matmul", given, [graph.shape(node.output[0])], node)


def _bias_added_next(
    graph: OnnxGraph, node: NodeProto, filters: int
) -> tuple[TracedNode | None, NodeProto | None]:
    """The bias of a product that the next operator adds, and that operator.

    Parameters
    ----------
    graph, node
        What is known so far, and the product.
    filters
        Its features. [items]
    """
    out = node.output[0]
    readers = graph.readers.get(out, [])
    if len(readers) != 1 or readers[0].op_type != "Add" or len(readers[0].input) != 2:
        return None, None
    (reader,) = readers
    if any(one.name == out for one in graph.model.graph.output):
        return None, None
    place = 1 if reader.input[0] == out else 0
    bias = graph.known.get(reader.input[place])
    if bias is None or bias not in graph.trained or bias.shape != (filters,):
        return None, None
    return trained_input(graph, reader, place, graph.known[node.input[1]]), reader


def _gemm(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    weight = graph.known[node.input[1]]
    if of.get("transA") or weight not in graph.trained:
        return None
    bias = trained_input(graph, node, 2, weight)
    return _times_matrix(graph, node, weight, not of.get("transB"), bias)


def _gather_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    table, indices = (graph.known[name] for name in node.input[:2])
    axis, shape = int(of.get("axis", 0)), graph.shape(node.output[0])
    if table not in graph.data and len(table.shape) == 2 and axis == 0:
        return graph.node("embedding", {"weight": table, "indices": indices}, [shape], node)
    at = graph.values.get(node.input[1])
    if table in graph.data and at is not None and at.ndim == 0:
        given = {"self": table, "dim": axis, "index": int(at)}
        return graph.node("select", given, [shape], node)
    return None


def _softmax_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    name = "softmax" if node.op_type == "Softmax" else "log_softmax"
    given = {"self": graph.known[node.input[0]], "dim": int(of.get("axis", -1))}
    return graph.node(name, given, [graph.shape(node.output[0])], node)


def _clip_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    ends = [graph.argument(name) if name else None for name in node.input[1:]]
    ends = ends or [of.get("min"), of.get("max")]
    name = "relu6" if ends == [0, 6] else "clamp"
    given = {"self": graph.known[node.input[0]]}
    return graph.node(name, given, [graph.shape(node.output[0])], node)


def _gelu(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    given = {"self": graph.known[node.input[0]], "approximate": of.get("approximate", "none")}
    return graph.node("gelu", given, [graph.shape(node.output[0])], node)


def _slopes_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    given, slopes = (graph.known[name] for name in node.input)
    rank = len(given.shape) - len(slopes.shape)
    dims = [rank + dim for dim, extent in enumerate(slopes.shape) if extent != 1]
    # PyTorch has slopes of channels alone; others move as much as a product does
    name = "prelu" if dims in ([], [1]) else "mul"
    return graph.node(name, {"self": given, "weight": slopes}, [graph.shape(node.output[0])], node)


def _dropping_out(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    rate = of.get("ratio", 0.5)
    if len(node.input) > 1 and node.input[1]:
        rate = graph.argument(node.input[1])
    if not isinstance(rate, float) or not 0.0 <= rate < 1.0:
        return None
    # single precision, as it was written
    given = {"input": graph.known[node.input[0]], "p": float(f"{rate:.6g}"), "train": True}
    return _first(graph, node, "dropout", given)


def _reduction_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    rank = len(graph.shape(node.input[0]))
    dims = graph.numbers(node, 1, "axes") or list(range(rank))
    given = {"self": graph.known[node.input[0]], "dim": dims}
    name = "mean" if node.op_type == "ReduceMean" else "sum"
    return graph.node(name, given, [graph.shape(node.output[0])], node)


def _global_pool_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    given = {"self": graph.known[node.input[0]]}
    return graph.node("adaptive_avg_pool2d", given, [graph.shape(node.output[0])], node)


def _transpose(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    dims = list(of.get("perm", range(len(graph.shape(node.input[0])) - 1, -1, -1)))
    given = {"self": graph.known[node.input[0]], "dims": dims}
    return graph.node("permute", given, [graph.shape(node.output[0])], node)


def _concat_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    given = {"tensors": [graph.known[name] for name in node.input], "dim": int(of["axis"])}
    return graph.node("cat", given, [graph.shape(node.output[0])], node)


def _slices(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    shape = list(graph.shape(node.input[0]))
    starts, ends = graph.numbers(node, 1, "starts"), graph.numbers(node, 2, "ends")
    if starts is None or ends is None:
        return None
    axes = graph.numbers(node, 3, "axes") or list(range(len(starts)))
    steps = graph.numbers(node, 4, "steps") or [1] * len(starts)
    if any(step != 1 for step in steps):
        return None
    found = graph.known[node.input[0]]
    for start, end, axis in zip(starts, ends, axes, strict=False):
        first, last, _ = slice(start, end).indices(shape[axis])
        shape[axis] = max(last - first, 0)
        given = {"self": found, "dim": axis, "start": first, "end": last, "step": 1}
        found = graph.node("slice", given, [tuple(shape)], node)
    return found


def _split_into(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    given = {"self": graph.known[node.input[0]], "dim": int(of.get("axis", 0))}
    shapes = [graph.shape(name) for name in node.output]
    found = graph.node("split", given, shapes, node)
    for place, name in enumerate(node.output):
        graph.known[name] = graph.node("getitem", {"0": found, "1": place}, [shapes[place]], node)
    return found


def _loss_of(graph: OnnxGraph, node: NodeProto, of: dict[str, Any]) -> Found:
    given = {"self": graph.known[node.input[0]]}
    return _first(graph, node, "cross_entropy_loss", given)


_TRANSLATED: dict[str, Translator] = {
    "Add": norm_with_weights,
    "Reshape": norm_put_back,
    "Conv": convolution_of,
    "ConvTranspose": transposed_convolution,
    "MaxPool": pooling_of,
    "AveragePool": pooling_of,
    "GlobalAveragePool": _global_pool_of,
    "ReduceMean": _reduction_of,
    "ReduceSum": _reduction_of,
    "MatMul": _matrix_product,
    "Gemm": _gemm,
    "Gather": _gather_of,
    "BatchNormalization": _norm("batch_norm"),
    "InstanceNormalization": _norm("instance_norm"),
    "GroupNormalization": _norm("group_norm"),
    "LayerNormalization": _norm("layer_norm"),
    "RMSNormalization": _norm("rms_norm"),
    "Softmax": _softmax_of,
    "LogSoftmax": _softmax_of,
    "Clip": _clip_of,
    "PRelu": _slopes_of,
    "Gelu": _gelu,
    "Dropout": _dropping_out,
    "Transpose": _transpose,
    "Concat": _concat_of,
    "Slice": _slices,
    "Split": _split_into,
    "SoftmaxCrossEntropyLoss": _loss_of,
    "NegativeLogLikelihoodLoss": _loss_of,
}
