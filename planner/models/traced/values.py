"""Where the numbers of a tensor of a traced module lie in the output of a layer.

A traced module reshapes, transposes and slices all the time, which moves nothing: a `Value` says
which axes of which layer's output, or which parts of them, the dims of such a tensor are. A part of
an axis is told by the distance between its neighbours and how many there are: features of 12 heads
of 64 are 12 parts 64 apart, each of 64 neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace


class AxisPart(Struct, frozen=True):
    """Positions of one axis; of no axis where a tensor is repeated."""

    axis: str
    stride: int
    extent: int


Dims = tuple[tuple[AxisPart, ...], ...]


class Value(Struct, frozen=True, kw_only=True):
    """A tensor of a traced module.

    Parameters
    ----------
    layer
        The layer that writes it.
    axes
        Axes of what that writes, samples first. [items]
    dims
        What the dims of the tensor are made of, from the outside in.
    slices
        Of axes that are not whole: the first position, and how many there are. [items]
    """

    layer: str
    axes: Mapping[str, int]
    dims: Dims
    slices: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor. [items]"""
        return tuple(math.prod(part.extent for part in dim) for dim in self.dims)

    @property
    def parts(self) -> tuple[AxisPart, ...]:
        """All parts, from the outside in."""
        return tuple(part for dim in self.dims for part in dim)

    def whole(self, axis: str) -> tuple[AxisPart, ...]:
        """An axis as it is where nothing was done to it."""
        return whole(axis, self.axes[axis])

    @property
    def is_whole(self) -> bool:
        """Whether it holds every number of the layer's output once, if in another order."""
        repeated = any(not part.axis for part in self.parts)
        sizes = math.prod(part.extent for part in self.parts), math.prod(self.axes.values())
        return not self.slices and not repeated and sizes[0] == sizes[1]


def whole(axis: str, extent: int) -> tuple[AxisPart, ...]:
    """All positions of an axis; one of a single position is no part of a dim."""
    return (AxisPart(axis, 1, extent),) if extent > 1 else ()


def joined(parts: Sequence[AxisPart]) -> tuple[AxisPart, ...]:
    """Parts with those put together that lie side by side on one axis."""
    found: list[AxisPart] = []
    for part in parts:
        last = found[-1] if found else None
        beside = last is not None and last.axis == part.axis
        if last is not None and beside and last.stride == part.stride * part.extent and part.axis:
            found[-1] = AxisPart(part.axis, part.stride, last.extent * part.extent)
        else:
            found.append(part)
    return tuple(found)


def reshaped(value: Value, shape: Sequence[int]) -> Value | None:
    """The tensor with another shape, None where it is not made of parts of axes any more.

    Parameters
    ----------
    value
        The tensor.
    shape
        The new extents. [items]
    """
    left = list(reversed(joined(value.parts)))
    dims = []
    for extent in shape:
        dim: list[AxisPart] = []
        missing = extent
        while missing > 1:
            if not left:
                return None
            part = left.pop()
            if missing % part.extent == 0:
                dim.append(part)
                missing //= part.extent
            elif part.extent % missing == 0:
                inner = part.extent // missing
                dim.append(AxisPart(part.axis, part.stride * inner, missing))
                left.append(AxisPart(part.axis, part.stride, inner))
                missing = 1
            else:
                return None
        dims.append(joined(dim))
    return None if left else replace(value, dims=tuple(dims))


def sliced(value: Value, dim: int, start: int, count: int) -> Value | None:
    """Some positions of one dim, None where these are not neighbours on an axis.

    Parameters
    ----------
    value
        The tensor.
    dim
        Which dim.
    start, count
        The first position, and how many. [items]
    """
    parts = value.dims[dim]
    if math.prod(part.extent for part in parts) == count:
        return value
    if len(parts) != 1 or not parts[0].axis or parts[0].axis == "sample":
        return None
    (part,) = parts
    first, held = value.slices.get(part.axis, (0, value.axes[part.axis]))
    # only the outermost part of an axis counts blocks of it
    if part.stride * part.extent != held:
        return None
    kept = (first + start * part.stride, count * part.stride)
    new = (AxisPart(part.axis, part.stride, count),) if count > 1 else ()
    dims = (*value.dims[:dim], new, *value.dims[dim + 1 :])
    return replace(value, dims=dims, slices={**value.slices, part.axis: kept})
