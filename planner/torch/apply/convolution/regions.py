"""Which rows of space windows read, of blocks and of what lies around them."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.graph import SPATIAL_DIMS, Window
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.layout import Box

Range = tuple[int, int]


def spatial_windows(site: Site) -> list[Window]:
    """The window of each dim of space, in order."""
    return [site.layer.windows[dim] for dim in SPATIAL_DIMS if dim in site.layer.windows]


def whole_extents(site: Site, slot: int | None) -> list[int]:
    """Whole extents of space of an input, or of the output. [items]"""
    tensor = site.sharding.output if slot is None else site.sharding.inputs[slot]
    return list(tensor.shape[2:])


def within(first: int, last: int, extent: int) -> Range:
    """What of a range lies in a tensor.

    Parameters
    ----------
    first, last, extent
        The range, and rows of the tensor. [rows]
    """
    start = min(max(first, 0), extent)
    return start, max(min(last, extent), start)


def read_by(out: Range, window: Window) -> Range:
    """Inputs that outputs read, those beyond the borders too."""
    return (
        out[0] * window.stride - window.padding,
        (out[1] - 1) * window.stride - window.padding + window.reach,
    )


def readers(inside: Range, window: Window, extent: int) -> Range:
    """Outputs that read inputs.

    Parameters
    ----------
    inside, window, extent
        The inputs, what reads them, and outputs in all. [rows]
    """
    first = -(-(inside[0] + window.padding - window.reach + 1) // window.stride)
    return within(first, (inside[1] - 1 + window.padding) // window.stride + 1, extent)


def with_space(box: Box, space: Sequence[Range]) -> Box:
    """A box with other rows of space."""
    return (*box[:2], *space)


def plain_dims(site: Site) -> list[bool]:
    """Of each dim of space, whether no rank has only a part: operators pad such dims themselves."""
    inputs, outputs = whole_extents(site, 0), whole_extents(site, None)
    pairs = list(zip(site.inputs[0].boxes, site.output.boxes, strict=True))
    found = []
    for dim, (window, before, after) in enumerate(
        zip(spatial_windows(site), inputs, outputs, strict=True)
    ):
        whole = all(
            box[2 + dim] == (0, before) and out[2 + dim] == (0, after) for box, out in pairs
        )
        made = (before + 2 * window.padding - window.reach) // window.stride + 1
        found.append(whole and made == after)
    return found


def read_boxes(site: Site, plain: Sequence[bool]) -> tuple[Box, ...]:
    """What each rank reads of the input, with room for padding where operators do not pad.

    Parameters
    ----------
    site
        The layer.
    plain
        As of `plain_dims`.
    """
    windows, found = spatial_windows(site), []
    for box, out in zip(site.inputs[0].boxes, site.output.boxes, strict=True):
        rows = zip(box[2:], out[2:], windows, plain, strict=True)
        space = [own if pads else read_by(o, window) for own, o, window, pads in rows]
        found.append(with_space(box, space))
    return tuple(found)


def padding_of(windows: Sequence[Window], plain: Sequence[bool]) -> list[int]:
    """Rows that the operator pads on each side of each dim. [rows]"""
    return [w.padding if pads else 0 for w, pads in zip(windows, plain, strict=True)]
