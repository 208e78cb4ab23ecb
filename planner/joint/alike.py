"""Estimates of ways to train that differ by what is cut over replicas alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from msgspec.structs import replace

from planner.joint.choices import Choice
from planner.joint.estimate import Estimate

BY_MEMORY = attrgetter("memory", "seconds")


def alike_but_for_zero(
    ranked: Iterable[Estimate], expected: Callable[[Estimate], float]
) -> list[list[Estimate]]:
    """Those that differ by their stage of ZeRO alone together, what holds the least first of each.

    Where that does not fit, nor do the others. ZeRO 3 is by itself: it gathers what it cuts.

    Parameters
    ----------
    ranked
        Estimates.
    expected
        What one is expected to take, by the least of which they are in order. [s]
    """
    alike: dict[Choice, list[Estimate]] = {}
    for one in sorted(ranked, key=expected):
        kind = replace(one.choice, zero=one.choice.zero // 3)
        alike.setdefault(kind, []).append(one)
    return [sorted(rows, key=BY_MEMORY) for rows in alike.values()]
