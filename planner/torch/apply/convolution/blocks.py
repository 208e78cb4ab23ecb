"""Blocks of the output of a layer as the tensors that operators read, and back.

A layer keeps its output with one dim for each axis, samples first. What an operator reads is that
tensor after any number of views, which a `Value` describes: its dims are parts of axes. A block of
such a tensor is made of a block of the layer's output, wherever the outermost part of an axis is
all that is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from costmodels.errors import InputError
from planner.models.traced.values import AxisPart, Value
from planner.torch.apply.layout import Box


def _cut_error(value: Value, axis: str) -> InputError:
    return InputError(
        f"the output of layer '{value.layer}' must be cut where its readers view it but its {axis} "
        f"is viewed in parts of {value.shape}; forbid that split (--forbid) and plan again"
    )


def _parts_of(value: Value, axis: str) -> list[AxisPart]:
    """Parts of an axis from the outside in."""
    return sorted((p for p in value.parts if p.axis == axis), key=lambda p: -p.stride)


def _local_parts(value: Value, box: Box) -> dict[tuple[str, int], tuple[int, int]]:
    """First position and extent of each part of a block, by axis and stride. [items]

    Parameters
    ----------
    value
        The tensor.
    box
        The block of the layer's output.
    """
    found = {}
    for axis, (start, stop) in zip(value.axes, box, strict=True):
        parts = _parts_of(value, axis)
        _, held = value.slices.get(axis, (0, value.axes[axis]))
        if axis in value.slices:
            if (start, stop) != (0, value.axes[axis]):
                raise _cut_error(value, axis)
            start, stop = 0, held
        inner = math.prod(part.extent for part in parts[1:])
        if start % inner or stop % inner:
            raise _cut_error(value, axis)
        for place, part in enumerate(parts):
            extent = (stop - start) // inner if place == 0 else part.extent
            found[axis, part.stride] = (start // inner if place == 0 else 0, extent)
    return found


def local_box(value: Value, box: Box) -> Box:
    """The box of a tensor that a block of the layer's output is.

    Parameters
    ----------
    value, box
        As of `block_as`.
    """
    local = _local_parts(value, box)
    found = []
    for dim in value.dims:
        start, size = 0, 1
        for place, part in enumerate(dim):
            first, extent = local.get((part.axis, part.stride), (0, part.extent))
            if place and extent != part.extent:
                raise _cut_error(value, part.axis)
            start, size = start * part.extent + first, size * extent
        found.append((start, start + size))
    return tuple(found)


def block_as(value: Value, x: Tensor, box: Box) -> Tensor:
    """A block of a layer's output as a block of a tensor that is viewed of it.

    Parameters
    ----------
    value
        The tensor.
    x, box
        The block, and which one it is.
    """
    local = _local_parts(value, box)
    for place, axis in enumerate(value.axes):
        if axis in value.slices:
            first, count = value.slices[axis]
            x = x.narrow(place, first, count)
    order = [(axis, part.stride) for axis in value.axes for part in _parts_of(value, axis)]
    x = x.reshape([local[key][1] for key in order])
    wanted = [part for dim in value.dims for part in dim]
    x = x.permute([order.index((part.axis, part.stride)) for part in wanted if part.axis])
    for place, part in enumerate(wanted):
        if not part.axis:
            x = x.unsqueeze(place)
    x = x.expand(
        [local[part.axis, part.stride][1] if part.axis else part.extent for part in wanted]
    )
    return x.reshape(
        [
            math.prod(
                local[part.axis, part.stride][1] if part.axis else part.extent for part in dim
            )
            for dim in value.dims
        ]
    )


def output_block(value: Value, x: Tensor, box: Box) -> Tensor:
    """The block of a layer's output that a tensor which its operator wrote is.

    Parameters
    ----------
    value
        The tensor, all of the output.
    x
        Its block.
    box
        Which block of the output it is.
    """
    local = _local_parts(value, box)
    wanted = [(part.axis, part.stride) for dim in value.dims for part in dim]
    x = x.reshape([local[key][1] for key in wanted])
    order = [(axis, part.stride) for axis in value.axes for part in _parts_of(value, axis)]
    x = x.permute([wanted.index(key) for key in order])
    return x.reshape([stop - start for start, stop in box])


def cut_constant(x: Tensor, shape: Sequence[int], box: Box) -> Tensor:
    """What of a tensor that is the same for all samples belongs to a block, as it is broadcast.

    Parameters
    ----------
    x
        The tensor.
    shape, box
        Extents of the whole tensor that it meets, and the block of that.
    """
    offset = len(shape) - x.dim()
    for dim in range(x.dim()):
        start, stop = box[dim + offset] if dim + offset >= 0 else (0, 1)
        if offset + dim >= 0 and x.shape[dim] == shape[dim + offset] > 1:
            x = x.narrow(dim, start, stop - start)
    return x
