"""Norms and softmax of dims that ranks have blocks of: their statistics are summed over the ranks.

What is summed, and how often, is what the plan charges: two numbers of a layer norm or of a batch
norm, one of a norm by the root mean square, forward and again backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from msgspec import Struct

from planner.torch.apply.redistribution import MeshRanks, Move
from planner.torch.apply.rules import Call, Given, Held, RankPlace, rule
from planner.torch.apply.shaping import block_of_constant
from planner.torch.apply.views import LayoutError, Parts, ViewLayout, uncut, ways
from planner.torch.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node

    from planner.torch.apply.steps import Program

_NORMS = ("layer_norm", "rms_norm")
_SOFTMAX = ("softmax", "_softmax", "log_softmax", "_log_softmax")
_HALF = (torch.float16, torch.bfloat16)


class RankSums(Struct, frozen=True):
    """Sums over the members of some axes, inside of an operator of a layer."""

    ranks: MeshRanks
    axes: tuple[int, ...]
    layer: str

    @property
    def members(self) -> int:
        """Ranks that have summands. [items]"""
        return ways(self.axes, self.ranks.sizes)

    def summed(self, x: Tensor) -> Tensor:
        """The sum of what every rank has; its gradient is the sum of theirs."""
        whole = uncut(x.shape)
        axes = frozenset(self.axes)
        move = Move(whole.summed_over(axes), whole, axes, self.layer, cause="statistics")
        return self.ranks.moved(x, move)

    def largest(self, x: Tensor) -> Tensor:
        """The largest number that any rank has, without a gradient."""
        found = x.detach().clone()
        whole = uncut(x.shape)
        move = Move(whole, whole, frozenset(), self.layer, cause="statistics")
        for axis in self.axes:
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.ranks.mesh.get_group(axis))
            numbers = 2 * found.numel() * self.ranks.share(frozenset({axis}))
            self.ranks.log(move, numbers, "all_reduce", False)
        return found


def cut_statistics(program: Program, node: Node, layer: str, given: Given) -> Call | None:
    """An operator over a dim that is cut where the plan sums statistics; None for all others.

    Parameters
    ----------
    program
        What is made.
    node, layer, given
        The operator, its layer, and its arguments by name.

    Raises
    ------
    LayoutError
        When what it reads besides lies in other blocks.
    """
    name = operator_of(node)
    if not layer or layer not in program.plan.layers:
        return None
    summed = program.plan.placements(layer).statistics_sums
    held = given.get("input", given.get("self"))
    if not summed or not isinstance(held, Held) or held.is_constant or held.layout.partial:
        return None
    rank = len(held.layout.dims)
    if name == "batch_norm":
        dims = [n for n in range(rank) if n != 1]
    elif name in _NORMS:
        dims = list(range(rank - len(given["normalized_shape"]), rank))
    elif name in (*_SOFTMAX, "mean", "sum"):
        over = given.get("dim")
        over = over if isinstance(over, int | list | tuple) else []
        dims = [dim % rank for dim in ([over] if isinstance(over, int) else over)]
    else:
        return None
    axes = tuple(axis for dim in dims for part in held.layout.dims[dim] for axis in part.axes)
    if not axes:
        return None
    sums = RankSums(program.ranks, axes, layer)
    if name == "batch_norm":
        return _batch_norm_call(sums, held, given)
    if name in _NORMS:
        return _norm_call(sums, held, given, centred=name == "layer_norm")
    if name in _SOFTMAX:
        call = {"x": held, "sums": sums, "dim": dims[0], "log": "log" in name}
        return Call(run=_cut_softmax, given=call, layout=held.layout)
    return _sum_call(sums, held, given, dims, shape_of(node), is_mean=name == "mean")


def _sum_call(
    sums: RankSums, held: Held, given: Given, dims: Sequence[int], shape: object, *, is_mean: bool
) -> Call:
    """A mean or a sum in a norm that is written out."""
    kept: list[Parts] = [
        () if dim in dims else parts
        for dim, parts in enumerate(held.layout.dims)
        if given.get("keepdim") or dim not in dims
    ]
    layout = ViewLayout(tuple(kept))
    if layout.shape != shape:
        raise LayoutError("it sums over a dim that is cut")
    call = {
        "x": held,
        "sums": sums,
        "dims": tuple(dims),
        "keepdim": bool(given.get("keepdim")),
        "is_mean": is_mean,
    }
    return Call(run=_cut_sum, given=call, layout=layout)


def _cut_sum(
    x: Tensor, sums: RankSums, dims: tuple[int, ...], keepdim: bool, is_mean: bool
) -> Tensor:
    if is_mean:
        return sums.summed(x.mean(dims, keepdim) / sums.members)
    return sums.summed(x.sum(dims, keepdim))


def _norm_call(sums: RankSums, held: Held, given: Given, *, centred: bool) -> Call:
    """A norm of the last dim."""
    if len(given["normalized_shape"]) != 1:
        raise LayoutError("it is over several dims, of which one is cut")
    wanted = ViewLayout(held.layout.dims[-1:])
    call = {
        "x": held,
        "sums": sums,
        "weight": _as_cut(given.get("weight"), wanted),
        "bias": _as_cut(given.get("bias"), wanted),
        "eps": given.get("eps"),
        "centred": centred,
    }
    return Call(run=_cut_norm, given=call, layout=held.layout)


def _as_cut(one: object, wanted: ViewLayout) -> object:
    """A vector of trained numbers in the blocks of the features, where there is one."""
    if not isinstance(one, Held) or one.layout == wanted:
        return one
    return block_of_constant(one, wanted)


def _cut_norm(
    x: Tensor,
    sums: RankSums,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    centred: bool,
) -> Tensor:
    y = x.float() if x.dtype in _HALF else x
    eps = torch.finfo(y.dtype).eps if eps is None else eps
    if centred:
        y = y - sums.summed(y.mean(-1, keepdim=True) / sums.members)
    # of what is centred: squares lose no digits
    spread = sums.summed(y.square().mean(-1, keepdim=True) / sums.members)
    y = y * (spread + eps).rsqrt()
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype)


def _cut_softmax(x: Tensor, sums: RankSums, dim: int, log: bool) -> Tensor:
    y = x - sums.largest(x.amax(dim, keepdim=True))
    total = sums.summed(y.exp().sum(dim, keepdim=True))
    return y - total.log() if log else y.exp() / total


@rule("batch_norm", "group_norm", "instance_norm")
def _norm_on_blocks(place: RankPlace, node: Node, given: Given) -> Call:
    """A norm of each channel, or of whole groups of them, of the samples of a rank."""
    held, name = given["input"], operator_of(node)
    if any(part.axes for dim in held.layout.dims[2:] for part in dim):
        raise LayoutError("its space is cut")
    if held.layout.partial:
        raise LayoutError("it is no operator on summands")
    channels = held.layout.dims[1]
    axes = tuple(axis for part in channels for axis in part.axes)
    vectors = ("weight", "bias", "running_mean", "running_var")
    call = {
        key: _as_cut(one, ViewLayout((channels,))) if key in vectors else one
        for key, one in given.items()
    }
    if name == "group_norm":
        if given["num_groups"] % ways(axes, place.sizes) or len(channels) > 1:
            raise LayoutError("a group of its channels is cut")
        call["num_groups"] = given["num_groups"] // ways(axes, place.sizes)
    return Call(run=node.target, given=call, layout=held.layout)


@rule("prelu")
def _slopes(place: RankPlace, node: Node, given: Given) -> Call:
    """Slopes of channels, in the blocks of these."""
    held, slopes = given["self"], given["weight"]
    if held.layout.partial:
        raise LayoutError("it is no operator on summands")
    if slopes.layout.shape != (1,):
        slopes = _as_cut(slopes, ViewLayout(held.layout.dims[1:2]))
    return Call(run=node.target, given={"self": held, "weight": slopes}, layout=held.layout)


def _batch_norm_call(sums: RankSums, held: Held, given: Given) -> Call:
    """Batch norm over the samples of several ranks."""
    wanted = ViewLayout(held.layout.dims[1:2])
    vectors: Mapping[str, Any] = {
        name: _as_cut(given[name], wanted)
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    call = {"x": held, "sums": sums, **vectors}
    call |= {name: given[name] for name in ("training", "momentum", "eps")}
    return Call(run=_cut_batch_norm, given=call, layout=held.layout)


def _cut_batch_norm(
    x: Tensor,
    sums: RankSums,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    if not training:
        return torch.nn.functional.batch_norm(
            x, running_mean, running_var, weight, bias, False, momentum, eps
        )
    others = [0, *range(2, x.dim())]
    mean = sums.summed(x.mean(others, keepdim=True) / sums.members)
    y = x - mean
    spread = sums.summed(y.square().mean(others, keepdim=True) / sums.members)
    if running_mean is not None and running_var is not None:
        count = sums.members * x.numel() // max(x.shape[1], 1)
        with torch.no_grad():
            running_mean.lerp_(mean.flatten().to(running_mean.dtype), momentum)
            unbiased = spread.flatten() * (count / max(count - 1, 1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    y = y * (spread + eps).rsqrt()
    shape = (-1, *[1] * (x.dim() - 2))
    if weight is not None:
        y = y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)
