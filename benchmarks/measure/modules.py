"""The networks that are run on a GPU, written out in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensor = Any
_VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class Bottleneck(nn.Module):
    """A block of ResNet-50.

    Parameters
    ----------
    channels, width, stride
        Of the input, of the convolution in the middle, and of that.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, wide, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Identity()
        if stride > 1 or channels != wide:
            shortcut = nn.Conv2d(channels, wide, 1, stride, bias=False)
            self.short = nn.Sequential(shortcut, nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.short(x))


def resnet50() -> nn.Module:
    """ResNet-50 (He et al. 2016), with the stride in its 3 x 3 convolutions."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for number in range(count):
            layers.append(Bottleneck(channels, width, 2 if stage and not number else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16() -> nn.Module:
    """VGG-16 (Simonyan and Zisserman 2015)."""
    layers: list[nn.Module] = []
    channels = 3
    for width in _VGG:
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
        channels = width
    head = [nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(inplace=True)]
    return nn.Sequential(
        *layers, *head, nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000)
    )


class GptBlock(nn.Module):
    """A block of GPT-2.

    Parameters
    ----------
    width, heads
        Features, and heads of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(split).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """GPT-2.

    Parameters
    ----------
    width, heads, layers, length, words
        As its config has them.
    """

    def __init__(self, width: int, heads: int, layers: int, length: int, words: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next tokens."""
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt_xl() -> nn.Module:
    """GPT-2 XL, 1.6 billion parameters, with a head of its own."""
    return Gpt(1600, 25, 48, 1024, 50257)


class LlamaBlock(nn.Module):
    """A block of Llama without rotary positions.

    Parameters
    ----------
    width, heads, shared, inner
        Features, heads, heads of keys and values, and features of the gated MLP.
    """

    def __init__(self, width: int, heads: int, shared: int, inner: int) -> None:
        super().__init__()
        self.heads, self.shared, self.head = heads, shared, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, shared * self.head, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        batch, length, width = x.shape
        normed = self.norm1(x)
        q = self.q(normed).view(batch, length, self.heads, self.head).transpose(1, 2)
        k, v = (
            layer(normed).view(batch, length, self.shared, self.head).transpose(1, 2)
            for layer in (self.k, self.v)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).reshape(batch, length, width))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class LlamaBlocks(nn.Module):
    """Some blocks of Llama 3 8B between an embedding and a head of few words."""

    def __init__(self, layers: int = 8, words: int = 32000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, 4096)
        self.blocks = nn.ModuleList(LlamaBlock(4096, 32, 8, 14336) for _ in range(layers))
        self.norm = nn.RMSNorm(4096)
        self.head = nn.Linear(4096, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next tokens."""
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def llama_blocks() -> nn.Module:
    """Eight blocks of Llama 3 8B."""
    return LlamaBlocks()
