"""Which parts of a tensor each rank reads of which others, and how they come to lie in its box."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

from planner.torch.apply.layout import Box, Layout, box_size, common_box


@dataclass(frozen=True)
class MovedPart:
    """A part of a tensor on its way: who has it, which box it is, and from whom it is read."""

    holder: tuple[int, ...]
    box: Box
    rank: int


@lru_cache(maxsize=65536)
def pieces_for(source: Layout, target: tuple[Box, ...], rank: int) -> tuple[MovedPart, ...]:
    """What a rank reads, in the order in which it is summed.

    Parameters
    ----------
    source
        Where the tensor lies.
    target
        The box that each rank gets.
    rank
        The rank.
    """
    found = []
    for holder, ranks in source.ranks_of.items():
        box = common_box(source.boxes[ranks[0]], target[rank])
        if box_size(box):
            # its own block where it has it, else that of the nearest
            near = min(ranks, key=lambda one: (abs(one - rank), one))
            found.append(MovedPart(holder, box, near))
    return tuple(found)


@dataclass(frozen=True)
class Placing:
    """How the parts of a box come to lie in it.

    Parameters
    ----------
    apart
        Whether no two of them overlap, so that none is added to another.
    inner
        The box that they fill without a gap; None where they do not.
    """

    apart: bool
    inner: Box | None


@lru_cache(maxsize=65536)
def placing_of(source: Layout, target: tuple[Box, ...], rank: int) -> Placing:
    """How what a rank reads comes to lie in its box.

    Parameters
    ----------
    source, target, rank
        As of `pieces_for`.
    """
    boxes = [one.box for one in pieces_for(source, target, rank)]
    pairs = itertools.combinations(boxes, 2)
    if any(box_size(common_box(one, other)) for one, other in pairs):
        return Placing(apart=False, inner=None)
    dims = zip(*boxes, strict=True)
    inner = tuple((min(one for one, _ in dim), max(last for _, last in dim)) for dim in dims)
    filled = bool(boxes) and box_size(inner) == sum(map(box_size, boxes))
    return Placing(apart=True, inner=inner if filled else None)


@lru_cache(maxsize=65536)
def received(source: Layout, target: tuple[Box, ...]) -> int:
    """Numbers that the busiest rank gets from others, message by message. [items]"""
    return max(
        sum(box_size(one.box) for one in pieces_for(source, target, rank) if one.rank != rank)
        for rank in range(len(target))
    )


@lru_cache(maxsize=65536)
def is_summed_first(source: Layout, target: tuple[Box, ...]) -> bool:
    """Whether an all-reduce and a move of the sums move less than summands themselves would."""
    groups = source.sharers
    if all(len(group) == 1 for group in groups):
        return False
    # summands must lie in the same boxes, each in as many replicas
    holders = {len(ranks) for ranks in source.ranks_of.values()}
    if len(holders) > 1 or any(
        len({source.holders[one] for one in group}) < len(group) for group in groups
    ):
        return False
    overlapping = set(source.boxes)
    if any(
        box_size(common_box(one, other))
        for one in overlapping
        for other in overlapping
        if one < other
    ):
        return False
    reduce = max(
        2 * box_size(box) * (len(group) - 1) / len(group)
        for box, group in zip(source.boxes, groups, strict=True)
    )
    return reduce + received(source.whole, target) <= received(source, target)
