"""Other orders of passes, and other context parallelism, of the choices that can have them.

Backward passes of weights may fill the bubbles of a pipeline (Qi et al. 2023), all forward passes
may come first (Huang et al. 2019, GPipe), and attention may get some heads of all positions instead
of keys and values of all (Jacobs et al. 2023).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cache

from msgspec.structs import replace

from planner.joint.choices import FORWARD_FIRST, Choice
from planner.request.parts import Degrees
from planner.request.setting import Setting


def is_variant(choice: Choice) -> bool:
    """Whether a choice is one of these."""
    return choice.fills_bubbles or choice.inside.cp_kind == "all-to-all"


def lacked(setting: Setting) -> tuple[str, ...]:
    """What of these the runtime that was asked for does not have."""
    asked = setting.asked_runtime
    return () if asked is None else asked.lacks


def turn_of(choice: Choice) -> int:
    """When a choice is simulated: after the plain ones come variants, and then those that copy."""
    return 2 if choice.offload else int(is_variant(choice))


def with_variants(setting: Setting, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Choices, each followed by its variants.

    Parameters
    ----------
    setting
        The question.
    choices
        Those of its space that are no variants.
    """
    lacks, layers = lacked(setting), setting.graph.compute_layers
    heads = {layer.dims["head"] for layer in layers if layer.kind == "attention"}
    for choice in choices:
        yield choice
        if choice.offload:
            continue
        inside, ways = choice.inside, [choice]
        divides = all(count % (inside.tp * inside.cp) == 0 for count in heads)
        if inside.cp > 1 and divides and "all-to-all" not in lacks:
            ways.append(replace(choice, inside=_all_to_all(inside)))
            yield ways[-1]
        # where weights are cut, each pass of them would gather once more
        if choice.pp > 1 and choice.chunks == 1 and choice.zero < 3 and "zero-bubble" not in lacks:
            yield from (replace(one, schedule="zero-bubble") for one in ways)


def forward_first(setting: Setting, choice: Choice) -> Choice:
    """A choice with all forward passes before any backward pass, where it is a pipeline of 1F1B.

    Parameters
    ----------
    setting, choice
        The question, and the choice.
    """
    turns = choice.pp > 1 and choice.schedule == "1f1b"
    if not turns or FORWARD_FIRST in lacked(setting):
        return choice
    return replace(choice, schedule=FORWARD_FIRST)


@cache
def _all_to_all(inside: Degrees) -> Degrees:
    return dataclasses.replace(inside, cp_kind="all-to-all")
