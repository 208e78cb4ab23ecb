"""Parts of questions that several tests ask."""

from __future__ import annotations

import json
from pathlib import Path

# Leaves the splits of one stage alone, as a value of `forbid`.
SPLITS_ALONE = "pipeline,accumulation,sharding,recompute"

# The network of a Llama, but for its sizes.
_LLAMA = {"model_type": "llama", "tie_word_embeddings": False}


def small_llama(folder: Path, **sizes: int | str) -> str:
    """The file of a Llama with these sizes, written to a folder.

    Parameters
    ----------
    folder
        Where it is written.
    sizes
        Fields of its `config.json`; all heads have keys of their own unless they say otherwise, and
        another `model_type` is one with the same fields.
    """
    heads = {"num_key_value_heads": sizes["num_attention_heads"]}
    path = folder / "config.json"
    path.write_text(json.dumps({**_LLAMA, **heads, **sizes}))
    return str(path)
