"""Precision recipes: what a framework holds of one weight, and which of it ZeRO cuts."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from costmodels.errors import InputError
from costmodels.units.tables import parse_toml

_FILE = "recipes.toml"
# What PyTorch does unless it is told otherwise.
USUAL_RECIPE = "autocast"
_FULL = ("fp32", "tf32")


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of one weight, the optimizer's moments left out.

    Parameters
    ----------
    weights, copies
        As passes read it, and in another type beside. [B]
    gradients
        Its gradient, held through the step. [B]
    master
        What the optimizer has of both for itself. [B]
    fresh
        The gradient of one micro-batch, until all of its backward pass is through. [B]
    buckets
        The gradient once more, in the buffers in which it travels. [B]
    update
        What the optimizer has of it while it updates, cut like `master`. [B]
    moved, moved_cut
        What is read and written of it around the optimizer's own kernels: for all of a gradient
        that a rank has, and for what its optimizer updates, which is cut like `master`. [B]
    fp8_copies
        Where products run in FP8: the weight in that type and its transpose, less what they take
        the place of. [B]
    fp8_inputs
        A number of their inputs, as they are kept for the backward pass. [B]
    """

    weights: int = 4
    copies: int = 0
    gradients: int = 4
    master: int = 0
    fresh: int = 0
    buckets: int = 0
    update: int = 0
    moved: int = 0
    moved_cut: int = 0
    fp8_copies: int = 2
    fp8_inputs: int = 1


class _Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recipes of a framework, by precision."""

    source: str
    fp16: Recipe
    bf16: Recipe


@cache
def recipe_families() -> dict[str, _Family]:
    """All recipes by the name of their framework."""
    text = (resources.files("costmodels.step") / "data" / _FILE).read_text(encoding="utf-8")
    return msgspec.convert(parse_toml(text, _FILE), dict[str, _Family])


@cache
def recipe_of(name: str, precision: str) -> Recipe:
    """The recipe of a framework in a precision.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    known = recipe_families()
    if name not in known:
        raise InputError.rule(
            "the precision recipe", f"be one of {', '.join(known)}", f"'{name}'", "choose one"
        )
    if precision in _FULL:
        return Recipe()
    # FP8 is that of products alone (`costmodels.layers.reduced_precision`)
    recipe: Recipe = getattr(known[name], "bf16" if precision == "fp8" else precision)
    return recipe
