"""Modules of images and of several inputs, in small.

Ranks are processes of their own, which import this file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ClassToken(nn.Module):
    """Patches and a token that is trained; the class is told from that token."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.first = nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(1, 17, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.block(x))[:, 0])


class Mixer(nn.Module):
    """Products over positions and over features in turn."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.norm, self.norm_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.over, self.back = nn.Linear(16, 32), nn.Linear(32, 16)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        turned = self.norm(x).transpose(1, 2)
        x = x + self.back(nn.functional.gelu(self.over(turned))).transpose(1, 2)
        x = x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))
        return self.head(x.mean(1))


class Normed(nn.Module):
    """Batch norm and groups of channels before features are normed."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 16, 3, 1, 1, groups=4)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        x = self.grouped(nn.functional.relu(self.bn(self.conv(x))))
        return self.head(self.norm(x.mean((2, 3))))


class Normalised(nn.Sequential):
    """Convolutions whose norms are of a batch and of groups."""

    def __init__(self):
        super().__init__(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8)),
        )


class Features(nn.Module):
    """All that is summed over features, or over samples, of which ranks may have a block."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (
            nn.Linear(16, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 32),
        )
        self.norm, self.root, self.written = nn.LayerNorm(32), nn.RMSNorm(32), Root(32)
        self.bn, self.sync, self.last = nn.BatchNorm1d(32), nn.SyncBatchNorm(32), nn.Linear(32, 8)

    def forward(self, x):
        x = self.root(self.second(self.bn(self.norm(self.first(x))))).relu()
        y = self.third(x)
        return self.last(self.sync(self.written(y) * y.softmax(-1) + y.log_softmax(-1)))


class Root(nn.Module):
    """A norm by the root mean square, as it is written out."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Towers(nn.Module):
    """Two inputs of unlike features."""

    def __init__(self):
        super().__init__()
        self.user = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
        self.item = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))
        self.head = nn.Linear(64, 8)

    def forward(self, users, items):
        return self.head(torch.cat([self.user(users), self.item(items)], 1))


class Pair(nn.Module):
    """Two images."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(3, 16, 3, 1, 1)
        self.head = nn.Linear(16, 8)

    def forward(self, left, right):
        return self.head((self.left(left).relu() + self.right(right).relu()).mean((2, 3)))


class Einsums(nn.Module):
    """Attention and products as equations; the last one is what it returns."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.heads = nn.Parameter(torch.randn(4, 8, 32) * 0.1)
        self.classes = nn.Parameter(torch.randn(8, 32) * 0.1)

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (4, 8)) for one in (self.query, self.key, self.value))
        scores = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5).softmax(-1)
        mixed = torch.einsum("bhqk, bkhd -> bqhd", scores, v)
        x = x + torch.einsum("bqhd,hde->bqe", mixed, self.heads)
        return torch.einsum("oc,bqc->bqo", self.classes, x)


class Written(nn.Module):
    """Products whose weights have their inputs first."""

    def __init__(self):
        super().__init__()
        self.first, self.bias = nn.Parameter(torch.randn(32, 64)), nn.Parameter(torch.randn(64))
        self.second = nn.Parameter(torch.randn(64, 8))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.first).relu() @ self.second


class Dropped(nn.Module):
    """Dropout in place, and a weight that nothing reads."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)
        self.drop, self.unread = nn.Dropout(0.2, inplace=True), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x))))


class Padded(nn.Module):
    """Zeros that are put around what convolutions read: none, on all sides, and at one end."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=(1, 0))
        self.second = nn.Conv2d(8, 8, 5, stride=2, groups=8)
        self.third, self.last = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(F.pad(F.pad(x, (0, 0, 0, 0)), (1, 1))).relu()
        x = self.second(F.pad(x, (2, 2, 2, 2))).relu()
        x = self.third(F.pad(x, (0, 1, 0, 1)))
        return self.last(x.mean((2, 3)))


def t5():
    import transformers

    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 4, "d_ff": 64, "d_kv": 8}
    config = transformers.T5Config(**sizes, vocab_size=96, dropout_rate=0.0)
    return transformers.T5ForConditionalGeneration(config)


class Joined(nn.Module):
    """The features of several convolutions, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(3, 8, 3, padding=1) for _ in range(4))

    def forward(self, x):
        return torch.cat([part(x).sigmoid() for part in self.parts], 1)


class Twins(nn.Module):
    """Both halves of the channels go through the same convolution and the same norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.norm = nn.SyncBatchNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        left, right = (self.norm(self.conv(half)).sigmoid() for half in (x[:, :2], x[:, 2:]))
        return self.head((left - right).square().mean((2, 3)))
