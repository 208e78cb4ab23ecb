"""Where the blocks of a tensor lie: which box of it each rank holds, and which of them are sums."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from planner.plan import Mesh
from planner.plan.sharding import PARTIAL, TensorPlacement, sharded_dim

# The first position of each dim, and the one behind the last.
Box = tuple[tuple[int, int], ...]


def box_shape(box: Box) -> tuple[int, ...]:
    """Extents of a box. [items]"""
    return tuple(stop - start for start, stop in box)


def box_size(box: Box) -> int:
    """Numbers in a box. [items]"""
    return math.prod(max(stop - start, 0) for start, stop in box)


def common_box(one: Box, other: Box) -> Box:
    """What two boxes have in common."""
    pairs = zip(one, other, strict=True)
    return tuple((max(a, c), max(min(b, d), max(a, c))) for (a, b), (c, d) in pairs)


@dataclass(frozen=True)
class Layout:
    """The boxes of a tensor.

    The tensor is the sum of what distinct holders have where their boxes overlap; ranks of one
    holder have the same numbers.

    Parameters
    ----------
    boxes
        That of each rank.
    holders
        Which holder each rank is.
    """

    boxes: tuple[Box, ...]
    holders: tuple[tuple[int, ...], ...]

    @cached_property
    def ranks_of(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Ranks of each holder, in order."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, holder in enumerate(self.holders):
            found.setdefault(holder, []).append(rank)
        return {holder: tuple(ranks) for holder, ranks in sorted(found.items())}

    @cached_property
    def sharers(self) -> tuple[tuple[int, ...], ...]:
        """For each rank, those of all holders that have summands of its box, itself among them.

        Where every box has equally many replicas, the n-th of each make a group.
        """
        places = {
            rank: place for ranks in self.ranks_of.values() for place, rank in enumerate(ranks)
        }
        groups: dict[tuple[Box, int], list[int]] = {}
        for rank, box in enumerate(self.boxes):
            groups.setdefault((box, places[rank]), []).append(rank)
        return tuple(tuple(groups[box, places[rank]]) for rank, box in enumerate(self.boxes))

    def with_boxes(self, boxes: Iterable[Box]) -> Layout:
        """The same holders with other boxes."""
        return replace(self, boxes=tuple(boxes))

    @cached_property
    def whole(self) -> Layout:
        """The same boxes after summands are summed: ranks of one box have the same numbers."""
        order = {box: n for n, box in enumerate(dict.fromkeys(self.boxes))}
        return Layout(boxes=self.boxes, holders=tuple((order[box],) for box in self.boxes))


def block(extent: int, index: int, ways: int) -> tuple[int, int]:
    """Block `index` of positions that are cut some ways, as plans count them.

    Parameters
    ----------
    extent
        Positions. [items]
    index, ways
        Which block, of how many.
    """
    return index * extent // ways, (index + 1) * extent // ways


def layout_of(tensor: TensorPlacement, mesh: Mesh, summed: Iterable[str] = ()) -> Layout:
    """The layout of a tensor of a plan.

    Parameters
    ----------
    tensor
        Where the plan places it.
    mesh
        The mesh of its layer.
    summed
        Axes whose members hold summands, beside those that the placements say.
    """
    shape, boxes, holders = tensor.shape, [], []
    sums = set(summed)
    for rank in mesh.ranks:
        place = mesh.coordinates(rank)
        index, ways, holder = [0] * len(shape), [1] * len(shape), []
        for axis, placement, digit in zip(mesh.axes, tensor.placements, place, strict=True):
            dim = sharded_dim(placement)
            if dim is not None:
                index[dim], ways[dim] = index[dim] * axis.size + digit, ways[dim] * axis.size
            apart = dim is not None or placement == PARTIAL or axis.name in sums
            holder.append(digit if apart else 0)
        boxes.append(tuple(block(n, i, w) for n, i, w in zip(shape, index, ways, strict=True)))
        holders.append(tuple(holder))
    return Layout(boxes=tuple(boxes), holders=tuple(holders))
