"""What the words of measured rows of transformers mean; all of them are in `data/llm.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from benchmarks.accuracy.machines import read_words
from benchmarks.accuracy.words import Skip


def entry_of(entries: str, text: str) -> Mapping[str, Any] | None:
    """The first entry whose words are found."""
    found = (entry for entry in read_words("llm")[entries] if re.search(entry["words"], text))
    return next(found, None)


# Words of metrics that have others here.
_SPELLED = dict.fromkeys(("sec", "secs", "second", "seconds"), "s")
_SPELLED |= {"tok": "tokens", "token": "tokens", "toks": "tokens", "seq": "sequences"}


def metric_words(text: str) -> str:
    """A metric as `data/llm.toml` spells it: "Tokens/sec/GPU" is "tokens_per_s_per_gpu"."""
    parts = re.findall(r"[a-z0-9]+", text.lower().replace("/", " per "))
    return "_".join(_SPELLED.get(part, part) for part in parts)


@lru_cache(maxsize=4096)
def training_framework(text: str) -> Mapping[str, Any]:
    """How a row was trained, by its framework, source, table and notes."""
    entry = entry_of("frameworks", text)
    assert entry is not None, "the last entry is that of all others"
    return entry


def sharding_of(text: str, dp: int) -> tuple[int, int]:
    """The stage of ZeRO, and over how many devices FSDP cuts weights; 0 for none.

    Parameters
    ----------
    text
        Such as "ZeRO-1", "1", "FSDP2 64", "FSDP FULL_SHARD" or "none".
    dp
        Ways of data parallelism, over which weights are cut where no number is said. [ways]
    """
    lowered = text.lower()
    if re.fullmatch(r"|none|no|n/a|-|false|0|0\.0|ddp|zero-?0|(fsdp2? )?no_shard", lowered):
        return 0, 0
    if "shard_grad_op" in lowered:
        return 2, 0
    if re.search("fsdp|full_shard|fully_shard|hsdp", lowered):
        stated = re.search(r"\b(\d+)$", lowered)
        return 0, int(stated[1]) if stated else dp
    lowered = re.sub(r"\(?(distributed|dist)[ -]opt(imizer)?\)?$", "", lowered).strip() or "1"
    stage = re.search(r"\b(?:zero)?[\s_-]*(?:stage)?[\s_-]*([0-3])(?:\.0)?$", lowered)
    if not stage:
        raise Skip(f"unknown way to cut weights: {text}")
    return int(stage[1]), 0


def recomputation_of(text: str, framework: Mapping[str, Any]) -> str:
    """What is computed again for the backward pass.

    Parameters
    ----------
    text
        What a row says, such as "selective op" or "full".
    framework
        Its entry, for rows that say nothing.
    """
    lowered = text.lower().strip() or str(framework.get("recompute", "none"))
    if lowered in ("none", "no", "n/a", "-", "false", "off", "0"):
        return "none"
    if re.fullmatch(r"full\b.*|yes|true|all|on|(activation|gradient) checkpointing", lowered):
        return "full"
    if re.fullmatch(r"selective layer|every other( block| layer)?", lowered):
        return "half"
    if lowered in ("selective op", "operations"):
        return "operations"
    if lowered.startswith("selective") or re.fullmatch("core_?attn|core attention", lowered):
        return str(framework.get("selective", "selective"))
    if lowered.isdigit():
        return lowered
    raise Skip(f"unknown recomputation: {text}")
