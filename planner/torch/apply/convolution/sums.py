"""Layers that sum over what may be cut: norms, means, products with a weight, the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from costmodels.graph import SPATIAL_DIMS
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.exchange import moved
from planner.torch.apply.layout import Box, Layout, box_size
from planner.torch.nodes import AnyNode, Arguments


class _AddedOnce(Function):
    """A bias of filters, which one of those that hold summands adds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dim: int, adds: bool) -> Tensor:
        ctx.dim = dim % x.dim()
        shape = [1] * x.dim()
        shape[dim] = len(bias)
        return x + bias.view(shape) if adds else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        others = [dim for dim in range(gradients[0].dim()) if dim != ctx.dim]
        return gradients[0], gradients[0].sum(others), None, None


def with_bias(site: Site, x: Tensor, node: AnyNode, dim: int = 1) -> Tensor:
    """An output with its bias, where it has one.

    Parameters
    ----------
    site, x
        The layer, and its block of the output.
    node
        What stands for the bias; None for none.
    dim
        The dim of the filters.
    """
    if node is None:
        return x
    bias = site.weight(node, "bias")
    layout = site.output
    same = (n for n, box in enumerate(layout.boxes) if box == site.out_box)
    adds = layout.holders[next(same)] == layout.holders[site.rank]
    found: Tensor = _AddedOnce.apply(x, bias, dim, adds)
    return found


def linear_blocks(
    site: Site, x: Tensor, weight: AnyNode, bias: AnyNode, turned: bool = False
) -> Tensor:
    """A product of the features and a weight; what is flattened is cut with its channels.

    Parameters
    ----------
    site, x
        The layer, and its block of the input.
    weight, bias
        What stands for them; the bias may be None.
    turned
        Whether the weight has its inputs first.
    """
    tensor = site.sharding.inputs[0]
    kept = sum(dim in ("sample", "sequence", "expert") for dim in tensor.dims)
    filters = site.weights["weight"][0].boxes
    inner = 1
    for extent in tensor.shape[kept + 1 :]:
        inner *= extent
    boxes: list[Box] = []
    for box, (rows, *_) in zip(site.inputs[0].boxes, filters, strict=True):
        start, stop = box[kept]
        space = zip(box[kept + 1 :], tensor.shape[kept + 1 :], strict=True)
        if any(pair != (0, extent) for pair, extent in space):
            raise site.refusal("the space of its input is cut")
        boxes.append((rows, (start * inner, stop * inner)))
    if turned:
        boxes = [(columns, rows) for rows, columns in boxes]
    _, layout = site.held(weight)
    if len(layout.boxes[0]) > 2:  # a convolution of one position
        boxes = [(*box, *((0, 1),) * (len(layout.boxes[0]) - 2)) for box in boxes]
    block = site.weight(weight, "weight", tuple(boxes)).flatten(1)
    block = block.t() if turned else block
    return with_bias(site, F.linear(x.flatten(kept), block), bias, -1)


def global_mean(site: Site, x: Tensor) -> Tensor:
    """The rank's summand of the mean over space."""
    tensor = site.sharding.inputs[0]
    dims = [n for n, name in enumerate(tensor.dims) if name in SPATIAL_DIMS]
    count = 1
    for dim in dims:
        count *= tensor.shape[dim]
    return x.sum(dims) / count


def _layout_of_sums(site: Site, dims: Sequence[int], numbers: int, apart: set[str]) -> Layout:
    """Where summands of numbers lie that are kept for some dims of the first input.

    Parameters
    ----------
    site, dims
        The layer, and the dims.
    numbers
        How many there are for each position. [items]
    apart
        Axes of the mesh whose members have sums of their own.
    """
    places = site.holders(apart)
    order = {place: n for n, place in enumerate(dict.fromkeys(places))}
    boxes = []
    for box, place in zip(site.inputs[0].boxes, places, strict=True):
        own = (order[place], order[place] + 1)
        boxes.append((own, (0, numbers), *(box[dim] for dim in dims)))
    return Layout(boxes=tuple(boxes), holders=site.holders(site.axes_that_cut()))


def _summed(site: Site, numbers: Tensor, dims: Sequence[int], apart: set[str]) -> Tensor:
    """Numbers summed over all ranks that have summands, as are their gradients.

    Parameters
    ----------
    site
        The layer.
    numbers
        The rank's, some for each position of the dims.
    dims, apart
        As of `_layout_of_sums`.
    """
    layout = _layout_of_sums(site, dims, len(numbers), apart)
    why = site.why("statistics")
    return moved(numbers[None], site.exchange, layout, layout, why)[0]


