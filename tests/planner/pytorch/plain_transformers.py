"""Transformers as people write them in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class GPTBlock(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        samples, tokens, width = x.shape
        parts = self.qkv(self.ln_1(x)).split(width, -1)
        q, k, v = (p.view(samples, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(100, 64), nn.Embedding(32, 64)
        self.blocks = nn.ModuleList([GPTBlock() for _ in range(2)])
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaBlock(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm_1, self.norm_2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def rotated(self, x, cos, sin):
        half = self.size // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def repeated(self, x):
        samples, _, tokens, size = x.shape
        times = self.heads // self.kv_heads
        x = x[:, :, None].expand(samples, self.kv_heads, times, tokens, size)
        return x.reshape(samples, self.heads, tokens, size)

    def forward(self, x, cos, sin):
        samples, tokens, width = x.shape
        y = self.norm_1(x)
        q, k, v = (
            part(y).view(samples, tokens, -1, self.size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        k = self.repeated(self.rotated(k, cos, sin))
        y = F.scaled_dot_product_attention(
            self.rotated(q, cos, sin), k, self.repeated(v), is_causal=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(samples, tokens, width))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList([LlamaBlock() for _ in range(2)])
        self.norm = RMSNorm(64)
        self.head = nn.Linear(64, 100, bias=False)
        self.register_buffer("frequencies", 1.0 / 10_000 ** (torch.arange(0, 16, 2) / 16))

    def forward(self, x):
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.frequencies
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos(), angles.sin()
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))
