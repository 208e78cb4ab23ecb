"""Modules some of whose weights are frozen, as a user does who tunes a trained network."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen layer, and two thin ones beside it that are trained (Hu et al. 2021, LoRA)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.base = nn.Linear(features, features).requires_grad_(False)
        self.down = nn.Linear(features, 4, bias=False)
        self.up = nn.Linear(4, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, features: int, adapted: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.query, self.key, self.value, self.out = (
            Adapted(features) if adapted else nn.Linear(features, features) for _ in range(4)
        )
        self.wide, self.narrow = nn.Linear(features, 64), nn.Linear(64, features)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (
            one(normed).unflatten(2, (4, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(x)))


class Words(nn.Module):
    """A transformer, of which weights are frozen whose names hold one of some words."""

    def __init__(self, frozen: tuple[str, ...] = (), adapted: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(32, adapted) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 64, bias=False)
        for name, weight in self.named_parameters():
            if any(word in name for word in frozen):
                weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def first_half() -> nn.Module:
    return Words(("table", "blocks.0"))


def parts() -> nn.Module:
    return Words(("blocks.0.wide.bias", "blocks.1.narrow.weight", "blocks.1.norm.weight"))


def adapted() -> nn.Module:
    return Words(("table", "norm", "wide", "narrow", "head"), adapted=True)


def all_of_it() -> nn.Module:
    return Words(("",))


class Images(nn.Module):
    """Convolutions: the first and its norm are frozen, and of others the weight or the bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.body, self.wide = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.head = nn.Linear(16, 8)
        for one in (*self.stem.parameters(), *self.norm.parameters()):
            one.requires_grad_(False)
        self.body.weight.requires_grad_(False)
        self.wide.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        return self.head(F.relu(self.wide(F.relu(self.body(x)))).mean((2, 3)))


def images() -> nn.Module:
    return Images()
