"""Other orders of passes, and other context parallelism, of the fastest choices that might gain.

Backward passes of weights may fill the bubbles of a pipeline (Qi et al. 2023), and attention may
get some heads of all positions instead of keys and values of all (Jacobs et al. 2023). Both are
tried of choices that are among the best without, by simulation; bounds are not of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from costmodels.errors import InputError
from planner.joint.choices import Choice
from planner.joint.estimate import Estimate, Estimates
from planner.request.parts import Degrees

# Choices of which each is tried, the most promising first. [items]
MOST_TRIED = 3
# The part of a backward pass that products of weights take: of two products as large. [parts]
OF_WEIGHTS = 0.5


def zero_bubble(choice: Choice) -> Choice:
    """The choice with its backward passes of weights apart."""
    return replace(choice, schedule="zero-bubble")


def all_to_all(choice: Choice) -> Choice:
    """The choice whose context parallelism brings heads together."""
    return replace(choice, inside=replace(choice.inside, cp_kind="all-to-all"))


def is_variant(degrees: Degrees) -> bool:
    """Whether a way to train is one of these."""
    divided = degrees.cp > 1 and degrees.cp_kind == "all-to-all"
    return degrees.schedule == "zero-bubble" or divided


def variants(
    estimates: Estimates, ranked: Sequence[Estimate], fastest: float
) -> Iterator[tuple[float, Choice]]:
    """What may be faster than the best, each with what it may take, the most promising first. [s]

    Parameters
    ----------
    estimates
        Made of the choices.
    ranked
        Those of all choices, the fastest first.
    fastest
        The best step. [s]
    """
    capacity = estimates.setting.cluster.device.memory
    fitting = [one for one in ranked if one.memory <= capacity and not one.choice.offload]
    rows: list[tuple[float, Choice]] = []
    for one in fitting:
        choice = one.choice
        if one.seconds * (1.0 - OF_WEIGHTS) >= fastest:
            break  # a step has one backward pass of all stages at least
        # where weights are cut, each pass of them would gather once more
        if choice.pp == 1 or choice.chunks > 1 or choice.zero > 2:
            continue
        inside = estimates.insides(choice.zero).of(choice.split, choice.samples)
        gained = (1.0 - 1.0 / choice.pp) * OF_WEIGHTS * float(inside.backward.sum())
        rows.append((one.seconds - gained, zero_bubble(choice)))
    found = sorted(rows, key=lambda row: row[0])[:MOST_TRIED]
    divided = [one.choice for one in fitting if one.choice.inside.cp > 1 and not one.choice.again]
    for choice in divided[:MOST_TRIED]:
        try:
            other = estimates.of(all_to_all(choice))
        except InputError:
            continue  # there are too few heads
        if other.memory <= capacity:
            found.append((other.seconds, other.choice))
    yield from sorted((row for row in found if row[0] < fastest), key=lambda row: row[0])
