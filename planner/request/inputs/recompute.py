"""What is computed again for the backward pass, as users say it."""

from __future__ import annotations

import re

from costmodels.errors import InputError

# Where it is no number of blocks and no list.
RECOMPUTATIONS = ("none", "selective", "operations", "full")


def recomputed(value: object) -> str | int:
    """What is computed again, from what was given: True is "full", a number is how many blocks.

    Else it is numbers of blocks such as "0-3,8-11", or names of layers as in strategy files.
    """
    if isinstance(value, bool):
        return "full" if value else "none"
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and value >= 0:
        return value
    parts = value if isinstance(value, list | tuple) else ()
    if parts and all(isinstance(n, int | str) and not isinstance(n, bool) for n in parts):
        value = ",".join(f"{n}-{n}" if isinstance(n, int) else str(n) for n in parts)
    if isinstance(value, str):
        text = "".join(value.split())
        if text in RECOMPUTATIONS or all(map(_names_layers, text.split(","))):
            return text
    raise InputError.rule(
        "what is computed again (--recompute)",
        f"be {', '.join(RECOMPUTATIONS)}, how many blocks of a stage, or which blocks or layers",
        repr(value),
        "choose one, or write blocks like 0-3,8-11 and layers like *.attn",
    )


def _names_layers(part: str) -> bool:
    """Whether a part of a list may name blocks or layers."""
    bounds = block_range(part)
    if bounds is not None:
        return bounds[0] <= bounds[1]
    return "." in part or "*" in part


def block_range(part: str) -> tuple[int, int] | None:
    """The first and the last of some numbers such as "3-8" or "4", None where it is no such."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
    return None if match is None else (int(match[1]), int(match[2] or match[1]))