def batch_norm_blocks(site: Site, x: Tensor, given: Arguments) -> Tensor:
    """Batch norm, over as many ranks as the plan says.

    Parameters
    ----------
    site, x, given
        The layer, its block of the input, and the arguments of its operator.
    """
    weight, bias = (
        None if given[name] is None else site.weight(given[name], name)
        for name in ("weight", "bias")
    )
    mean, variance = (
        None if given[name] is None else site.held(given[name])[0]
        for name in ("running_mean", "running_var")
    )
    momentum, epsilon = given["momentum"], given["eps"]
    training = site.training() if mean is not None else True
    if not training or not site.sharding.statistics_sums:
        return F.batch_norm(x, mean, variance, weight, bias, training, momentum, epsilon)
    others = [0, *range(2, x.dim())]
    cut = site.axes_that_cut() - site.axes_that_cut({"channel"})
    apart = cut - set(site.sharding.statistics_sums)
    # near the mean, so that squares lose no digits
    shift = torch.zeros_like(x[0].flatten(1)[:, 0]) if mean is None else mean.clone()
    y = x - _by_channel(shift, x)
    sums = _summed(site, torch.stack([y.sum(others), y.square().sum(others)]), [1], apart)
    blocks = {
        box[:1] + box[2:]
        for box, place in zip(site.inputs[0].boxes, site.holders(apart), strict=True)
        if place == site.holders(apart)[site.rank]
    }
    count = sum(box_size(box) for box in blocks)
    center = sums[0] / count
    spread = sums[1] / count - center.square()
    if mean is not None and variance is not None:
        with torch.no_grad():
            mean.lerp_(center + shift, momentum)
            variance.lerp_(spread * (count / max(count - 1, 1)), momentum)
    y = (y - _by_channel(center, x)) * _by_channel((spread + epsilon).rsqrt(), x)
    return _affine(y, weight, bias)


def _by_channel(numbers: Tensor, x: Tensor) -> Tensor:
    """Numbers of channels, as they meet a feature map."""
    return numbers.view(-1, *[1] * (x.dim() - 2))


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Each channel times its weight, plus its bias.

    Parameters
    ----------
    y
        The feature map.
    weight, bias
        Both may be None.
    """
    if weight is not None:
        y = y * _by_channel(weight, y)
    return y if bias is None else y + _by_channel(bias, y)


def group_norm(site: Site, x: Tensor, given: Arguments, channels: int) -> Tensor:
    """Norm of groups of channels of each sample: the sums of cut space are summed.

    Parameters
    ----------
    site, x, given
        The layer, its block of the input, and the arguments of its operator.
    channels
        Channels of a group. [items]
    """
    start, stop = site.inputs[0].boxes[site.rank][1]
    if start % channels or stop % channels:
        raise site.refusal(f"groups of {channels} channels are cut")
    weight, bias = (
        None if given[name] is None else site.weight(given[name], name)
        for name in ("weight", "bias")
    )
    y = x.flatten(2)
    sums = _summed(site, torch.stack([y.sum(2), y.square().sum(2)]), [0, 1], set())
    count = channels
    for extent in site.sharding.inputs[0].shape[2:]:
        count *= extent
    sums = sums.unflatten(2, (-1, channels)).sum(3) / count
    scale = (sums[1] - sums[0].square() + given["eps"]).rsqrt()
    shape = (*x.shape[:2], *[1] * (x.dim() - 2))
    center, scale = (one.repeat_interleave(channels, 1).view(shape) for one in (sums[0], scale))
    return _affine((x - center) * scale, weight, bias)


class _CrossEntropy(Function):
    """Softmax and cross entropy of each position, whose classes may be cut."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, site: Site) -> Tensor:
        dims = [0, *range(2, x.dim())]
        largest = x.amax(1)
        layout = _layout_of_sums(site, dims, 2, set())
        groups = layout.sharers
        if len(groups[site.rank]) > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=site.exchange.group(groups))
            members = len(groups[site.rank])
            numbers = 2 * largest.numel() * (members - 1) / members
            site.why("statistics").write(site.exchange, "all_reduce", numbers)
        powers = (x - largest.unsqueeze(1)).exp()
        start, stop = site.inputs[0].boxes[site.rank][1]
        inside = (target >= start) & (target < stop)
        place = (target - start).clamp(0, stop - start - 1).unsqueeze(1)
        picked = x.gather(1, place).squeeze(1) * inside
        sums = torch.stack([powers.sum(1), picked])
        sums = site.exchange.move(sums[None], layout, layout.boxes, site.why("statistics"))[0]
        ctx.save_for_backward(powers / sums[0].unsqueeze(1), place, inside)
        return sums[0].log() + largest - sums[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        softmax, place, inside = ctx.saved_tensors
        found = softmax.scatter_add(1, place, -inside.to(softmax.dtype).unsqueeze(1))
        return found * gradients[0].unsqueeze(1), None, None


def cross_entropy(site: Site, x: Tensor, target: Tensor) -> Tensor:
    """The mean cross entropy over all positions of the whole batch.

    Parameters
    ----------
    site, x
        The loss, and its block of the features.
    target
        The class of each position of the block.
    """
    found: Tensor = _CrossEntropy.apply(x, target, site)
    return mean_of(site, found.sum(), found.numel(), [0, *range(2, x.dim())])


def mean_of(site: Site, total: Tensor, count: int, dims: Sequence[int]) -> Tensor:
    """The mean over the whole batch of what each rank has a sum of.

    Parameters
    ----------
    site
        The loss.
    total, count
        The sum over the rank's block, and how many numbers that is of. [items]
    dims
        Dims of the input whose positions it is of: ranks that share them have the same.
    """
    blocks = [tuple(box[dim] for dim in dims) for box in site.inputs[0].boxes]
    order = {box: n for n, box in enumerate(dict.fromkeys(blocks))}
    everything = sum(box_size(box) for box in order)
    share = count / box_size(blocks[site.rank])
    layout = Layout(
        boxes=(((0, 1),),) * len(blocks), holders=tuple((order[box],) for box in blocks)
    )
    # all ranks have the sum, and one gradient
    gradient = Layout(boxes=layout.boxes, holders=((0,),) * len(blocks))
    whole = moved(total.reshape(1), site.exchange, layout, gradient, site.why("loss"))
    return whole[0] / (everything * share)
