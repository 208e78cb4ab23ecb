"""What transformers differ in: one description that every family's config is read into."""

from __future__ import annotations

from typing import Literal

import msgspec

from costmodels.errors import InputError


class Transformer(msgspec.Struct, frozen=True, kw_only=True):
    """A transformer without its input.

    Parameters
    ----------
    hidden, blocks, heads
        Features of a token, blocks, and heads of queries. [items]
    ffn
        Features inside a dense MLP; four times `hidden` by default. [items]
    vocabulary
        Rows of the token embedding; classes, where there are no tokens. [items]
    kv_heads, head_width
        Heads of keys and values, and features of a head; as many as queries have, and an equal
        share of `hidden`, by default. [items]
    positions, max_positions
        How tokens know where they are, and rows of the table where that is learned. [items]
    token_types
        Rows of the table of token types, 0 for none. [items]
    norm, post_norm
        Kind of the norms, and whether they come after the additions.
    function, gated
        Activation of the MLP, and whether its input is gated.
    qkv_bias, bias, mlp_bias, head_bias
        Whether queries, keys and values, the other layer of attention, the MLP, and the head have
        biases.
    qk_norm
        Whether queries and keys are normalised, head by head.
    tied
        Whether the head uses the weight of the token embedding.
    dropout
        Part of the features that is dropped after embedding, attention and MLP.
    causal, window, windowed
        Whether a token sees no later one; how many it sees at most, and whether that holds.
    fused, attention_dropout
        See the kind "attention"; a fused kernel keeps no mask.
    position_buckets
        Distances for which heads have a bias, where positions are relative. [items]
    experts, top_k, expert_ffn, capacity
        Of a mixture; see the kind "dispatch". 0 experts for none. [items]
    shared_ffn, shared_experts, shared_gate
        Features inside the experts that see every token, together; or how many of `expert_ffn`
        features there are; and whether a gate weighs them. [items]
    router_bias
        Whether the router has a bias for each expert.
    dense_blocks, sparse_step, dense_at
        Where a mixture has dense blocks: so many first ones, all but every so manyth one, and some
        by number. [items]
    q_rank, kv_rank, nope_width, rope_width, value_width
        Of latent attention: ranks of queries, 0 for full, and of keys and values; features of a
        head without and with rotary positions, and of its values. [items]
    decoder_blocks
        Of an encoder-decoder; as many as the encoder has by default. [items]
    patch, channels, image
        Of images: pixels a side of a patch, colours, and pixels a side. [items]
    """

    hidden: int
    blocks: int
    heads: int
    vocabulary: int
    ffn: int = 0
    kv_heads: int = 0
    head_width: int = 0
    positions: Literal["learned", "rotary", "relative", "none"] = "rotary"
    max_positions: int = 0
    token_types: int = 0
    norm: Literal["layer_norm", "rms_norm"] = "rms_norm"
    post_norm: bool = False
    function: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    dropout: float = 0.0
    causal: bool = True
    window: int = 0
    windowed: bool = True
    fused: bool = True
    attention_dropout: bool = False
    position_buckets: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    capacity: float = 1.0
    shared_ffn: int = 0
    shared_experts: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    dense_blocks: int = 0
    sparse_step: int = 1
    dense_at: tuple[int, ...] = ()
    q_rank: int = 0
    kv_rank: int = 0
    nope_width: int = 0
    rope_width: int = 0
    value_width: int = 0
    decoder_blocks: int = 0
    patch: int = 0
    channels: int = 3
    image: int = 0

    def has_experts(self, number: int) -> bool:
        """Whether the MLP of a block is a mixture of experts."""
        return (
            self.experts > 0
            and number >= self.dense_blocks
            and (number + 1) % self.sparse_step == 0
            and number not in self.dense_at
        )

    def completed(self) -> Transformer:
        """The description with everything filled in that follows from the rest."""
        return msgspec.structs.replace(
            self,
            ffn=self.ffn or 4 * self.hidden,
            kv_heads=self.kv_heads or self.heads,
            head_width=self.head_width or self.hidden // self.heads,
            expert_ffn=self.expert_ffn or self.ffn,
            shared_ffn=self.shared_ffn or self.shared_experts * self.expert_ffn,
            decoder_blocks=self.decoder_blocks or self.blocks,
            window=self.window if self.windowed else 0,
        )


# More than any network has, and few enough to look at each. [items]
MOST_BLOCKS = 4096
# Of those that may be 0, these are then something else or nothing at all.
_AT_LEAST_ONE = ("hidden", "blocks", "heads", "vocabulary", "sparse_step", "channels")


def check_transformer(one: Transformer, where: str, called: dict[str, str]) -> None:
    """Refuse a transformer that cannot be built.

    Parameters
    ----------
    one
        The transformer.
    where
        What error messages call its config.
    called
        What the config calls a field, where that differs.

    Raises
    ------
    InputError
        When a number is too small, or heads or experts do not divide.
    """
    for name, value in msgspec.structs.asdict(one).items():
        # of images alone
        patches = name == "patch" and name in called
        least = 1 if patches or name in _AT_LEAST_ONE else 0
        if isinstance(value, int | float) and not isinstance(value, bool) and value < least:
            rule = f"be at least {least}"
            raise InputError.rule(f"{where}: {called.get(name, name)}", rule, value, "correct it")
    for name in ("blocks", "decoder_blocks"):
        count = getattr(one, name)
        if count > MOST_BLOCKS:
            rule = f"be at most {MOST_BLOCKS:,}"
            raise InputError.rule(f"{where}: {called.get(name, name)}", rule, count, "correct it")
    if not one.head_width and not one.kv_rank and one.hidden % one.heads:
        raise InputError(
            f"{where}: {called.get('heads', 'heads')} must divide {called.get('hidden', 'hidden')} "
            f"but {one.heads} does not divide {one.hidden}; correct one of them"
        )
    if one.kv_heads and one.heads % one.kv_heads:
        raise InputError(
            f"{where}: {called.get('kv_heads', 'kv_heads')} must divide "
            f"{called.get('heads', 'heads')} but {one.kv_heads} does not divide {one.heads}; "
            "correct one of them"
        )
    if one.experts and not 1 <= one.top_k <= one.experts:
        rule = f"be from 1 to the {one.experts} experts"
        raise InputError.rule(
            f"{where}: {called.get('top_k', 'top_k')}", rule, one.top_k, "correct it"
        )
    if one.kv_rank and not (one.nope_width and one.rope_width and one.value_width):
        names = [called.get(n, n) for n in ("nope_width", "rope_width", "value_width")]
        raise InputError(
            f"{where}: latent attention must have {', '.join(names)} of at least 1 but one is 0; "
            "correct it"
        )
