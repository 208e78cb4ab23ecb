"""Attention whose mask is an input, as of samples that are padded to one length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Masked(nn.Module):
    """One block of attention that reads a mask of ones and zeros beside the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.head = nn.Linear(32, 64)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.table(ids)
        q, k, v = (
            one(x).unflatten(2, (4, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        # as libraries write it: by the numbers of samples and positions
        samples = torch.arange(ids.shape[0])[:, None, None, None]
        positions = torch.arange(ids.shape[1])[None, None, None, :]
        seen = mask.to(torch.bool)[samples, positions].expand(-1, 1, ids.shape[1], -1)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.head(x + self.out(heads.transpose(1, 2).flatten(2)))


class Turned(nn.Module):
    """Square products whose weights are turned by one operator or another before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(32, 32) / 8) for _ in range(5))
        self.head = nn.Linear(32, 64)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        a, b, c, d, e = self.weights
        x = torch.relu(x @ a.T) @ b.mT
        x = F.linear(torch.relu(x @ torch.swapaxes(c, 0, 1)), d.movedim(0, 1))
        return self.head(torch.relu(F.linear(x, e.T)))


class Overwritten(nn.Module):
    """A sum that is written over one of its parts, which ranks have moved."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(64, 32), nn.LayerNorm(32)
        self.one, self.other, self.out = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 64)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        normed = self.norm(x)
        y = self.other(torch.relu_(self.one(normed)))
        y += self.out(normed)
        return self.head(x + y)


class ReadAgain(Overwritten):
    """What is read behind a sum that was written over a part of it."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x[:, 1:].add_(1.0)
        return self.head(self.norm(x))
