"""Layers with windows over space: each block gets the rows of its neighbours that it reads.

A convolution exchanges inputs before the forward pass and gradients of its output before the
backward pass (Dryden et al. 2019, section III.A); pooling and enlargement send the gradients of
what they got back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from costmodels.graph import SPATIAL_DIMS, Window
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.exchange import Why, moved
from planner.torch.apply.layout import Box, Layout
from planner.torch.nodes import AnyNode, Arguments

Range = tuple[int, int]


def spatial_windows(site: Site) -> list[Window]:
    """The window of each dim of space, in order."""
    return [site.layer.windows[dim] for dim in SPATIAL_DIMS if dim in site.layer.windows]


def _whole_extents(site: Site, slot: int | None) -> list[int]:
    """Whole extents of space of an input, or of the output. [items]"""
    tensor = site.sharding.output if slot is None else site.sharding.inputs[slot]
    return list(tensor.shape[2:])


def _within(first: int, last: int, extent: int) -> Range:
    start = min(max(first, 0), extent)
    return start, max(min(last, extent), start)


def _read_by(out: Range, window: Window) -> Range:
    """Inputs that outputs read, those beyond the borders too."""
    return (
        out[0] * window.stride - window.padding,
        (out[1] - 1) * window.stride - window.padding + window.reach,
    )


def _readers(inside: Range, window: Window, extent: int) -> Range:
    """Outputs that read inputs."""
    first = -(-(inside[0] + window.padding - window.reach + 1) // window.stride)
    return _within(first, (inside[1] - 1 + window.padding) // window.stride + 1, extent)


def _with_space(box: Box, space: Sequence[Range]) -> Box:
    return (*box[:2], *space)


def _pads(wanted: Sequence[Range], there: Sequence[Range]) -> list[int]:
    """What is missing before and after, as F.pad takes it: the last dim first."""
    found: list[int] = []
    for (first, last), (start, stop) in reversed(list(zip(wanted, there, strict=True))):
        found += [start - first, last - stop]
    return found


class _Convolved(Function):
    """A convolution of blocks, with the halo exchanges of both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, site: Site, groups: int) -> Tensor:
        windows, extents = spatial_windows(site), _whole_extents(site, 0)
        source = site.inputs[0]
        targets = []
        for box, out in zip(source.boxes, site.output.boxes, strict=True):
            pairs = zip(out[2:], windows, extents, strict=True)
            targets.append(_with_space(box, [_within(*_read_by(o, w), n) for o, w, n in pairs]))
        wanted = [_read_by(o, w) for o, w in zip(site.out_box[2:], windows, strict=True)]
        x = site.exchange.move(x, source, tuple(targets), site.why("halo"))
        x = F.pad(x, _pads(wanted, targets[site.rank][2:]))
        ctx.save_for_backward(x, weight)
        ctx.given = (site, groups, windows)
        return _plain_convolution(x, weight, windows, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        site, groups, windows = ctx.given
        gradient = gradients[0].contiguous()
        of_input = of_weight = None
        if ctx.needs_input_grad[1]:
            mask = [False, True, False]
            of_weight = _backward(gradient, x, weight, windows, groups, mask)[1]
        if ctx.needs_input_grad[0]:
            of_input = _input_gradient(gradient, weight, site, groups, windows)
        return of_input, of_weight, None, None


def _plain_convolution(x: Tensor, weight: Tensor, windows: Sequence[Window], groups: int) -> Tensor:
    zeros = [0] * len(windows)
    stride, dilation = [w.stride for w in windows], [w.dilation for w in windows]
    found: Tensor = torch.ops.aten.convolution(
        x, weight, None, stride, zeros, dilation, False, zeros, groups
    )
    return found


def _backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    windows: Sequence[Window],
    groups: int,
    mask: list[bool],
) -> Any:
    """Gradients of a convolution without padding.

    Parameters
    ----------
    gradient, x, weight
        Of its output, and what it read.
    windows, groups
        Of the convolution.
    mask
        Which of the gradients of input, weight and bias are wanted.
    """
    zeros = [0] * len(windows)
    stride, dilation = [w.stride for w in windows], [w.dilation for w in windows]
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, zeros, dilation, False, zeros, groups, mask
    )


def _input_gradient(
    gradient: Tensor, weight: Tensor, site: Site, groups: int, windows: Sequence[Window]
) -> Tensor:
    """The gradient of the rank's block of the input, from that of all outputs that read it.

    Parameters
    ----------
    gradient, weight, site, groups, windows
        As of `_Convolved`.
    """
    source, extents = site.output.whole, _whole_extents(site, None)
    targets = []
    for box, inside in zip(source.boxes, site.inputs[0].boxes, strict=True):
        pairs = zip(inside[2:], windows, extents, strict=True)
        targets.append(_with_space(box, [_readers(i, w, n) for i, w, n in pairs]))
    why = Why(site.name, "halo", backward=True)
    gradient = site.exchange.move(gradient, source, tuple(targets), why)
    outs, own = targets[site.rank][2:], site.inputs[0].boxes[site.rank]
    shape = [stop - start for start, stop in own]
    if any(stop <= start for start, stop in outs):
        return gradient.new_zeros(shape)  # strides leave all of it out
    reached = [_read_by(out, window) for out, window in zip(outs, windows, strict=True)]
    dummy = gradient.new_empty(()).expand(*shape[:2], *(last - first for first, last in reached))
    found: Tensor = _backward(gradient, dummy, weight, windows, groups, [True, False, False])[0]
    # cut what lies outside of the block, and add what no window reaches
    return F.pad(found, _pads(own[2:], reached))


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
    found: Tensor = _Convolved.apply(x, weight, site, groups)
    return found


