"""The same steps in one process, by the original module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import DisableTorchFunction

from planner.torch.apply.convolution.site import Site
from planner.torch.trace import alone
from planner.torch.verify.precision import backward_in_double

# Losses and gradients of steps, and the weights after them.
Steps: TypeAlias = "tuple[list[Tensor], list[dict[str, Tensor]], dict[str, Tensor]]"
# Functions that draw random numbers, which differ from rank to rank.
_RANDOM = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout")


@contextmanager
def one_process(sites: Sequence[Site]) -> Iterator[None]:
    """Batch norm over as many positions as the plan's ranks have, and no dropout.

    Parameters
    ----------
    sites
        The batch norms of the plan, in the order in which the module runs them.
    """
    kept = {name: getattr(F, name) for name in (*_RANDOM, "batch_norm") if hasattr(F, name)}
    kept_dropout = torch.dropout
    turn = iter(sites)

    def by_blocks(
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        site = next(turn)
        y = torch.empty_like(x)
        for boxes in _groups(site):
            parts = [x[box].transpose(0, 1).flatten(1) for box in boxes]
            spread, mean = torch.var_mean(torch.cat(parts, 1), 1, correction=0)
            shape = (1, -1, *[1] * (x.dim() - 2))
            for box in boxes:
                y[box] = (x[box] - mean.view(shape)) * (spread + eps).rsqrt().view(shape)
        if weight is not None:
            y = y * weight.view(1, -1, *[1] * (x.dim() - 2))
        return y if bias is None else y + bias.view(1, -1, *[1] * (x.dim() - 2))

    def as_it_is(x: Tensor, *args: Any, **options: Any) -> Tensor:
        return x

    try:
        for name in kept:
            setattr(F, name, by_blocks if name == "batch_norm" else as_it_is)
        torch.dropout = as_it_is
        yield
    finally:
        for name, function in kept.items():
            setattr(F, name, function)
        torch.dropout = kept_dropout


@contextmanager
def norms_by_samples(blocks: Sequence[int]) -> Iterator[None]:
    """Batch norm over as many samples at once as ranks have.

    Parameters
    ----------
    blocks
        Blocks of samples of each norm, in the order in which the module runs them. [items]
    """
    whole, turn = F.batch_norm, iter(blocks)

    def by_blocks(
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        parts = x.chunk(next(turn))
        with DisableTorchFunction():  # which would look this function up again
            rows = [whole(one, None, None, weight, bias, True, 0.0, eps) for one in parts]
        return torch.cat(rows)

    setattr(F, "batch_norm", by_blocks)  # noqa: B010 - as types it is a function of its own
    try:
        yield
    finally:
        setattr(F, "batch_norm", whole)  # noqa: B010


def _groups(site: Site) -> list[list[tuple[slice, ...]]]:
    """The blocks that share the statistics of a batch norm."""
    cut = site.axes_that_cut() - site.axes_that_cut({"channel"})
    groups: dict[tuple[int, ...], dict[Any, tuple[slice, ...]]] = {}
    places = site.holders(cut - set(site.sharding.statistics_sums))
    for place, box in zip(places, site.inputs[0].boxes, strict=True):
        ranges: tuple[slice, ...] = (slice(*box[0]),)
        if site.layer.kind != "opaque":  # which is cut by samples alone
            ranges += (slice(None), *(slice(*pair) for pair in box[2:]))
        groups.setdefault(place, {})[box[:1] + box[2:]] = ranges
    return [list(boxes.values()) for boxes in groups.values()]


def reference_steps(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    norms: Sequence[Site],
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
) -> Steps:
    """Losses and gradients of steps, and the parameters after them.

    Parameters
    ----------
    model, batches
        The module, and what each step reads and compares with.
    norms
        As of `one_process`.
    optimizer
        Made from the parameters.
    """
    rule = optimizer(model.parameters())
    losses, gradients = [], []
    for x, target in batches:
        rule.zero_grad()
        with one_process(norms), alone():
            loss = F.cross_entropy(output_of(model, x), target)
        backward_in_double(loss)
        losses.append(loss.detach())
        gradients.append(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for name, p in model.named_parameters()
            }
        )
        rule.step()
    return losses, gradients, {n: p.detach() for n, p in model.named_parameters()}


def output_of(model: nn.Module, *given: Tensor, **named: Tensor) -> Tensor:
    """What a module's loss reads: the first of its outputs, or what it calls its logits."""
    output: Any = model(*given, **named)
    output = getattr(output, "logits", output)
    output = next(iter(output.values())) if isinstance(output, dict) else output
    found: Tensor = output[0] if isinstance(output, tuple | list) else output
    return found
