"""What a backward pass reads is made again once, and is gone in between."""

from __future__ import annotations

import torch_extra

torch_extra.require("torch")

import torch
from torch import nn

from planner.torch.apply.redistribution import Move
from planner.torch.apply.saving import GatheredAgain, run_again_later
from planner.torch.apply.views import uncut


class Doubling:
    """Stands for two ranks that have the same block."""

    def __init__(self):
        self.count = 0

    def redistribute(self, x, move, backward=False):
        self.count += 1
        return torch.cat([x, x])


def gathered(ranks, again, block):
    whole = ranks.redistribute(block, None)
    again.add(block, Move(uncut(block.shape), uncut(whole.shape), frozenset()), whole)
    return whole


def test_gathered_tensors_are_gathered_again_and_not_kept():
    ranks = Doubling()
    again = GatheredAgain(ranks)
    block = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    with again.hooks():
        whole = gathered(ranks, again, block)
        loss = (x @ whole.t()).square().sum() + (x @ whole.flip(0).t()).sum()
        memory = again.known[whole.untyped_storage().data_ptr()].memory
        del whole
    assert memory.expired()
    loss.backward()
    assert ranks.count == 2
    want, y = block.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
    whole = torch.cat([want, want])
    ((y @ whole.t()).square().sum() + (y @ whole.flip(0).t()).sum()).backward()
    assert torch.equal(x.grad, y.grad)
    assert torch.equal(block.grad, want.grad)


def test_memory_that_is_used_anew_is_no_gathered_tensor():
    ranks = Doubling()
    again = GatheredAgain(ranks)
    with again.hooks():
        for _ in range(20):
            whole = gathered(ranks, again, torch.zeros(64, 64))
            del whole
            other = torch.full((128, 64), 2.0, requires_grad=True)
            other.square().sum().backward()
            assert (other.grad == 4.0).all()


def test_backward_passes_in_parts_compute_again_once():
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    runs = []

    def body(x):
        runs.append(x)
        return (layers(x),)

    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    (found,) = run_again_later(body, x)
    parts = [torch.autograd.grad(found.sum(), [x], retain_graph=True)]
    parts += [torch.autograd.grad(found.sum(), [p], retain_graph=True) for p in layers.parameters()]
    assert len(runs) == 2
    torch.manual_seed(1)
    said = torch.autograd.grad(layers(x).sum(), [x, *layers.parameters()])
    assert all(torch.equal(a[0], b) for a, b in zip(parts, said, strict=True))
