"""Blocks of transformers: attention and MLP, each around a residual connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from planner.models.builder import Builder
from planner.models.transformer import Transformer

# What each part of a block is called: as in GPT-2's own code, and as in most others.
GPT_NAMES: Mapping[str, str] = {
    "blocks": "h",
    "norm_1": "ln_1",
    "norm_2": "ln_2",
    "norm": "ln_f",
    "head": "head",
    "attention": "attn",
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "attention_dropout": "attn.dropout",
    "mlp": "mlp",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "mlp_dropout": "mlp.dropout",
    "function": "mlp.gelu",
    "add_1": "add_1",
    "add_2": "add_2",
}
LAYER_NAMES: Mapping[str, str] = {
    "blocks": "layers",
    "norm_1": "attn_norm",
    "norm_2": "mlp_norm",
    "norm": "norm",
    "head": "head",
    "attention": "attn",
    "qkv": "attn.qkv",
    "out": "attn.out",
    "attention_dropout": "attn.dropout",
    "mlp": "mlp",
    "up": "mlp.up",
    "down": "mlp.down",
    "mlp_dropout": "mlp.dropout",
    "function": "mlp.act",
    "add_1": "attn.add",
    "add_2": "mlp.add",
    "cross": "cross",
    "norm_cross": "cross_norm",
    "add_cross": "cross.add",
}


def given(**options: object) -> dict[str, object]:
    """The options that say something: what is 0, empty or False is left to its default."""
    return {name: value for name, value in options.items() if value}


def _bias(wanted: bool) -> dict[str, object]:
    """The option of a linear layer, which has a bias by default."""
    return {} if wanted else {"bias": False}


class BlockBuilder(Struct, frozen=True, kw_only=True):
    """Adds blocks to a network.

    Parameters
    ----------
    net
        The network.
    of
        What its blocks are like.
    names
        What their layers are called.
    prefix
        What all names begin with, for one of several stacks.
    causal
        Whether tokens see no later ones.
    """

    net: Builder
    of: Transformer
    names: Mapping[str, str]
    prefix: str = ""
    causal: bool = True

    def block(self, number: int, *, memory: str = "") -> None:
        """Add a block.

        Parameters
        ----------
        number
            Its number, from 0.
        memory
            The layer whose output its cross attention reads; empty where it has none.
        """
        name = f"{self.prefix}{self.names['blocks']}.{number}"
        self._residual(name, "1", lambda: self._attention(name, number == 0))
        if memory:
            self._residual(name, "cross", lambda: self._cross_attention(name, memory))
        mlp = self._experts if self.of.has_experts(number) else self._mlp
        self._residual(name, "2", lambda: mlp(name))

    def _residual(self, name: str, part: str, body: Callable[[], None]) -> None:
        """A part of a block, the addition of what it read, and its norm before or after.

        Parameters
        ----------
        name
            Of the block.
        part
            What the names of its norm and addition end with.
        body
            Adds the part.
        """
        before, norm = self.net.last, f"{name}.{self.names[f'norm_{part}']}"
        if not self.of.post_norm:
            self.net.add(norm, self.of.norm)
        body()
        self.net.add(f"{name}.{self.names[f'add_{part}']}", "add", self.net.last, before)
        if self.of.post_norm:
            self.net.add(norm, self.of.norm)

    def _dropout(self, name: str) -> None:
        if self.of.dropout:
            self.net.add(name, "dropout", rate=self.of.dropout)

    def _product(self, name: str, *inputs: str, kv_heads: int, causal: bool, buckets: int) -> None:
        """The attention layer itself.

        Parameters
        ----------
        name, inputs
            Of the layer.
        kv_heads
            Heads of keys and values, if fewer than of queries. [items]
        causal
            Whether tokens see no later ones.
        buckets
            Distances for which heads have a bias. [items]
        """
        of = self.of
        kv_heads = 0 if kv_heads == of.heads else kv_heads
        options = given(
            kv_heads=kv_heads,
            causal=causal,
            window=of.window,
            dropout=of.attention_dropout and not of.fused,
            position_buckets=buckets,
        )
        fused = {} if of.fused else {"fused": False}
        self.net.add(name, "attention", *inputs, heads=of.heads, **options, **fused)

    def _attention(self, name: str, first: bool) -> None:
        of, net, names = self.of, self.net, self.names
        product = f"{name}.{names['attention']}"
        buckets = of.position_buckets if first else 0
        if of.kv_rank:
            inputs = self._latent(product)
            self._product(product, *inputs, kv_heads=0, causal=self.causal, buckets=buckets)
        else:
            heads, touched = of.heads + 2 * of.kv_heads, of.heads + of.kv_heads
            filters = heads * of.head_width
            net.add(f"{name}.{names['qkv']}", "linear", filters=filters, **_bias(of.qkv_bias))
            if of.qk_norm:
                net.add(f"{product}.qk_norm", "head_norm", heads=heads, touched=touched)
            if of.positions == "rotary":
                net.add(f"{product}.rotary", "rotary", heads=heads, touched=touched)
            self._product(product, kv_heads=of.kv_heads, causal=self.causal, buckets=buckets)
        net.add(f"{name}.{names['out']}", "linear", filters=of.hidden, **_bias(of.bias))
        self._dropout(f"{name}.{names['attention_dropout']}")

    def _latent(self, name: str) -> tuple[str, str, str]:
        """Latent attention (DeepSeek-AI 2024, V2): queries; keys and values; keys of all heads."""
        of, net, source = self.of, self.net, self.net.last
        if of.q_rank:
            net.add(f"{name}.q_down", "linear", source, filters=of.q_rank, **_bias(of.qkv_bias))
            net.add(f"{name}.q_norm", of.norm)
        queries = of.heads * (of.nope_width + of.rope_width)
        net.add(f"{name}.q_up", "linear", filters=queries, bias=False)
        queries_name = net.add(f"{name}.q_rotary", "rotary", heads=of.heads)
        shared = net.add(
            f"{name}.k_rope", "linear", source, filters=of.rope_width, **_bias(of.qkv_bias)
        )
        shared = net.add(f"{name}.k_rotary", "rotary", heads=1)
        net.add(f"{name}.kv_down", "linear", source, filters=of.kv_rank, **_bias(of.qkv_bias))
        net.add(f"{name}.kv_norm", of.norm)
        both = of.heads * (of.nope_width + of.value_width)
        return queries_name, net.add(f"{name}.kv_up", "linear", filters=both, bias=False), shared

    def _cross_attention(self, name: str, memory: str) -> None:
        of, net, cross = self.of, self.net, f"{name}.{self.names['cross']}"
        q = net.add(f"{cross}.q", "linear", filters=of.heads * of.head_width, **_bias(of.qkv_bias))
        kv = net.add(
            f"{cross}.kv",
            "linear",
            memory,
            filters=2 * of.kv_heads * of.head_width,
            **_bias(of.qkv_bias),
        )
        self._product(cross, q, kv, kv_heads=of.kv_heads, causal=False, buckets=0)
        net.add(f"{cross}.out", "linear", filters=of.hidden, **_bias(of.bias))
        self._dropout(f"{cross}.dropout")

    def _inner(self, prefix: str, source: str, ffn: int, up: str, function: str, down: str) -> str:
        """The layers of an MLP; returns the last one.

        Parameters
        ----------
        prefix, up, function, down
            What names begin with, and what those of its layers end with.
        source
            The layer that it reads.
        ffn
            Features inside. [items]
        """
        of, net = self.of, self.net
        wide = 2 * ffn if of.gated else ffn
        net.add(f"{prefix}{up}", "linear", source, filters=wide, **_bias(of.mlp_bias))
        kind = "glu" if of.gated else "activation"
        net.add(f"{prefix}{function}", kind, function=of.function)
        return net.add(f"{prefix}{down}", "linear", filters=of.hidden, **_bias(of.mlp_bias))

    def _mlp(self, name: str) -> None:
        names = self.names
        self._inner(
            f"{name}.", self.net.last, self.of.ffn, names["up"], names["function"], names["down"]
        )
        self._dropout(f"{name}.{names['mlp_dropout']}")

    def _experts(self, name: str) -> None:
        of, net, source, moe = self.of, self.net, self.net.last, f"{name}.moe"
        scores = net.add(
            f"{moe}.router", "router", experts=of.experts, **given(bias=of.router_bias)
        )
        capacity = {} if of.capacity == 1 else {"capacity": of.capacity}
        sent = net.add(
            f"{moe}.dispatch", "dispatch", source, experts=of.experts, top_k=of.top_k, **capacity
        )
        last = self._inner(f"{moe}.", sent, of.expert_ffn, "up", "act", "down")
        net.add(f"{moe}.combine", "combine", last, scores)
        if not of.shared_ffn:
            return
        routed = net.last
        shared = self._inner(f"{moe}.shared.", source, of.shared_ffn, "up", "act", "down")
        if of.shared_gate:
            net.add(f"{moe}.shared.gate", "router", source, experts=1)
            gate = net.add(f"{moe}.shared.sigmoid", "activation", function="sigmoid")
            shared = net.add(f"{moe}.shared.scale", "scale", shared, gate)
        net.add(f"{moe}.add", "add", routed, shared)
