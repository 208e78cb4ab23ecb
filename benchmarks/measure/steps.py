"""The plans of `questions` as PyTorch runs them on two ranks, step by step.

A step is a forward pass, a backward pass, the all-reduce of the gradients that both ranks hold, and
SGD with momentum. Convolutions that are split over space run as planned modules run them; other
messages between layers go through functions that know their own backward pass. The bytes that a
rank receives are counted, so that they can be held against what was predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.measure.questions import RANKS, PlansQuestion, setting_of, splits, this_machine
from planner.plan.sharding import known_sharding
from planner.planning.optimize import plan_of_strategy
from planner.torch.apply.convolution.convolved import convolved_blocks
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.exchange import Exchange
from planner.torch.apply.layout import block

Tensor = Any
# How a tensor of channels (dim 1) or space (dims 2 and 3) is split.
_SPACE = {"height": 2, "width": 3}
# Memory of a machine on which only the placement of a plan is asked for. [B]
_ROOM: Final = 2.0**40


@dataclass
class FromOther:
    """Bytes that this rank received. [B]"""

    count: float = 0.0


RECEIVED = FromOther()


def _gathered(parts: Tensor) -> Tensor:
    """Blocks of channels of both ranks, side by side."""
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    whole = parts.new_empty((RANKS * parts.shape[0], *parts.shape[1:]))
    gather(whole, parts.contiguous())
    RECEIVED.count += parts.numel() * parts.element_size() * (RANKS - 1)
    return torch.cat(whole.chunk(RANKS), dim=1)


def _scattered(whole: Tensor) -> Tensor:
    """This rank's channels of the sum over both ranks."""
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    packed = torch.cat(whole.chunk(RANKS, dim=1))
    part = packed.new_empty((whole.shape[0], *packed.shape[1:]))
    scatter(part, packed)
    RECEIVED.count += part.numel() * part.element_size() * (RANKS - 1)
    return part


def _sum_of_ranks(tensor: Tensor) -> Tensor:
    tensor = tensor.contiguous()
    dist.all_reduce(tensor)
    RECEIVED.count += tensor.numel() * tensor.element_size() * 2 * (1 - 1 / RANKS)
    return tensor


class Gather(torch.autograd.Function):
    """All channels of a tensor that is split by them; its gradient is summed and split again."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _gathered(part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _scattered(gradient)


class Scatter(torch.autograd.Function):
    """This rank's channels of a sum; the gradient of all channels is gathered."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        return _scattered(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _gathered(gradient)


class Copy(torch.autograd.Function):
    """A tensor that both ranks read whole; its gradients are summed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _sum_of_ranks(gradient)


class Sum(torch.autograd.Function):
    """The sum over both ranks; its gradient is that of each of them."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _sum_of_ranks(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _sites(question: PlansQuestion, plan: str) -> dict[str, Site]:
    """The convolutions of a plan that splits space, as planned modules run them."""
    setting = setting_of(question, this_machine(_ROOM))
    found = plan_of_strategy(setting, splits(question, plan, setting), plan)
    sharding, exchange = known_sharding(found.sharding), Exchange()

    def nothing(node: object) -> NoReturn:
        raise AssertionError(f"a convolution alone reads no weight of a module: {node}")

    return {
        layer.name: Site(
            layer=layer,
            sources=(),
            sharding=sharding.layer(layer.name),
            mesh=sharding.meshes[sharding.layer(layer.name).mesh],
            nodes=(),
            data=set(),
            known={},
            moves={},
            exchange=exchange,
            held=nothing,
            training=lambda: True,
            drops=lambda: True,
        )
        for layer in setting.graph.compute_layers
        if layer.operation == "conv"
    }


