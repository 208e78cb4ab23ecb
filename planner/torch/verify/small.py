"""Small transformers in plain PyTorch: the layers of a description, with other extents.

Parts are named after the layers of the description; where PyTorch runs several operators for one
layer (queries, keys and values), their names begin with the layer's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from costmodels.errors import InputError
from costmodels.graph import LayerSpec, Network
from planner.models.configs import config_rows, family_of_config, read_config
from planner.models.stacks import STACKS
from planner.models.transformer import Transformer

# Features of a head.
_HEAD = 8
# Extents of what replaces a built-in transformer. [items]
_INNER, _VOCABULARY = 56, 80
# Stacks of blocks that are written out: those on tokens alone, one after the other.
_WRITTEN = frozenset({"gpt", "decoder", "masked"})


def small_description(model: str, blocks: int, heads: int) -> tuple[Transformer, str] | None:
    """A built-in transformer with few blocks of few features, and its stack; None for others.

    Parameters
    ----------
    model
        Its name.
    blocks, heads
        How many it is to have. [items]
    """
    row = next((row for row in config_rows() if model in row.names), None)
    if row is None:
        return None
    where = f"the config of {model}"
    family = family_of_config(row.config, where)
    if family.stack not in _WRITTEN:
        return None
    found = read_config(row.config, where, row.fixed)
    grouped = 0 < found.kv_heads < found.heads
    one = msgspec.structs.replace(
        found,
        hidden=heads * _HEAD,
        blocks=blocks,
        heads=heads,
        kv_heads=heads // 2 if grouped else heads,
        head_width=_HEAD,
        ffn=_INNER,
        vocabulary=_VOCABULARY,
        max_positions=min(found.max_positions, 64),
        dropout=0.0,
        attention_dropout=False,
        window=0,
    )
    return one.completed(), family.stack


def is_described(model: str) -> bool:
    """Whether there is a description of a built-in transformer of that name."""
    return any(model in row.names for row in config_rows())


def small_network(one: Transformer, stack: str, name: str, tokens: int) -> Network:
    """The network of a description.

    Parameters
    ----------
    one, stack, name
        The description, its stack and what it is called.
    tokens
        Of a sample. [items]
    """
    return STACKS[stack](one, tokens).network(name, source="a built-in network, in small")


class SmallTransformer(nn.Module):
    """A transformer as its layers say; it returns what its loss reads.

    Parameters
    ----------
    network
        Its layers.
    one
        Its description.
    """

    def __init__(self, network: Network, one: Transformer) -> None:
        super().__init__()
        self.order: list[tuple[str, tuple[str, ...]]] = []
        self.shared: dict[str, str] = {}
        for row in network.layers:
            if row.kind == "loss":
                self.last = row.inputs[0]
                continue
            maker = _MAKERS.get(row.kind)
            if maker is None or one.experts or one.kv_rank or one.qk_norm:
                raise InputError(
                    f"{network.name} cannot be run in small: layers of kind {row.kind} "
                    f"('{row.name}') are not written out in PyTorch; verify a module of it "
                    "(--module package.module:name)"
                )
            part = maker(row, one)
            _place_part(self, row.name, part)
            if row.options.get("share"):
                self.shared[row.name] = str(row.options["share"])
            self.order.append((row.name, row.inputs))
        for name, source in self.shared.items():
            self.get_submodule(name).weight = self.get_submodule(source).weight

    def forward(self, x: Tensor) -> Tensor:
        """What the loss reads."""
        done: dict[str, Any] = {"input": x}
        for name, inputs in self.order:
            part = self.get_submodule(name)
            done[name] = part(*(done[one] for one in inputs))
        found: Tensor = done[self.last]
        return found


def _place_part(root: nn.Module, name: str, part: nn.Module) -> None:
    """Put a part where its name says; what lies there already becomes parts of it."""
    *path, last = name.split(".")
    for one in path:
        if one not in root._modules:
            root.add_module(one, nn.Module())
        found = root._modules[one]
        assert found is not None, "it was made above"
        root = found
    before = root._modules.get(last)
    if before is not None:
        for child, module in before.named_children():
            part.add_module(child, module)
    root.add_module(last, part)


class _Several(nn.Module):
    """Products that one layer stands for."""

    def __init__(self, features: int, parts: Mapping[str, int], bias: bool) -> None:
        super().__init__()
        self.parts = tuple(parts)
        for name, size in parts.items():
            self.add_module(name, nn.Linear(features, size, bias=bias))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """All of them."""
        return tuple(self.get_submodule(name)(x) for name in self.parts)


class _Positions(nn.Module):
    """A table of positions."""

    def __init__(self, rows: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, features))

    def forward(self, x: Tensor) -> Tensor:
        """The positions of all tokens."""
        return self.weight[: x.shape[1]]


class _Rotary(nn.Module):
    """Rotary positions of queries and keys."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Turn queries and keys."""
        query, key, value = tensors
        tokens = query.shape[1]
        powers = torch.arange(0, self.width, 2, device=query.device) / self.width
        angles = torch.arange(tokens, device=query.device).unsqueeze(1) * 10_000.0**-powers
        angles = torch.cat([angles, angles], -1).to(query.dtype)
        return self._turned(query, angles), self._turned(key, angles), value

    def _turned(self, x: Tensor, angles: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.width)).transpose(1, 2)
        half = self.width // 2
        other = torch.cat([-heads[..., half:], heads[..., :half]], -1)
        turned = heads * angles.cos() + other * angles.sin()
        return turned.transpose(1, 2).flatten(2)


