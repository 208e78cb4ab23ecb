"""A module that computes its norm in single precision, whatever it is given."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Norm(nn.Module):
    """The norm of Gemma: its weight is multiplied in single precision, too."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        single = x.float()
        normed = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (normed * (1.0 + self.weight.float())).type_as(x)


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(64, 32), Norm(32), nn.Linear(32, 64))


def images() -> nn.Module:
    class Softened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).to(torch.float32).sigmoid().to(x.dtype)

    return Softened()
