"""GPT-2: pre-norm transformer blocks whose head shares the weight of the token embedding."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder

SOURCE = 'Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", 117M model'
VOCABULARY, POSITIONS, DROPOUT = 50257, 1024, 0.1


def _transformer_block(net: Builder, name: str, hidden: int, heads: int) -> None:
    residual = net.last
    net.add(f"{name}.ln_1", "layer_norm")
    net.add(f"{name}.attn.c_attn", "linear", filters=3 * hidden)
    net.add(f"{name}.attn", "attention", heads=heads)
    net.add(f"{name}.attn.c_proj", "linear", filters=hidden)
    net.add(f"{name}.attn.dropout", "dropout", rate=DROPOUT)
    residual = net.add(f"{name}.add_1", "add", net.last, residual)
    net.add(f"{name}.ln_2", "layer_norm")
    net.add(f"{name}.mlp.c_fc", "linear", filters=4 * hidden)
    net.add(f"{name}.mlp.gelu", "activation", function="gelu")
    net.add(f"{name}.mlp.c_proj", "linear", filters=hidden)
    net.add(f"{name}.mlp.dropout", "dropout", rate=DROPOUT)
    net.add(f"{name}.add_2", "add", net.last, residual)


def gpt2(sequence: int, *, blocks: int = 12, hidden: int = 768, heads: int = 12) -> Network:
    """GPT-2; by default the smallest one.

    Parameters
    ----------
    sequence
        Tokens of a sample. [items]
    blocks
        Transformer blocks. [items]
    hidden, heads
        Features of a token, and attention heads that share them. [items]
    """
    net = Builder(sequence=sequence)
    net.add("token_embedding", "embedding", "input", rows=VOCABULARY, filters=hidden)
    net.add(
        "position_embedding", "embedding", "input", rows=max(POSITIONS, sequence), filters=hidden
    )
    net.add("embedding.add", "add", "token_embedding", "position_embedding")
    net.add("embedding.dropout", "dropout", rate=DROPOUT)
    for block in range(blocks):
        _transformer_block(net, f"h.{block}", hidden, heads)
    net.add("ln_f", "layer_norm")
    net.add("head", "linear", filters=VOCABULARY, bias=False, share="token_embedding")
    net.add("loss", "loss")
    return net.network(
        "gpt2",
        source=SOURCE,
        notes=(
            "Attention is one fused kernel, so its own dropout keeps no mask. A sequence longer "
            f"than {POSITIONS} tokens gets a position embedding of that length."
        ),
    )
