"""Modules that stop gradients, tie weights, compute parts again, or make images, in small.

Ranks are processes of their own, which import this file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Stopped(nn.Module):
    """Features of which one part is made without gradients, and another is read without them."""

    def __init__(self):
        super().__init__()
        self.fixed, self.first = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.second, self.third = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        with torch.no_grad():
            x = self.fixed(x).relu()
        x = self.first(x)
        return self.head((self.second(x.detach()) * self.third(x)).mean((2, 3)))


class Generator(nn.Module):
    """Features become an image, which is normed and enlarged."""

    def __init__(self):
        super().__init__()
        self.first, self.bn = nn.Linear(16, 256), nn.BatchNorm2d(16)
        self.up, self.slopes = nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.PReLU(8)
        self.last = nn.Conv2d(8, 4, 3, 1, 1)

    def forward(self, x):
        x = F.relu(self.bn(self.first(x).view(-1, 16, 4, 4)))
        return torch.tanh(self.last(self.slopes(self.up(x))))


class Slopes(nn.Module):
    """Negative values times a number that is trained, which all channels share."""

    def __init__(self):
        super().__init__()
        self.first, self.slope = nn.Conv2d(3, 16, 3, 1, 1), nn.PReLU()
        self.second, self.slopes = nn.Conv2d(16, 16, 3, 1, 1), nn.PReLU(16)
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        x = self.slope(self.first(x))
        return self.head(self.slopes(self.second(x)).mean((2, 3)))


class Gate(nn.Module):
    """Features weighed by a softmax of them, without a norm; a second output that nothing reads."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.other = nn.Linear(32, 4)

    def forward(self, x):
        x = self.first(x).relu()
        x = x * self.second(x).softmax(-1)
        return self.last(x), self.other(x)


class Cast(nn.Module):
    """A product of which PyTorch chooses the type."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x)
        return self.last(x.to(self.last.weight.dtype))


class Tied(nn.Module):
    """A head with the weights of the table."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.inner = (
            nn.Embedding(64, 32),
            nn.LayerNorm(32),
            nn.Linear(32, 32),
        )
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        x = self.table(x)
        return self.head(x + self.inner(self.norm(x)).relu())


class Again(nn.Module):
    """Attention that is computed again, with biases of distances, a mask, and casts."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(64, 32), nn.LayerNorm(32)
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 64)
        self.distances = nn.Embedding(8, 4)
        self.register_buffer("mask", torch.tril(torch.ones(16, 16, dtype=torch.bool)))

    def attend(self, x):
        count = x.shape[1]
        qkv = self.qkv(self.norm(x)).view(x.shape[0], count, 3, 4, 8)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        at = torch.arange(count, device=x.device)
        biases = self.distances((at[None] - at[:, None]).abs().clamp(max=7)).permute(2, 0, 1)
        scores = q @ k.transpose(-1, -2) / 8**0.5 + biases[None]
        scores = scores.masked_fill(~self.mask[:count, :count], float("-inf"))
        mixed = F.softmax(scores.float(), -1).type_as(q) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape[0], count, -1))

    def forward(self, x):
        x = self.table(x)
        return self.head(x + checkpoint(self.attend, x, use_reentrant=False))


class Paired(nn.Module):
    """Two linear layers of one weight, each with its own bias, or the second with none."""

    def __init__(self, bias=True):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16, bias=bias)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu())


class HalfPaired(Paired):
    """Of which the second has none."""

    def __init__(self):
        super().__init__(bias=False)


class Twice(nn.Module):
    """One linear layer in two places."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return self.inner(self.inner(x).relu())


class Encoded(nn.Module):
    """A layer of PyTorch's own, which drops weights of attention, or all but these."""

    def __init__(self, attention=0.1):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layer.self_attn.dropout = attention

    def forward(self, x):
        return self.layer(x)


class KeptAttention(Encoded):
    """Of which attention drops nothing."""

    def __init__(self):
        super().__init__(0.0)