class _Attention(nn.Module):
    """Attention of heads."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.width, self.causal = width, causal

    def forward(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """Attend."""
        query, key, value = (one.unflatten(-1, (-1, self.width)).transpose(1, 2) for one in tensors)
        found = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=query.shape[1] != key.shape[1]
        )
        return found.transpose(1, 2).flatten(2)


class _Gate(nn.Module):
    """One product through an activation, times the other."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tensors: tuple[Tensor, Tensor]) -> Tensor:
        """Gate."""
        return self.function(tensors[0]) * tensors[1]


class _Call(nn.Module):
    """A function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        """Call it."""
        return self.function(*tensors)


def _small_linear(row: LayerSpec, one: Transformer) -> nn.Module:
    options: Mapping[str, Any] = row.options
    bias = bool(options.get("bias", True))
    filters = int(options["filters"])
    inner = row.inputs[0].endswith(("act", "gelu", "relu", "activation"))
    features = one.ffn if inner else one.hidden
    heads = {"query": one.heads, "key": one.kv_heads, "value": one.kv_heads}
    if filters == sum(heads.values()) * one.head_width:
        return _Several(features, {n: k * one.head_width for n, k in heads.items()}, bias)
    if one.gated and filters == 2 * one.ffn:
        return _Several(features, {"gate": one.ffn, "up": one.ffn}, bias)
    return nn.Linear(features, filters, bias=bias)


def _small_embedding(row: LayerSpec, one: Transformer) -> nn.Module:
    rows = int(row.options["rows"])
    if "position" in row.name:
        return _Positions(rows, one.hidden)
    return nn.Embedding(rows, one.hidden)


def _function(name: str) -> Callable[[Tensor], Tensor]:
    if name in ("gelu_tanh", "gelu"):
        return lambda x: functional.gelu(x, approximate="tanh" if "tanh" in name else "none")
    found: Callable[[Tensor], Tensor] = getattr(functional, name)
    return found


_MAKERS: Mapping[str, Callable[[LayerSpec, Transformer], nn.Module]] = {
    "embedding": _small_embedding,
    "linear": _small_linear,
    "rms_norm": lambda row, one: nn.RMSNorm(one.hidden),
    "layer_norm": lambda row, one: nn.LayerNorm(one.hidden),
    "rotary": lambda row, one: _Rotary(one.head_width),
    "attention": lambda row, one: _Attention(one.head_width, bool(row.options.get("causal", True))),
    "glu": lambda row, one: _Gate(_function(str(row.options.get("function", "silu")))),
    "activation": lambda row, one: _Call(_function(str(row.options.get("function", "gelu")))),
    "dropout": lambda row, one: nn.Dropout(0.0),
    "add": lambda row, one: _Call(torch.add),
}
