"""What no pipeline takes less than whose backward passes of weights fill its bubbles.

Stages run as `costmodels.simulation.schedules` has it for "zero-bubble": ZB-H1 of Qi et al. 2023,
section 2.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

# The bound is found by bisection, up to that part of itself.
EXACT = 1e-3


def least_filled(
    pp: int,
    count: int,
    forward: Sequence[float],
    before: Sequence[float],
    apart: Sequence[float],
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
        work += max(both[-1] - both[end] - (flying - 1) * own, 0.0)
        back = both[first] - ahead[first] - left * (weights[end] - weights[first])
        return work + max(back, 0.0)

    def fits(seconds: float) -> bool:
        first = 0
        for stage in range(pp):
            ends = range(first, len(both))
            reached = bisect_right(ends, seconds, key=partial(step, stage, first))
            if not reached:
                return False
            first = ends[reached - 1]
        return first == len(forward)

    low, high = max(count * whole / pp, both[-1]), count * whole + both[-1]
    while high > low * (1.0 + EXACT):
        middle = (low + high) / 2.0
        if fits(middle):
            high = middle
        else:
            low = middle
    return low
