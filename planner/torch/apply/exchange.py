"""Move tensors between layouts, forward and backward: halos, shuffles, sums of gradients.

Everything is one operation: each rank gets a box of a tensor of which others hold boxes or
summands. Backward, gradients go the same way back, and are summed where several ranks read the
same positions. What a rank misses comes from one holder each; summands are all-reduced where that
moves less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from planner.torch.apply.groups import RankGroup, new_rank_group
from planner.torch.apply.layout import Box, Layout, box_shape, box_size
from planner.torch.apply.module import Received
from planner.torch.apply.parts import Placing, is_summed_first, pieces_for, placing_of


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
        self._groups: dict[tuple[int, ...], RankGroup | None] = {}

    def group(self, groups: tuple[tuple[int, ...], ...]) -> dist.ProcessGroup:
        """The process group of this rank, of those that all ranks are in; made by all at once."""
        for ranks in dict.fromkeys(groups):
            if ranks not in self._groups:
                self._groups[ranks] = new_rank_group(ranks)
        found = self._groups[groups[self.rank]]
        assert found is not None, "a rank is in its group"
        return found.now

    def move(
        self, x: Tensor, source: Layout, target: tuple[Box, ...], why: Why, fill: float = 0.0
    ) -> Tensor:
        """The rank's box of a tensor that lies in a layout.

        Parameters
        ----------
        x
            What the rank holds of it.
        source
            Where it lies.
        target
            The box that each rank gets; it may reach beyond the tensor.
        why
            What it is for.
        fill
            What lies beyond the tensor.
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
        return self._messages(x, source, target, why, fill)

    def _messages(
        self, x: Tensor, source: Layout, target: tuple[Box, ...], why: Why, fill: float
    ) -> Tensor:
        """As `move`, message by message: each number is copied once before and once after it.

        Parameters
        ----------
        x, source, target, why, fill
            As of `move`.
        """
        own, mine = source.boxes[self.rank], target[self.rank]
        placing = placing_of(source, target, self.rank)
        assert placing.apart or not fill, "summands are added to zero"
        result = _around(x, mine, placing, fill)
        operations, arriving = [], {}
        for other in range(len(target)):
            if other == self.rank:
                continue
            parts = [
                _cut(x, own, one.box)
                for one in pieces_for(source, target, other)
                if one.rank == self.rank
            ]
            if parts:
                operations.append(dist.P2POp(dist.isend, _packed(parts), other))
            wanted = [one.box for one in pieces_for(source, target, self.rank) if one.rank == other]
            if wanted:
                arriving[other] = _landing(result, mine, wanted, placing)
                operations.append(dist.P2POp(dist.irecv, arriving[other], other))
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        why.write(self, "send_recv", sum(one.numel() for one in arriving.values()))
        read = dict.fromkeys(arriving, 0)
        for one in pieces_for(source, target, self.rank):
            place = _cut(result, mine, one.box)
            if one.rank == self.rank:
                part = _cut(x, own, one.box)
            else:
                first, size = read[one.rank], box_size(one.box)
                read[one.rank] = first + size
                part = arriving[one.rank].view(-1)[first : first + size].view(place.shape)
            if not placing.apart:
                place.add_(part)
            elif part.data_ptr() != place.data_ptr():
                place.copy_(part)
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


def _packed(parts: list[Tensor]) -> Tensor:
    """Parts of a tensor one behind the other, none of them copied twice."""
    if len(parts) == 1:
        return parts[0].contiguous()
    packed = parts[0].new_empty(sum(part.numel() for part in parts))
    first = 0
    for part in parts:
        packed[first : first + part.numel()].view(part.shape).copy_(part)
        first += part.numel()
    return packed


def _around(x: Tensor, box: Box, placing: Placing, fill: float) -> Tensor:
    """A tensor with room for the parts of a box, which holds already what lies around them.

    Parameters
    ----------
    x
        A tensor of the same type.
    box, placing
        The box, and how its parts lie in it.
    fill
        What lies around them.
    """
    if placing.inner is None:
        return x.new_full(box_shape(box), fill)
    result = x.new_empty(box_shape(box))
    for dim, ((start, stop), (first, last)) in enumerate(zip(box, placing.inner, strict=True)):
        result.narrow(dim, 0, first - start).fill_(fill)
        result.narrow(dim, last - start, stop - last).fill_(fill)
    return result


def _landing(result: Tensor, mine: Box, wanted: list[Box], placing: Placing) -> Tensor:
    """Memory for what another rank sends: its place itself, where that is in one piece.

    Parameters
    ----------
    result, mine
        What the parts come to lie in, and which box it is.
    wanted, placing
        The parts of that rank, and how all of them lie.
    """
    if len(wanted) == 1 and placing.apart:
        place = _cut(result, mine, wanted[0])
        if place.is_contiguous():
            return place
    return result.new_empty(sum(map(box_size, wanted)))


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
        fill: float,
    ) -> Tensor:
        ctx.given = (exchange, source, gradient, why)
        found = exchange.move(x, source, gradient.boxes, why, fill)
        return found.view_as(x) if found is x else found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        exchange, source, gradient, why = ctx.given
        cause = "gradient" if why.cause == "weight" else why.cause
        back = Why(why.layer, cause, backward=True)
        found = exchange.move(gradients[0], gradient, source.boxes, back)
        return found, None, None, None, None, None


def moved(
    x: Tensor,
    exchange: Exchange,
    source: Layout,
    gradient: Layout,
    why: Why,
    fill: float = 0.0,
) -> Tensor:
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
    fill
        What lies beyond the tensor, where boxes reach that far.
    """
    found: Tensor = _Moved.apply(x, exchange, source, gradient, why, fill)
    return found
