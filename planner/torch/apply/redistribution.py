"""Move local tensors between layouts by DTensor, forward and backward.

A move is said by the layout before, the layout after, and the axes over which the gradient of what
was moved is a sum. Backward, the gradient goes to the layout before, summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from msgspec import Struct
from msgspec.structs import replace
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from planner.torch.apply.groups import RankGroup, new_rank_group
from planner.torch.apply.views import Parts, ViewLayout, local_extents, refined

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh


class Move(Struct, frozen=True):
    """A tensor on its way from one layout to another.

    Parameters
    ----------
    source, target
        The layouts before and after.
    sums
        Axes over whose members the gradient of what was moved is a sum.
    layer
        The layer that it is a weight of, or "source -> reader".
    cause
        What it is for: "shuffle", "weight" or "statistics".
    """

    source: ViewLayout
    target: ViewLayout
    sums: frozenset[int]
    layer: str = ""
    cause: str = "shuffle"

    @property
    def is_nothing(self) -> bool:
        """Whether the tensor stays as it is, forward and backward."""
        return self.source == self.target and not self.sums

    @property
    def is_gathering(self) -> bool:
        """Whether ranks have more of the tensor afterwards, which is no sum."""
        more = self.target.cutting < self.source.cutting
        return more and not self.source.partial

    @property
    def gradient(self) -> Move:
        """The way back."""
        source, target = self.target.summed_over(self.sums), self.source.without_sums()
        return replace(self, source=source, target=target, sums=frozenset())


Log = Callable[[Move, float, str, bool], None]


class MeshRanks:
    """The mesh of the ranks of a stage, on which tensors move.

    Parameters
    ----------
    mesh
        The mesh.
    log
        Is told of every move.
    """

    def __init__(self, mesh: DeviceMesh, log: Log) -> None:
        self.mesh = mesh
        self.sizes = tuple(int(n) for n in mesh.shape)
        self.log = log
        self.groups: dict[frozenset[int], RankGroup] = {}

    @property
    def place(self) -> tuple[int, ...]:
        """Where this rank lies, along each axis."""
        found = self.mesh.get_coordinate()
        assert found is not None, "the rank is of this mesh"
        return tuple(found)

    def redistribute(self, x: Tensor, move: Move, backward: bool = False) -> Tensor:
        """A local tensor in another layout, without a gradient.

        Parameters
        ----------
        x
            What the rank holds.
        move
            The layouts.
        backward
            Whether it is a gradient.
        """
        if move.source == move.target:
            return x
        sums = move.source.partial - move.target.partial
        rest = sums - move.target.cutting
        if rest and rest != sums:
            # scattered sums are smaller to sum further
            middle = move.target.summed_over(rest)
            x = self.redistribute(x, replace(move, target=middle), backward)
            return self.redistribute(x, replace(move, source=middle), backward)
        pairs = [
            list(refined(one, other, self.sizes))
            for one, other in zip(move.source.dims, move.target.dims, strict=True)
        ]
        before = tuple(left for dim in pairs for left, _ in dim)
        after = tuple(right for dim in pairs for _, right in dim)
        held = x.reshape(local_extents(before, self.sizes))
        whole = torch.Size(part.extent for part in before)
        spread = DTensor.from_local(
            held.contiguous(),
            self.mesh,
            self._placements(before, move.source.partial),
            run_check=False,
            shape=whole,
            stride=torch.empty(whole, device="meta").stride(),
        )
        moved = spread.redistribute(placements=self._placements(after, move.target.partial))
        found = moved.to_local().reshape(move.target.local_shape(self.sizes))
        self._tell(move, x, found, backward)
        return found

    def make_groups(self, sets: Iterable[frozenset[int]], starts: Sequence[int]) -> None:
        """Make the groups of ranks that several axes span; all ranks of all stages call it alike.

        Parameters
        ----------
        sets
            Axes, by number.
        starts
            The first rank of each group of stages.
        """
        mesh = torch.arange(math.prod(self.sizes)).reshape(self.sizes)
        for axes in sorted({tuple(sorted(one)) for one in sets}):
            others = [axis for axis in range(len(self.sizes)) if axis not in axes]
            size = math.prod(self.sizes[axis] for axis in axes)
            for row in mesh.permute(*others, *axes).reshape(-1, size).tolist():
                for start in starts:
                    ranks = [start + one for one in row]
                    group = new_rank_group(ranks)
                    if group is not None:
                        self.groups[frozenset(axes)] = group

    def all_reduce(self, tensors: Sequence[Tensor], axes: frozenset[int]) -> list[Tensor]:
        """Sums over some axes, of several tensors at once.

        Parameters
        ----------
        tensors, axes
            What is summed, and over which axes.
        """
        together = torch.cat([one.reshape(-1) for one in tensors])
        dist.all_reduce(together, group=self.groups[axes].now)
        parts = together.split([one.numel() for one in tensors])
        return [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]

    def share(self, axes: frozenset[int]) -> float:
        """What part of a tensor the others of some axes have, where each has an equal one."""
        members = math.prod(self.sizes[axis] for axis in axes)
        return (members - 1) / members

    def _tell(self, move: Move, before: Tensor, after: Tensor, backward: bool) -> None:
        """Say what was received, axis by axis, as cost models count it.

        Parameters
        ----------
        move, before, after
            The move, and the tensor before and after.
        backward
            Whether it is a gradient.
        """
        left, right = move.source, move.target
        gathered, scattered = set(), set()
        for axis, members in enumerate(self.sizes):
            share = (members - 1) / members
            was, now = axis in left.cutting, axis in right.cutting
            if axis in left.partial and axis not in right.partial:
                if now:
                    scattered.add(axis)
                else:
                    self.log(move, 2 * before.numel() * share, "all_reduce", backward)
            elif was and not now:
                gathered.add(axis)
            elif was and now and _cut_dim(left, axis) != _cut_dim(right, axis):
                self.log(move, before.numel() * share, "all_to_all", backward)
        # over several axes one after the other, each time of a larger or a smaller block
        if gathered:
            numbers = after.numel() * self.share(frozenset(gathered))
            self.log(move, numbers, "all_gather", backward)
        if scattered:
            numbers = before.numel() * self.share(frozenset(scattered))
            self.log(move, numbers, "reduce_scatter", backward)

    def _placements(self, parts: Parts, partial: frozenset[int]) -> list[Placement]:
        """What DTensor calls a layout of a tensor of one dim for each part."""
        found: list[Placement] = [
            Partial() if axis in partial else Replicate() for axis in range(len(self.sizes))
        ]
        for number, part in enumerate(parts):
            for axis in part.axes:
                found[axis] = Shard(number)
        return found

    def moved(self, x: Tensor, move: Move) -> Tensor:
        """A local tensor in another layout; its gradient comes back.

        Parameters
        ----------
        x
            What the rank holds.
        move
            The layouts.
        """
        if move.is_nothing:
            return x
        found: Tensor = _Redistributed.apply(x, self, move)
        return found


class _Redistributed(Function):
    """A move with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: MeshRanks, move: Move) -> Tensor:
        ctx.given = (ranks, move)
        found = ranks.redistribute(x, move)
        return found.view_as(x) if found is x else found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ranks, move = ctx.given
        return ranks.redistribute(gradients[0], move.gradient, backward=True), None, None


def _cut_dim(layout: ViewLayout, axis: int) -> int:
    """The dim that an axis cuts."""
    return next(
        number for number, dim in enumerate(layout.dims) if any(axis in part.axes for part in dim)
    )
