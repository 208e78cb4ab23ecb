"""Choices that hold the least, where nothing that is expected to fit does."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from planner.joint.alike import BY_MEMORY
from planner.joint.estimate import Estimate
from planner.joint.simulations import MOST_COMPARED, MOST_WORK, Simulations


def run_smallest(simulations: Simulations, ranked: Sequence[Estimate], bound: float) -> None:
    """Simulate what holds the least until something fits, as far as is cheap.

    Parameters
    ----------
    simulations
        Of the question.
    ranked
        Estimates, the fastest first.
    bound
        What no choice takes less than. [s]
    """
    untried = (one for one in ranked if one.choice not in simulations.tried)
    rest = sorted(untried, key=BY_MEMORY)
    works = list(accumulate(simulations.pace.work(one.choice) for one in rest))
    cheap = rest[: bisect_right(works, MOST_WORK)]
    most = simulations.most_estimated
    simulations.simulate([one for one in cheap if one.memory <= most], bound)
    if simulations.best is None:
        _measure_smallest(simulations, bound)


def _measure_smallest(simulations: Simulations, bound: float) -> None:
    """Simulate what holds the least of all that does not fit: a refusal says what it needs.

    Parameters
    ----------
    simulations, bound
        As of `run_smallest`.
    """
    work = 0
    for choice in simulations.misfits.smallest_first():
        least = min((one.short for one in simulations.simulated), default=math.inf)
        work += simulations.pace.layers * choice.micro_batches  # as much, if none are folded
        enough = simulations.misfits.short[choice] >= least or work > MOST_COMPARED
        if enough or not simulations.has_time(choice):
            return
        simulations.attempt(choice, bound, anyhow=True)