def with_region(
    site: Site, x: Tensor, reads: Callable[[int, Range], Range]
) -> tuple[Tensor, list[Range]]:
    """The rank's block of an input with the rows of others that its outputs read.

    Parameters
    ----------
    site, x
        The layer, and its block.
    reads
        From a dim of space and a range of outputs to the inputs that they read.
    """
    source = site.inputs[0]
    targets = []
    for box, out in zip(source.boxes, site.output.boxes, strict=True):
        space = [reads(dim, one) for dim, one in enumerate(out[2:])]
        targets.append(_with_space(box, space))
    gradient = Layout(boxes=tuple(targets), holders=source.holders)
    found = moved(x, site.exchange, source, gradient, site.why("halo"))
    return found, list(targets[site.rank][2:])


def transposed(site: Site, x: Tensor, node_weight: AnyNode) -> Tensor:
    """A transposed convolution whose windows do not overlap, without its bias.

    Parameters
    ----------
    site, x, node_weight
        As of `convolved`.
    """
    kernel = [w.kernel for w in spatial_windows(site)]
    x, region = with_region(
        site, x, lambda dim, out: (out[0] // kernel[dim], -(-out[1] // kernel[dim]))
    )
    weight = site.weight(node_weight, "weight")
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(kernel) - 1]
    return _cropped(site, function(x, weight, stride=tuple(kernel)), region, kernel)


def _cropped(site: Site, y: Tensor, region: Sequence[Range], factors: Sequence[int]) -> Tensor:
    """What of enlarged inputs belongs to the rank's block.

    Parameters
    ----------
    site, y
        The layer, and all that was made of what it read.
    region, factors
        What it read, and how many outputs each position made.
    """
    rows = zip(site.out_box[2:], region, factors, strict=True)
    for dim, ((first, last), (start, _), factor) in enumerate(rows):
        y = y.narrow(dim + 2, first - start * factor, last - first)
    return y


def pooling(site: Site, x: Tensor, average: Arguments | None) -> Tensor:
    """Maximum or average pooling.

    Parameters
    ----------
    site, x
        The layer, and its block of the input.
    average
        Arguments of an average; None for a maximum.
    """
    windows, extents = spatial_windows(site), _whole_extents(site, 0)

    def reads(dim: int, out: Range) -> Range:
        return _within(*_read_by(out, windows[dim]), extents[dim])

    x, region = with_region(site, x, reads)
    wanted = [_read_by(out, w) for out, w in zip(site.out_box[2:], windows, strict=True)]
    x = F.pad(x, _pads(wanted, region), value=-math.inf if average is None else 0.0)
    kernel, stride = tuple(w.kernel for w in windows), tuple(w.stride for w in windows)
    place = len(windows) - 1
    if average is None:
        return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[place](x, kernel, stride)
    mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[place](x, kernel, stride)
    divisor: Any = average.get("divisor_override")
    counts = torch.ones([1] * (x.dim()), dtype=x.dtype, device=x.device)
    for dim, (out, window, extent) in enumerate(
        zip(site.out_box[2:], windows, extents, strict=True)
    ):
        border = window.padding if average.get("count_include_pad", True) else 0
        rows = []
        for first, last in (_read_by((o, o + 1), window) for o in range(*out)):
            rows.append(min(last, extent + border) - max(first, -border))
        shape = [1] * x.dim()
        shape[dim + 2] = len(rows)
        counts = counts * torch.tensor(rows, dtype=x.dtype, device=x.device).view(shape)
    return mean * (math.prod(kernel) / (divisor if divisor else counts))


def adaptive(site: Site, x: Tensor, maximum: bool) -> Tensor:
    """Pooling to a given extent, whose windows may differ by one position.

    Parameters
    ----------
    site, x
        The layer, and its block of the input.
    maximum
        Whether it is of the largest.
    """
    before, after = _whole_extents(site, 0), _whole_extents(site, None)

    def window(dim: int, out: int) -> Range:
        return out * before[dim] // after[dim], -(-(out + 1) * before[dim] // after[dim])

    x, region = with_region(
        site, x, lambda dim, out: (window(dim, out[0])[0], window(dim, out[1] - 1)[1])
    )
    for dim, (out, (start, _)) in enumerate(zip(site.out_box[2:], region, strict=True)):
        rows = []
        for first, last in (window(dim, one) for one in range(*out)):
            part = x.narrow(dim + 2, first - start, last - first)
            rows.append(part.max(dim + 2).values if maximum else part.mean(dim + 2))
        x = torch.stack(rows, dim + 2)
    return x


def enlarged(site: Site, x: Tensor, mode: str, corners: bool) -> Tensor:
    """Nearest or linear enlargement by a whole factor.

    Parameters
    ----------
    site, x
        The layer, and its block of the input.
    mode
        Of F.interpolate.
    corners
        Whether the corners of input and output lie on each other.
    """
    before, after = _whole_extents(site, 0), _whole_extents(site, None)
    factor = after[0] // before[0]
    margin = {"nearest": 0, "linear": 1, "bilinear": 1, "trilinear": 1}.get(mode)

    def reads(dim: int, out: Range) -> Range:
        if margin is None or corners:
            return 0, before[dim]
        return _within(out[0] // factor - margin, -(-out[1] // factor) + margin, before[dim])

    x, region = with_region(site, x, reads)
    more = {} if mode == "nearest" else {"align_corners": corners}
    y = F.interpolate(x, scale_factor=float(factor), mode=mode, **more)
    return _cropped(site, y, region, [factor] * len(before))
