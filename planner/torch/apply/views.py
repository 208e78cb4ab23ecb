"""How a tensor lies on the ranks of a mesh: which axes cut which parts of its dims.

A dim is a product of parts, the outermost first: a view that joins samples and tokens has a dim of
two parts, queries, keys and values side by side are three parts of so many heads. Each part is cut
by some axes of the mesh into equal contiguous blocks, so that every view of a local tensor is one
of the whole, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planner.models.traced.values import Value
from planner.plan.sharding import PARTIAL, TensorPlacement, sharded_dim


class LayoutError(Exception):
    """A tensor that cannot lie as it should.

    Parameters
    ----------
    reason
        Why.
    advice
        What to do next.
    """

    def __init__(
        self, reason: str, advice: str = "split that layer otherwise, by samples for example"
    ) -> None:
        super().__init__(reason)
        self.advice = advice


class DimPart(Struct, frozen=True):
    """Positions of a dim, and the axes of the mesh that cut them, by number."""

    extent: int
    axes: tuple[int, ...] = ()


Parts = tuple[DimPart, ...]


class ViewLayout(Struct, frozen=True):
    """Where a tensor lies.

    Parameters
    ----------
    dims
        Parts of each dim, in normal form.
    partial
        Axes over whose members it is a sum.
    """

    dims: tuple[Parts, ...]
    partial: frozenset[int] = frozenset()

    @property
    def cutting(self) -> frozenset[int]:
        """Axes that cut any dim."""
        return frozenset(axis for dim in self.dims for part in dim for axis in part.axes)

    @property
    def is_whole(self) -> bool:
        """Whether every rank has all of it."""
        return not self.partial and not self.cutting

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the whole. [items]"""
        return tuple(math.prod(part.extent for part in dim) for dim in self.dims)

    def local_shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Extents of a block, under so many members of each axis. [items]"""
        return tuple(math.prod(local_extents(dim, sizes)) for dim in self.dims)

    def without_sums(self) -> ViewLayout:
        """The layout of its gradient, and of what is summed."""
        return replace(self, partial=frozenset())

    def summed_over(self, axes: Iterable[int]) -> ViewLayout:
        """The same, where axes hold summands besides."""
        return replace(self, partial=self.partial | frozenset(axes))


def uncut(shape: Iterable[int]) -> ViewLayout:
    """The layout of a tensor of which every rank has all."""
    return ViewLayout(tuple((DimPart(extent),) if extent != 1 else () for extent in shape))


def local_extents(parts: Parts, sizes: Sequence[int]) -> list[int]:
    """Extents of the parts of a block. [items]"""
    return [part.extent // ways(part.axes, sizes) for part in parts]


def ways(axes: Iterable[int], sizes: Sequence[int]) -> int:
    """How many ways axes of such sizes cut. [ways]"""
    return math.prod(sizes[axis] for axis in axes)


def normal(parts: Iterable[DimPart]) -> Parts:
    """Parts that are as few as can be."""
    found: list[DimPart] = []
    for part in parts:
        if part.extent == 1:
            continue
        if found and not part.axes:
            found[-1] = DimPart(found[-1].extent * part.extent, found[-1].axes)
        else:
            found.append(part)
    return tuple(found)


def split_part(part: DimPart, outer: int, sizes: Sequence[int]) -> tuple[DimPart, DimPart]:
    """One part as an outer one of so many positions, and an inner one.

    Parameters
    ----------
    part
        The part.
    outer
        Positions of the outer one, which divide those of the part. [items]
    sizes
        Members of the axes of the mesh. [items]

    Raises
    ------
    LayoutError
        When its axes do not cut whole positions of the outer one.
    """
    taken: list[int] = []
    left = outer
    for axis in part.axes:
        if left % sizes[axis]:
            break
        taken.append(axis)
        left //= sizes[axis]
    rest = part.axes[len(taken) :]
    if rest and left > 1:
        raise LayoutError(f"{part.extent} positions that are cut {ways(part.axes, sizes)} ways")
    return DimPart(outer, tuple(taken)), DimPart(part.extent // outer, rest)


def regrouped(
    parts: Iterable[DimPart], shape: Sequence[int], sizes: Sequence[int]
) -> tuple[Parts, ...]:
    """The parts of a tensor, dealt out to the dims of another shape.

    Parameters
    ----------
    parts
        All parts of all dims, from the outside in.
    shape
        The new extents. [items]
    sizes
        Members of the axes of the mesh. [items]

    Raises
    ------
    LayoutError
        When a block is no block of that shape.
    """
    left = [part for part in parts if part.extent > 1][::-1]
    dims = []
    for extent in shape:
        missing, dim = extent, []
        while missing > 1:
            if not left:
                raise LayoutError("a view of another size")
            part = left.pop()
            if part.extent > missing or missing % part.extent:
                outer = math.gcd(missing, part.extent)
                if outer == 1 or (outer != missing and outer != part.extent):
                    raise LayoutError("a view that does not keep dims together")
                part, inner = split_part(part, outer, sizes)
                left.append(inner)
            dim.append(part)
            missing //= part.extent
        dims.append(normal(dim))
    return tuple(dims)


def refined(one: Parts, other: Parts, sizes: Sequence[int]) -> Iterator[tuple[DimPart, DimPart]]:
    """Two ways to cut one dim, part by part of the same extents.

    Parameters
    ----------
    one, other
        Parts of the same number of positions.
    sizes
        Members of the axes of the mesh. [items]
    """
    first, second = list(one)[::-1], list(other)[::-1]
    while first and second:
        left, right = first.pop(), second.pop()
        if left.extent > right.extent:
            left, inner = split_part(left, right.extent, sizes)
            first.append(inner)
        elif right.extent > left.extent:
            right, inner = split_part(right, left.extent, sizes)
            second.append(inner)
        yield left, right


def layout_of_tensor(placed: TensorPlacement) -> ViewLayout:
    """The layout that a plan says of a tensor with dims of its own."""
    axes: list[list[int]] = [[] for _ in placed.shape]
    partial = set()
    for axis, placement in enumerate(placed.placements):
        dim = sharded_dim(placement)
        if dim is not None:
            axes[dim].append(axis)
        elif placement == PARTIAL:
            partial.add(axis)
    rows = zip(placed.shape, axes, strict=True)
    return ViewLayout(
        tuple(normal([DimPart(extent, tuple(cut))]) for extent, cut in rows), frozenset(partial)
    )


def in_blocks(layout: ViewLayout, dim: int, blocks: int) -> ViewLayout:
    """A layout in which a dim is cut in each of its equal blocks.

    Parameters
    ----------
    layout
        The layout.
    dim, blocks
        The dim, and how many blocks it has. [items]
    """
    axes = tuple(axis for part in layout.dims[dim] for axis in part.axes)
    extent = layout.shape[dim]
    parts = normal([DimPart(blocks), DimPart(extent // blocks, axes)])
    return replace(layout, dims=(*layout.dims[:dim], parts, *layout.dims[dim + 1 :]))


def layout_of_view(placed: TensorPlacement, value: Value, sizes: Sequence[int]) -> ViewLayout:
    """The layout of a tensor that is a view of what a plan places.

    Parameters
    ----------
    placed
        The output of a layer, or what another one reads of it.
    value
        Which parts of its axes the tensor is.
    sizes
        Members of the axes of the mesh. [items]

    Raises
    ------
    LayoutError
        When a block of the one is no block of the other.
    """
    known = layout_of_tensor(placed)
    by_name = dict(zip(placed.dims, known.dims, strict=True))
    # what is left of the cuts of each axis, the outermost part of it first
    dims = []
    taken: set[str] = set()
    for parts in value.dims:
        dim = []
        for part in parts:
            cut = [one for one in by_name.get(part.axis, ()) if one.axes]
            axes = cut[0].axes if cut else ()
            outermost = part.axis not in taken
            taken.add(part.axis)
            if not axes or not outermost:
                dim.append(DimPart(part.extent))
                continue
            if part.extent % ways(axes, sizes):
                raise LayoutError(f"{part.extent} positions cut {ways(axes, sizes)} ways")
            dim.append(DimPart(part.extent, axes))
        dims.append(normal(dim))
    return ViewLayout(tuple(dims), known.partial)
