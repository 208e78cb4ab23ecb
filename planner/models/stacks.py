"""Whole transformers: what comes before and after their blocks, by what they are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.models.blocks import GPT_NAMES, LAYER_NAMES, BlockBuilder
from planner.models.builder import Builder, image_builder
from planner.models.transformer import Transformer

# In what networks of a stack differ from what is published.
STACK_NOTES = {
    "masked": (
        "The whole of every sequence goes through the head, and the pooler, which the masked "
        "language model has no use for, is left out."
    ),
    "encoder-decoder": "The target has as many tokens as the source.",
}


def _embedding(net: Builder, of: Transformer, size: int, *, prefix: str = "") -> None:
    """Tokens, and positions and token types where they are learned.

    Parameters
    ----------
    net
        The network.
    of
        The transformer.
    size
        Tokens of a sample. [items]
    prefix
        What the names of all but the token embedding begin with.
    """
    rows = {"token_embedding": of.vocabulary}
    if of.positions == "learned":
        rows["position_embedding"] = max(of.max_positions, size)
    if of.token_types:
        rows["type_embedding"] = of.token_types
    for name, count in rows.items():
        net.add(name, "embedding", "input", rows=count, filters=of.hidden)
    if len(rows) > 1:
        net.add(f"{prefix}embedding.add", "add", *rows)


def _dropout(net: Builder, of: Transformer, name: str) -> None:
    if of.dropout:
        net.add(name, "dropout", rate=of.dropout)


def _head(net: Builder, of: Transformer, name: str = "head") -> None:
    share = {"share": "token_embedding"} if of.tied else {}
    net.add(name, "linear", filters=of.vocabulary, bias=False, **share)
    if of.head_bias:
        net.add(f"{name}.bias", "bias")
    net.add("loss", "loss")


def _decoder(of: Transformer, size: int, names: Mapping[str, str]) -> Builder:
    """Predicts the next token.

    Parameters
    ----------
    of
        The transformer.
    size
        Tokens of a sample. [items]
    names
        What layers are called.
    """
    net = Builder(sequence=size)
    _embedding(net, of, size)
    _dropout(net, of, "embedding.dropout")
    add = BlockBuilder(net=net, of=of, names=names, causal=of.causal)
    for number in range(of.blocks):
        add.block(number)
    net.add(names["norm"], of.norm)
    _head(net, of, names["head"])
    return net


def gpt_stack(of: Transformer, size: int) -> Builder:
    """A decoder with GPT-2's names."""
    return _decoder(of, size, GPT_NAMES)


def decoder_stack(of: Transformer, size: int) -> Builder:
    """A decoder."""
    return _decoder(of, size, LAYER_NAMES)


def masked_stack(of: Transformer, size: int) -> Builder:
    """An encoder that predicts masked tokens (Devlin et al. 2019)."""
    net = Builder(sequence=size)
    _embedding(net, of, size)
    net.add("embedding.norm", of.norm)
    _dropout(net, of, "embedding.dropout")
    add = BlockBuilder(net=net, of=of, names=LAYER_NAMES, causal=False)
    for number in range(of.blocks):
        add.block(number)
    net.add("transform", "linear", filters=of.hidden)
    net.add("transform.act", "activation", function=of.function)
    net.add("transform.norm", of.norm)
    _head(net, of)
    return net


def encoder_decoder_stack(of: Transformer, size: int) -> Builder:
    """An encoder, and a decoder that reads it, with one table of tokens (Raffel et al. 2020)."""
    net = Builder(sequence=size)
    net.add("token_embedding", "embedding", "input", rows=of.vocabulary, filters=of.hidden)
    _dropout(net, of, "encoder.embedding.dropout")
    encoder = BlockBuilder(net=net, of=of, names=LAYER_NAMES, prefix="encoder.", causal=False)
    for number in range(of.blocks):
        encoder.block(number)
    memory = net.add("encoder.norm", of.norm)
    if of.dropout:
        memory = net.add("encoder.dropout", "dropout", rate=of.dropout)
    net.add(
        "target_embedding",
        "embedding",
        "input",
        rows=of.vocabulary,
        filters=of.hidden,
        share="token_embedding",
    )
    _dropout(net, of, "decoder.embedding.dropout")
    decoder = BlockBuilder(net=net, of=of, names=LAYER_NAMES, prefix="decoder.", causal=of.causal)
    for number in range(of.decoder_blocks):
        decoder.block(number, memory=memory)
    net.add("decoder.norm", of.norm)
    _dropout(net, of, "decoder.dropout")
    _head(net, of)
    return net


def image_stack(of: Transformer, size: int) -> Builder:
    """An encoder of the patches of an image, whose class token is classified (Dosovitskiy 2021)."""
    net = image_builder(size, of.channels)
    net.add("patches", "conv", filters=of.hidden, kernel=of.patch, stride=of.patch, bias=True)
    net.add("tokens", "tokens")
    _dropout(net, of, "tokens.dropout")
    add = BlockBuilder(net=net, of=of, names=LAYER_NAMES, causal=False)
    for number in range(of.blocks):
        add.block(number)
    net.add("norm", of.norm)
    net.add("class_token", "take", axis="sequence", count=1)
    net.add("head", "linear", filters=of.vocabulary)
    net.add("loss", "loss")
    return net


STACKS: Mapping[str, Callable[[Transformer, int], Builder]] = {
    "gpt": gpt_stack,
    "decoder": decoder_stack,
    "masked": masked_stack,
    "encoder-decoder": encoder_decoder_stack,
    "image": image_stack,
}
