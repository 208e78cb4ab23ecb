"""What no pipeline takes less than whose backward passes of weights fill its bubbles.

Stages run as `costmodels.simulation.schedules` has it for "zero-bubble": ZB-H1 of Qi et al. 2023,
section 2.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Condition = tuple[Floats, Floats]
# The bound is found by bisection, up to that part of itself.
EXACT = 1e-3
# Stages that are looked at together first, and then about as many more as there were.
AT_ONCE = 16


def least_filled(
    pp: int,
    count: int,
    forward: Sequence[float],
    before: Sequence[float],
    apart: Sequence[float],
    message: float = 0.0,
    after: float = 0.0,
) -> float:
    """What no step takes less than, wherever blocks that follow each other are cut into stages. [s]

    A stage waits for the first micro-batch, and then until that comes back from the stages after
    it, as far as other forward passes leave it time. After its last backward pass that follows
    gradients, the stages before it have theirs. The later a stage ends, the less the others have to
    do, so that the best cut fills stage by stage as far as the step allows.

    Parameters
    ----------
    pp, count
        Stages, and micro-batches. [items]
    forward, before, apart
        Of each block and micro-batch at least: the forward pass, both passes without that of
        weights, and that, which no schedule makes shorter. [s]
    message
        From a stage to the next one, or back. [s]
    after
        What follows the last backward pass of the first block that follows gradients. [s]
    """
    ahead = [0.0, *accumulate(forward)]
    both = [0.0, *accumulate(before)]
    weights = [0.0, *accumulate(apart)]
    whole = both[-1] + weights[-1]

    def step(stage: int, first: int, end: int) -> float:
        """What no step takes less than with such a stage. [s]"""
        own = ahead[end] - ahead[first]
        flying, left = min(pp - stage, count), min(stage + 1, count)
        work = ahead[first] + count * (both[end] - both[first] + weights[end] - weights[first])
        beyond = both[-1] - both[end] + 2.0 * (pp - 1 - stage) * message
        work += max(beyond - (flying - 1) * own, 0.0)
        back = both[first] - ahead[first] - left * (weights[end] - weights[first])
        return work + stage * message + max(back + stage * message + after, 0.0)

    def fits(seconds: float) -> bool:
        first = 0
        for stage in range(pp):
            ends = range(first, len(both))
            reached = bisect_right(ends, seconds, key=partial(step, stage, first))
            if not reached:
                return False
            first = ends[reached - 1]
        return first == len(forward)

    once = both[-1] + 2.0 * (pp - 1) * message + after
    low, high = max(count * whole / pp, once), count * whole + once
    while high > low * (1.0 + EXACT):
        middle = (low + high) / 2.0
        if fits(middle):
            high = middle
        else:
            low = middle
    return low


def may_fill_by_layers(
    pp: int,
    count: int,
    whole: Floats,
    before: Floats,
    ahead: Floats,
    around: Floats,
    seconds: float,
) -> bool:
    """Whether a step might take no longer, wherever layers that may work beside others are cut.

    As `least_filled`, one of the things that a stage waits for at a time. What it waits for jumps
    where a block ends. That counts as far as the work on the layers up to there does not take as
    long: then a stage takes no less the later it ends, and no more the later it begins.

    Parameters
    ----------
    pp, count
        Stages, and micro-batches. [items]
    whole, before
        Both passes of each layer and micro-batch at least, with that of weights and without. [s]
    ahead, around
        What a micro-batch waits at least for the blocks before that of each layer, and in the end
        for all of them, in the forward pass, and in both of them without that of weights. [s]
    seconds
        The step. [s]
    """
    size = len(whole)
    # a stage that ends with a layer waits for the blocks after that of the layer
    after = around[-1] - np.concatenate((around[:1], _after_blocks(around)))
    none = np.zeros(size + 1)
    first, begin = _conditions(count * whole[None], ahead, none)[0], 0
    last: list[Condition] = []
    flying: list[Condition] = []
    for stage in range(pp):
        if stage == len(last):
            stages = np.arange(stage, min(2 * stage + AT_ONCE, pp))[:, None]
            ended = np.minimum(stages + 1, count)
            last += _conditions(ended * before + (count - ended) * whole, around, none)
            left = count - np.minimum(pp - stages, count) + 1
            flying += _conditions(left * whole, ahead, after)
        reached = min(
            int(least.searchsorted(seconds + waited[begin], "right")) - 1
            for least, waited in (first, last[stage], flying[stage])
        )
        begin = max(begin, reached)
        if begin >= size:
            return True
    return False


def _conditions(work: Floats, waits: Floats, rest: Floats) -> list[Condition]:
    """Work up to each layer, and what a step must have beside it for a stage from there on. [s]

    Parameters
    ----------
    work
        On each layer, for several stages: (stages, layers). [s]
    waits, rest
        What a stage that begins, or ends with a layer waits for. [s]
    """
    ends = np.zeros((len(work), len(waits)))
    work.cumsum(axis=1, out=ends[:, 1:])
    least = np.minimum.accumulate((ends + rest)[:, ::-1], axis=1)[:, ::-1]
    waited = np.maximum.accumulate(ends - waits, axis=1)
    return list(zip(least, waited, strict=True))


def _after_blocks(waits: Floats) -> Floats:
    """Of each layer, what those wait for that follow its block, as of `may_fill_by_layers`."""
    place = np.searchsorted(waits, waits[:-1], side="right")
    found: Floats = waits[np.minimum(place, len(waits) - 1)]
    return found
