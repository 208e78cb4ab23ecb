"""Pooling and enlargement of blocks: each gets the rows of its neighbours that it reads.

They send the gradients of what they got back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from planner.torch.apply.convolution.regions import (
    Range,
    padding_of,
    plain_dims,
    read_boxes,
    read_by,
    spatial_windows,
    whole_extents,
    with_space,
    within,
)
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.exchange import moved
from planner.torch.apply.layout import Layout
from planner.torch.nodes import AnyNode, Arguments


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
        targets.append(with_space(box, space))
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
    windows, extents = spatial_windows(site), whole_extents(site, 0)
    plain = plain_dims(site)
    # an operator pads by half a window at most
    plain = [one and 2 * w.padding <= w.kernel for one, w in zip(plain, windows, strict=True)]
    fill = -math.inf if average is None else 0.0
    gradient = Layout(boxes=read_boxes(site, plain), holders=site.inputs[0].holders)
    x = moved(x, site.exchange, site.inputs[0], gradient, site.why("halo"), fill)
    kernel, stride = tuple(w.kernel for w in windows), tuple(w.stride for w in windows)
    place, padding = len(windows) - 1, tuple(padding_of(windows, plain))
    if average is None:
        return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[place](x, kernel, stride, padding)
    mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[place](x, kernel, stride, padding)
    divisor: Any = average.get("divisor_override")
    counts = torch.ones([1] * (x.dim()), dtype=x.dtype, device=x.device)
    for dim, (out, window, extent) in enumerate(
        zip(site.out_box[2:], windows, extents, strict=True)
    ):
        border = window.padding if average.get("count_include_pad", True) else 0
        rows = []
        for first, last in (read_by((o, o + 1), window) for o in range(*out)):
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
    before, after = whole_extents(site, 0), whole_extents(site, None)

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
    before, after = whole_extents(site, 0), whole_extents(site, None)
    factor = after[0] // before[0]
    margin = {"nearest": 0, "linear": 1, "bilinear": 1, "trilinear": 1}.get(mode)

    def reads(dim: int, out: Range) -> Range:
        if margin is None or corners:
            return 0, before[dim]
        return within(out[0] // factor - margin, -(-out[1] // factor) + margin, before[dim])

    x, region = with_region(site, x, reads)
    more = {} if mode == "nearest" else {"align_corners": corners}
    y = F.interpolate(x, scale_factor=float(factor), mode=mode, **more)
    return _cropped(site, y, region, [factor] * len(before))
