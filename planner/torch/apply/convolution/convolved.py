"""Convolutions of blocks, each with the rows of its neighbours that it reads.

Inputs are exchanged before the forward pass, and gradients of the output before the backward pass
(Dryden et al. 2019, section III.A).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from costmodels.graph import Window
from planner.torch.apply.convolution.regions import (
    Range,
    padding_of,
    plain_dims,
    read_boxes,
    read_by,
    readers,
    spatial_windows,
    whole_extents,
    with_space,
)
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.exchange import Why
from planner.torch.nodes import AnyNode


class _Convolved(Function):
    """A convolution of blocks, with the halo exchanges of both passes.

    What is received comes to lie around the block in one padded buffer, which is kept for the
    weight's gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, site: Site, groups: int) -> Tensor:
        windows, plain = spatial_windows(site), plain_dims(site)
        x = site.exchange.move(x, site.inputs[0], read_boxes(site, plain), site.why("halo"))
        padding = padding_of(windows, plain)
        ctx.save_for_backward(x, weight)
        ctx.given = (site, groups, windows, plain)
        return _plain_convolution(x, weight, windows, padding, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        site, groups, windows, plain = ctx.given
        gradient = gradients[0].contiguous()
        of_input = of_weight = None
        if ctx.needs_input_grad[1]:
            mask, padding = [False, True, False], padding_of(windows, plain)
            of_weight = _backward(gradient, x, weight, windows, padding, groups, mask)[1]
        if ctx.needs_input_grad[0]:
            of_input = _input_gradient(gradient, weight, site, groups, windows, plain)
        return of_input, of_weight, None, None


def _plain_convolution(
    x: Tensor, weight: Tensor, windows: Sequence[Window], padding: list[int], groups: int
) -> Tensor:
    zeros = [0] * len(windows)
    stride, dilation = [w.stride for w in windows], [w.dilation for w in windows]
    found: Tensor = torch.ops.aten.convolution(
        x, weight, None, stride, padding, dilation, False, zeros, groups
    )
    return found


def _backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    windows: Sequence[Window],
    padding: list[int],
    groups: int,
    mask: list[bool],
) -> Any:
    """Gradients of a convolution.

    Parameters
    ----------
    gradient, x, weight
        Of its output, and what it read.
    windows, padding, groups
        Of the convolution.
    mask
        Which of the gradients of input, weight and bias are wanted.
    """
    zeros = [0] * len(windows)
    stride, dilation = [w.stride for w in windows], [w.dilation for w in windows]
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, padding, dilation, False, zeros, groups, mask
    )


def _padded_readers(inside: Range, window: Window) -> tuple[Range, int | None]:
    """Outputs that read inputs, those beyond the borders too, and the padding that leads back.

    That padding on both sides makes a convolution of these inputs have just these outputs; None
    where no such padding does, since a stride leaves more at one end.
    """
    first = -(-(inside[0] + window.padding - window.reach + 1) // window.stride)
    last = (inside[1] - 1 + window.padding) // window.stride + 1
    padding = window.padding + inside[0] - first * window.stride
    made = (inside[1] - inside[0] + 2 * padding - window.reach) // window.stride + 1
    return (first, last), padding if padding >= 0 and made == last - first else None


def _input_gradient(
    gradient: Tensor,
    weight: Tensor,
    site: Site,
    groups: int,
    windows: Sequence[Window],
    plain: Sequence[bool],
) -> Tensor:
    """The gradient of the rank's block of the input, from that of all outputs that read it.

    Parameters
    ----------
    gradient, weight, site, groups, windows
        As of `_Convolved`.
    plain
        As of `plain_dims`.
    """
    extents = whole_extents(site, None)
    boxes = [box[2:] for box in site.inputs[0].boxes]
    # all ranks must ask for the same rows of each other
    fits = [
        all(_padded_readers(inside[dim], window)[1] is not None for inside in boxes)
        for dim, window in enumerate(windows)
    ]
    targets = []
    for box, inside in zip(site.output.whole.boxes, boxes, strict=True):
        space = []
        for dim, (one, window, extent) in enumerate(zip(inside, windows, extents, strict=True)):
            if plain[dim]:
                space.append((0, extent))
            elif fits[dim]:
                space.append(_padded_readers(one, window)[0])
            else:
                space.append(readers(one, window, extent))
        targets.append(with_space(box, space))
    why = Why(site.name, "halo", backward=True)
    gradient = site.exchange.move(gradient, site.output.whole, tuple(targets), why)
    outs, own = targets[site.rank][2:], site.inputs[0].boxes[site.rank]
    shape = [stop - start for start, stop in own]
    if any(stop <= start for start, stop in outs):
        return gradient.new_zeros(shape)  # strides leave all of it out
    padding, reached = [], []
    for dim, (one, out, window) in enumerate(zip(own[2:], outs, windows, strict=True)):
        leads = window.padding if plain[dim] else _padded_readers(one, window)[1]
        keeps = leads is not None and (plain[dim] or fits[dim])
        padding.append(leads if leads is not None and keeps else 0)
        reached.append(one if keeps else read_by(out, window))
    like = _like_input(gradient, [*shape[:2], *(last - first for first, last in reached)])
    mask = [True, False, False]
    found: Tensor = _backward(gradient, like, weight, windows, padding, groups, mask)[0]
    if reached == list(own[2:]):
        return found
    # cut what lies outside of the block, and add what no window reaches
    pads: list[int] = []
    for (first, last), (start, stop) in reversed(list(zip(own[2:], reached, strict=True))):
        pads += [start - first, last - stop]
    return F.pad(found, pads)


def _like_input(gradient: Tensor, shape: list[int]) -> Tensor:
    """What stands for an input of which only the extents are read.

    On CPUs libraries make it contiguous first: memory that nobody touches costs less there.
    """
    if gradient.device.type == "cpu":
        return gradient.new_empty(shape)
    return gradient.new_empty(()).expand(shape)


def convolved_blocks(x: Tensor, weight: Tensor, site: Site, groups: int) -> Tensor:
    """A convolution of a block with the halo that it reads, without its bias.

    Parameters
    ----------
    x, weight
        The rank's blocks.
    site, groups
        The layer, and independent groups of channels.
    """
    found: Tensor = _Convolved.apply(x, weight, site, groups)
    return found


def convolved(site: Site, x: Tensor, node_weight: AnyNode, groups: int) -> Tensor:
    """A convolution, without its bias.

    Parameters
    ----------
    site, x
        The layer, and its block of the input.
    node_weight, groups
        What stands for the weight, and independent groups of channels.
    """
    weight = site.weight(node_weight, "weight")
    weight = weight.reshape(*weight.shape[:2], *(w.kernel for w in spatial_windows(site)))
    if groups > 1:
        filters = weight.shape[0]
        channels = x.shape[1]
        groups = channels // weight.shape[1]
        (first, last), (start, stop) = site.out_box[1], site.inputs[0].boxes[site.rank][1]
        whole = site.sharding.output.shape[1] * start, site.sharding.inputs[0].shape[1] * first
        if whole[0] != whole[1] or filters % max(groups, 1):
            raise site.refusal(f"filters {first} to {last} do not read channels {start} to {stop}")
    return convolved_blocks(x, weight, site, groups)
