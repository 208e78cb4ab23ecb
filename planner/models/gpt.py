"""GPT-2 of any size: the built-in one with other numbers of blocks, features and heads."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.configs import config_rows, transformer


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
    row = next(row for row in config_rows() if "gpt2" in row.names)
    config = {**row.config, "n_layer": blocks, "n_embd": hidden, "n_head": heads}
    described = transformer(
        config, "gpt2", name="gpt2", source=row.source, notes=row.notes, fixed=row.fixed
    )
    return described.build("gpt2", sequence)
