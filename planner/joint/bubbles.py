"""What no pipeline between any layers takes less than whose passes of weights fill its bubbles.

Stages run as `costmodels.simulation.schedules` has it for "zero-bubble": ZB-H1 of Qi et al. 2023,
section 2.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Condition = tuple[Floats, Floats]
# Stages that are looked at together first, and then about as many more as there were.
AT_ONCE = 16


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

    One of the things that a stage waits for counts at a time. What it waits for jumps where a block
    ends. That counts as far as the work on the layers up to there does not take as long: then a
    stage takes no less the later it ends, and no more the later it begins.

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