class PlanStep:
    """One plan of one question on this rank.

    Parameters
    ----------
    question, plan
        What is run.
    sums
        Whether both ranks hold the same weights, or some of them, whose gradients are summed.
    """

    def __init__(self, question: PlansQuestion, plan: str, seed: int = 0) -> None:
        self.question, self.plan = question, plan
        generator = torch.Generator().manual_seed(seed)

        def random(*dims: int) -> Tensor:
            # drawn whole, so that both ranks and all plans have the same numbers
            return torch.randn(*dims, generator=generator)

        self.sites = _sites(question, plan) if plan in _SPACE else {}
        make = self._convolutions if question.kind == "conv" else self._block
        self.weights: list[Tensor] = []
        self.shared: list[Tensor] = []
        self.inputs, self.forward = make(random)
        self.momenta = [torch.zeros_like(weight) for weight in self.weights]

    def run(self) -> Tensor:
        """One step; what the forward pass made."""
        outputs = self.forward(self.inputs)
        outputs.backward(torch.ones_like(outputs))
        self._count_halos()
        if self.shared:
            flat = torch.cat([weight.grad.reshape(-1) for weight in self.shared])
            summed = _sum_of_ranks(flat).split([weight.numel() for weight in self.shared])
            for weight, gradient in zip(self.shared, summed, strict=True):
                weight.grad = gradient.view_as(weight)
        gradients = [weight.grad for weight in self.weights]
        with torch.no_grad():
            torch._foreach_mul_(self.momenta, 0.9)
            torch._foreach_add_(self.momenta, gradients)
            torch._foreach_add_(self.weights, self.momenta, alpha=-1e-6)
        for weight in self.weights:
            weight.grad = None
        return outputs.detach()

    def _count_halos(self) -> None:
        """Count what planned convolutions received."""
        for exchange in {id(one.exchange): one.exchange for one in self.sites.values()}.values():
            numbers = sum(one.numbers for one in exchange.record)
            RECEIVED.count += numbers * self.inputs.element_size()
            exchange.record.clear()

    def _weight(self, whole: Tensor, dim: int | None = None) -> Tensor:
        """A weight, or this rank's part of it along a dim."""
        part = whole if dim is None else whole.chunk(RANKS, dim)[dist.get_rank()]
        weight = part.contiguous().clone().requires_grad_()
        self.weights.append(weight)
        return weight

    def _convolutions(self, random: Callable[..., Tensor]) -> tuple[Tensor, Callable[..., Tensor]]:
        (channels, side), plan, rank = self.question.sizes, self.plan, dist.get_rank()
        whole = random(self.question.batch, channels, side, side)
        kinds = {"filter": ("filter", "filter"), "channel": ("channel", "channel")}
        kinds["filter, channel"] = ("filter", "channel")
        first, second = kinds.get(plan, (plan, plan))
        weights = []
        for kind in (first, second):
            dim = {"filter": 0, "channel": 1}.get(kind)
            weight = random(channels, channels, 3, 3) / (9 * channels) ** 0.5
            weights.append(self._weight(weight, dim))
        if plan in ("sample", *_SPACE):
            self.shared = weights
        split = {"sample": 0, "channel": 1, **_SPACE}.get(first)
        inputs = whole
        if split is not None:
            start, stop = block(whole.shape[split], rank, RANKS)
            inputs = whole.narrow(split, start, stop - start).contiguous()
        reads = {"filter": Gather.apply}
        makes = {"channel": Scatter.apply}

        def convolve(tensor: Tensor, weight: Tensor, kind: str, name: str) -> Tensor:
            if kind in _SPACE:
                return convolved_blocks(tensor, weight, self.sites[name], 1)
            return makes.get(kind, _unchanged)(F.conv2d(tensor, weight, padding=1))

        def forward(tensor: Tensor) -> Tensor:
            middle = torch.relu(convolve(tensor, weights[0], first, "a"))
            middle = reads.get(second, _unchanged)(middle)
            return torch.relu(convolve(middle, weights[1], second, "b"))

        return inputs, forward

    def _block(self, random: Callable[..., Tensor]) -> tuple[Tensor, Callable[..., Tensor]]:
        width, positions, heads = self.question.sizes
        whole = random(self.question.batch, positions, width)
        tensor_parallel = self.plan == "tensor"
        inputs = whole if tensor_parallel else whole.chunk(RANKS)[dist.get_rank()].contiguous()
        inputs.requires_grad_()
        scale = width**-0.5
        by_filter, by_channel = (0, 1) if tensor_parallel else (None, None)
        # queries, keys and values of a head lie on its rank
        qkv = random(heads, 3 * width // heads, width) * scale
        held = qkv.chunk(RANKS)[dist.get_rank()] if tensor_parallel else qkv
        local = held.shape[0]
        project = self._weight(held.reshape(-1, width))
        out = self._weight(random(width, width) * scale, by_channel)
        up = self._weight(random(4 * width, width) * scale, by_filter)
        down = self._weight(random(width, 4 * width) * scale * 0.5, by_channel)
        norms = [self._weight(torch.ones(width)) for _ in range(2)]
        biases = [self._weight(torch.zeros(width)) for _ in range(2)]
        enter, leave = (Copy.apply, Sum.apply) if tensor_parallel else (_unchanged, _unchanged)
        if not tensor_parallel:
            self.shared = list(self.weights)

        def forward(tensor: Tensor) -> Tensor:
            normed = enter(F.layer_norm(tensor, (width,), norms[0], biases[0]))
            parts = F.linear(normed, project).unflatten(-1, (local, 3, width // heads))
            query, key, value = parts.permute(3, 0, 2, 1, 4)
            seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            seen = seen.transpose(1, 2).flatten(2)
            tensor = tensor + leave(F.linear(seen, out))
            normed = enter(F.layer_norm(tensor, (width,), norms[1], biases[1]))
            return tensor + leave(F.linear(torch.relu(F.linear(normed, up)), down))

        return inputs, forward


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor
