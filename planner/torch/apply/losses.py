"""Losses of blocks: the rank's summand of the mean loss over all positions of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.autograd import Function
from torch.nn import functional

from planner.torch.apply.redistribution import MeshRanks, Move
from planner.torch.apply.views import ViewLayout, ways

if TYPE_CHECKING:
    from torch import Tensor

# Positions with this label count for nothing, as in PyTorch.
IGNORED = -100


class Loss(Struct, frozen=True, kw_only=True):
    """The loss of a module that has none itself.

    Parameters
    ----------
    ranks
        The ranks of the stage.
    layout
        How the output lies that it reads, of which the last dim is the features.
    function
        A mean over positions of the output and the target; None for the cross entropy of features.
    """

    ranks: MeshRanks
    layout: ViewLayout
    function: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """Axes that cut anything but the features."""
        return tuple(axis for dim in self.layout.dims[:-1] for p in dim for axis in p.axes)

    @property
    def features(self) -> tuple[int, ...]:
        """Axes that cut the features."""
        return tuple(axis for part in self.layout.dims[-1] for axis in part.axes)

    def summand(self, output: Tensor, target: Tensor) -> Tensor:
        """What this rank adds to the mean over all positions.

        Parameters
        ----------
        output, target
            The rank's blocks.
        """
        if self.function is not None:
            return self.function(output, target) / ways(self.positions, self.ranks.sizes)
        output = output.reshape(-1, output.shape[-1])
        target = target.reshape(-1)
        count = (target != IGNORED).sum().to(output.dtype)
        count = self._summed(count, self.positions)
        if not self.features:
            total = functional.cross_entropy(output, target, reduction="sum")
            return total / count
        first = 0
        place = self.ranks.place
        for axis in self.features:
            first = first * self.ranks.sizes[axis] + place[axis]
        groups = [self.ranks.mesh.get_group(axis) for axis in self.features]
        # the largest of the features, the sum of their powers, and the right one
        move = Move(self.layout, self.layout, frozenset(), "loss", cause="statistics")
        for axis in self.features:
            numbers = 3 * 2 * target.numel() * self.ranks.share(frozenset({axis}))
            self.ranks.log(move, numbers, "all_reduce", False)
        losses: Tensor = _CutCrossEntropy.apply(output, target, first * output.shape[-1], groups)
        return losses.sum() / count

    def total(self, summand: Tensor) -> Tensor:
        """The mean over all positions, from what every rank adds to it."""
        return self._summed(summand.detach(), self.positions)

    def _summed(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        x = x.clone()
        for axis in axes:
            dist.all_reduce(x, group=self.ranks.mesh.get_group(axis))
        return x


class _CutCrossEntropy(Function):
    """Softmax and cross entropy of features of which each rank has a block."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, target: Tensor, first: int, groups: list[Any]) -> Tensor:
        highest = output.amax(-1)
        _reduce(highest, groups, dist.ReduceOp.MAX)
        powers = (output - highest.unsqueeze(-1)).exp()
        total = powers.sum(-1)
        local = target - first
        mine = (local >= 0) & (local < output.shape[-1])
        local = local.masked_fill(~mine, 0)
        own = (output - highest.unsqueeze(-1)).gather(-1, local.unsqueeze(-1)).squeeze(-1)
        own = own.masked_fill(~mine, 0.0)
        both = torch.stack([total, own])
        _reduce(both, groups, dist.ReduceOp.SUM)
        total, own = both[0], both[1]
        kept = target != IGNORED
        ctx.save_for_backward(powers / total.unsqueeze(-1), local, mine, kept)
        return (total.log() - own).masked_fill(~kept, 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        chances, local, mine, kept = ctx.saved_tensors
        change = chances.clone()
        change.scatter_add_(-1, local.unsqueeze(-1), -mine.to(change.dtype).unsqueeze(-1))
        change = change * (gradients[0] * kept.to(change.dtype)).unsqueeze(-1)
        return change, None, None, None


def _reduce(x: Tensor, groups: list[Any], operation: Any) -> None:
    for group in groups:
        dist.all_reduce(x, op=operation, group=group)
