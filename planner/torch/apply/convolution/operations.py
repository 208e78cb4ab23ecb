"""Which function runs which kind of layer on the rank's blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.node import map_arg

from planner.torch.apply.convolution import convolved, sums, windows
from planner.torch.apply.convolution.blocks import cut_constant
from planner.torch.apply.convolution.constants import product_of
from planner.torch.apply.convolution.site import Site
from planner.torch.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from torch.fx import Node

Operation = Callable[[Site, list[Tensor]], Tensor]


def _product_of(site: Site) -> tuple[Any, Any, bool]:
    """What stands for the weight and the bias of a product; whether that has its inputs first."""
    found, turned = product_of(site.node, site.layer.kind)
    if not found:
        raise site.refusal(f"it is written as '{operator_of(site.node)}'")
    cut = any(len(set(layout.boxes)) > 1 for layout, _ in site.weights.values())
    if cut and found["weight"].op != "placeholder":
        raise site.refusal("its weight is a view of another tensor, which cannot be cut")
    # one of a layer that shares its weight may be a layer of its own
    bias = found["bias"] if "bias" in site.weights else None
    return found["weight"], bias, turned


def _run_conv(site: Site, xs: list[Tensor]) -> Tensor:
    weight, bias, turned = _product_of(site)
    if turned:
        raise site.refusal(f"it is written as '{operator_of(site.node)}'")
    if site.layer.transposed:
        y = windows.transposed(site, xs[0], weight)
    else:
        y = convolved.convolved(site, xs[0], weight, site.layer.groups)
    return sums.with_bias(site, y, bias)


def _run_linear(site: Site, xs: list[Tensor]) -> Tensor:
    return sums.linear_blocks(site, xs[0], *_product_of(site))


def _run_bias(site: Site, xs: list[Tensor]) -> Tensor:
    product, _ = product_of(site.node, "linear")
    if not product:
        return _operators(site, xs)
    dims = site.sharding.output.dims
    features = next(n for n, dim in enumerate(dims) if dim in ("channel", "hidden"))
    return sums.with_bias(site, xs[0], product["bias"], features)


def _run_pool(site: Site, xs: list[Tensor]) -> Tensor:
    name = operator_of(site.node)
    if name.startswith("adaptive"):
        return windows.adaptive(site, xs[0], "max" in name)
    if "avg" in name:
        return windows.pooling(site, xs[0], site.given)
    return windows.pooling(site, xs[0], None)


def _run_global_pool(site: Site, xs: list[Tensor]) -> Tensor:
    mean = sums.global_mean(site, xs[0])
    if operator_of(site.node) == "sum":
        tensor = site.sharding.inputs[0]
        for n in range(2, len(tensor.shape)):
            mean = mean * tensor.shape[n]
    return mean


def _run_batch_norm(site: Site, xs: list[Tensor]) -> Tensor:
    name, given = operator_of(site.node), site.given
    if name == "batch_norm":
        return sums.batch_norm_blocks(site, xs[0], given)
    channels = site.sharding.inputs[0].shape[1]
    if name == "group_norm":
        return sums.group_norm(site, xs[0], given, channels // given["num_groups"])
    if name == "instance_norm" and given["use_input_stats"]:
        return sums.group_norm(site, xs[0], given, 1)
    raise site.refusal(f"it is written as '{name}'")


def _run_concat(site: Site, xs: list[Tensor]) -> Tensor:
    return torch.cat(xs, 1)


def _run_upsample(site: Site, xs: list[Tensor]) -> Tensor:
    name, given = operator_of(site.node), site.given
    mode = next(
        one for one in ("bilinear", "trilinear", "linear", "bicubic", "nearest") if one in name
    )
    return windows.enlarged(site, xs[0], mode, bool(given.get("align_corners")))


def _rearrange(site: Site, xs: list[Tensor]) -> Tensor:
    before, after = site.moves[site.name]
    from planner.torch.apply.convolution.blocks import block_as, output_block

    x = block_as(before, xs[0], site.inputs[0].boxes[site.rank])
    return output_block(after, x, site.out_box)


# Operators with these names for sizes write them down as they are of the whole batch.
_SIZES = frozenset({"size", "shape", "sizes", "repeats", "normalized_shape", "output_size"})
# Operators whose first state, their second argument, is of layers, samples and features.
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def _operators(site: Site, xs: list[Tensor]) -> Tensor:
    """Operators that run on blocks as they are: each position by itself, or each sample."""
    done: dict[Node, Any] = {}
    boxes: dict[Node, Any] = {}
    by_sample = site.layer.kind == "opaque"
    cut = site.out_box[0][1] - site.out_box[0][0] < site.sharding.output.shape[0]
    for node in site.nodes:
        data = [one for one in node.all_input_nodes if one in site.data]
        for one in data:
            if one not in done:
                done[one], boxes[one] = site.read(one)
        largest = max(data, key=lambda one: (len(shape_of(one)), shape_of(one)), default=None)
        if by_sample and cut:
            _check_samples(site, node)
        first = node.args[1] if operator_of(node) in _RECURRENT else ()
        states = first if isinstance(first, list | tuple) else [first]

        def local(
            one: Node, node: Node = node, largest: Any = largest, states: Any = states
        ) -> Any:
            if one in done:
                return done[one]
            whole = site.whole(one)
            if one in states:
                return whole[:, slice(*site.out_box[0])].contiguous()
            if by_sample or largest is None:
                return whole
            if operator_of(node) == "prelu" and len(whole) > 1:  # a slope of each channel
                start, stop = boxes[largest][1]
                return whole[start:stop]
            return cut_constant(whole, shape_of(largest), boxes[largest])

        args = map_arg(node.args, local)
        options = map_arg(node.kwargs, local)
        if operator_of(node) in ("dropout", "feature_dropout", "alpha_dropout"):
            args = (args[0], args[1], site.drops())
        done[node] = _out_of_place(node.target)(*args, **options)
        if largest is not None:
            boxes[node] = boxes[largest]
    found = done[site.node]
    return site.written(found[0] if isinstance(found, tuple | list) else found)


def _check_samples(site: Site, node: Node) -> None:
    """Refuse an operator that would not do the same for a part of the samples."""
    given = site.given
    dims = [given.get(name) for name in ("dim", "dims", "dim0", "dim1")]
    flat = [d for one in dims for d in (one if isinstance(one, list | tuple) else [one])]
    count = len(shape_of(node))
    samples = any(isinstance(d, int) and (d == 0 or d == -count) for d in flat)
    if samples or set(given) & _SIZES:
        raise site.refusal(f"'{operator_of(node)}' may not do the same for a part of the samples")


def _out_of_place(target: Any) -> Any:
    """An operator, in the form that leaves its inputs as they are."""
    name = getattr(target, "_overloadname", None)
    packet = getattr(target, "overloadpacket", None)
    if packet is None or not packet.__name__.endswith("_") or packet.__name__.endswith("__"):
        return target
    other = getattr(torch.ops.aten, packet.__name__.rstrip("_"), None)
    return target if other is None else getattr(other, name or "default", target)


KINDS: dict[str, Operation] = {
    "conv": _run_conv,
    "linear": _run_linear,
    "bias": _run_bias,
    "pool": _run_pool,
    "global_pool": _run_global_pool,
    "batch_norm": _run_batch_norm,
    "concat": _run_concat,
    "upsample": _run_upsample,
    "rearrange": _rearrange,
    **dict.fromkeys(("activation", "add", "pointwise", "scale", "dropout", "opaque"), _operators),
}
