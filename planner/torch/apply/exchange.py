"""Move tensors between layouts, forward and backward: halos, shuffles, sums of gradients.

Everything is one operation: each rank gets a box of a tensor of which others hold boxes or
summands. Backward, gradients go the same way back, and are summed where several ranks read the
same positions. What a rank misses comes from one holder each; summands are all-reduced where that
moves less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from planner.torch.apply.layout import Box, Layout, box_shape, box_size, common_box
from planner.torch.apply.module import Received


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


class Exchange:
    """The ranks of a plan, and a record of what they sent each other.

    Parameters
    ----------
    rank
        This rank; by default that of the process.
    """

    def __init__(self, rank: int | None = None) -> None:
        self.rank = dist.get_rank() if rank is None else rank
        self.record: list[Received] = []
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def group(self, groups: tuple[tuple[int, ...], ...]) -> dist.ProcessGroup:
        """The process group of this rank, of those that all ranks are in; made by all at once."""
        for ranks in dict.fromkeys(groups):
            if ranks not in self._groups:
                self._groups[ranks] = dist.new_group(ranks)
        return self._groups[groups[self.rank]]

    def move(self, x: Tensor, source: Layout, target: tuple[Box, ...], why: Why) -> Tensor:
        """The rank's box of a tensor that lies in a layout.

        Parameters
        ----------
        x
            What the rank holds of it.
        source
            Where it lies.
        target
            The box that each rank gets.
        why
            What it is for.
        """
        if is_summed_first(source, target):
            ranks = source.sharers
            group = self.group(ranks)
            x = x.contiguous().clone()
            dist.all_reduce(x, group=group)
            members = len(ranks[self.rank])
            why.write(self, "all_reduce", 2 * x.numel() * (members - 1) / members)
            source = source.whole
        if source.boxes == target and all(len(one) == 1 for one in source.sharers):
            return x
        return self._messages(x, source, target, why)

    def _messages(self, x: Tensor, source: Layout, target: tuple[Box, ...], why: Why) -> Tensor:
        """As `move`, message by message.

        Parameters
        ----------
        x, source, target, why
            As of `move`.
        """
        own = source.boxes[self.rank]
        x = x.contiguous()
        operations, arriving = [], {}
        for other in range(len(target)):
            if other == self.rank:
                continue
            parts = [
                _cut(x, own, one.box).reshape(-1)
                for one in pieces_for(source, target, other)
                if one.rank == self.rank
            ]
            if parts:
                operations.append(dist.P2POp(dist.isend, torch.cat(parts), other))
            needed = sum(
                box_size(one.box)
                for one in pieces_for(source, target, self.rank)
                if one.rank == other
            )
            if needed:
                arriving[other] = x.new_empty(needed)
                operations.append(dist.P2POp(dist.irecv, arriving[other], other))
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        why.write(self, "send_recv", sum(one.numel() for one in arriving.values()))
        mine = target[self.rank]
        result = x.new_zeros(box_shape(mine))
        read = dict.fromkeys(arriving, 0)
        for one in pieces_for(source, target, self.rank):
            if one.rank == self.rank:
                part = _cut(x, own, one.box)
            else:
                first, size = read[one.rank], box_size(one.box)
                read[one.rank] = first + size
                part = arriving[one.rank][first : first + size].view(box_shape(one.box))
            _cut(result, mine, one.box).add_(part)
        return result


@dataclass(frozen=True)
class Why:
    """What a tensor is moved for: a layer, and "halo", "shuffle", "gradient" and so on."""

    layer: str
    cause: str
    backward: bool = False

    def write(self, exchange: Exchange, collective: str, numbers: float) -> None:
        """Put down what was received.

        Parameters
        ----------
        exchange
            Where.
        collective, numbers
            What did it, and how much. [items]
        """
        if numbers:
            exchange.record.append(
                Received(
                    layer=self.layer,
                    cause=self.cause,
                    backward=self.backward,
                    collective=collective,
                    numbers=numbers,
                )
            )


def _cut(x: Tensor, box: Box, part: Box) -> Tensor:
    """A part of a tensor that is a box of a larger one."""
    for dim, ((start, _), (first, last)) in enumerate(zip(box, part, strict=True)):
        x = x.narrow(dim, first - start, last - first)
    return x


class _Moved(Function):
    """A move with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        exchange: Exchange,
        source: Layout,
        gradient: Layout,
        why: Why,
    ) -> Tensor:
        ctx.given = (exchange, source, gradient, why)
        found = exchange.move(x, source, gradient.boxes, why)
        return found.view_as(x) if found is x else found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        exchange, source, gradient, why = ctx.given
        cause = "gradient" if why.cause == "weight" else why.cause
        back = Why(why.layer, cause, backward=True)
        return exchange.move(gradients[0], gradient, source.boxes, back), None, None, None, None


def moved(x: Tensor, exchange: Exchange, source: Layout, gradient: Layout, why: Why) -> Tensor:
    """A tensor in other boxes, so that gradients find their way back.

    Parameters
    ----------
    x
        What the rank holds of it.
    exchange
        The ranks.
    source
        Where it lies.
    gradient
        The boxes that are read, and in which holders their gradients are summands.
    why
        What it is for.
    """
    found: Tensor = _Moved.apply(x, exchange, source, gradient, why)
    return found
