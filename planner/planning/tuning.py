"""Choices outside the additive problem: the size of gradient buckets and how they are all-reduced.

How the ranks of one level are numbered is no such choice: which dim is split at which level is
searched, and within a level all children are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from costmodels.communication.collectives import ALL_REDUCE_ALGORITHMS
from costmodels.step.training import Training
from planner.planning.costing import Costed, cost
from planner.planning.find import Found
from planner.planning.formulate import Formulation
from search.black_box import tune

MIB = 2.0**20
# Tried on the plan that was found, and with a search for each: buckets of PyTorch have 25 MiB.
FEW_BUCKETS = (5 * MIB, 25 * MIB, 100 * MIB)
BUCKETS = tuple(size * MIB for size in (1, 2, 5, 10, 25, 50, 100))
LARGEST_BUCKET = max(BUCKETS)

Attempt = tuple[Formulation, Found]


def tune_buckets(formulation: Formulation, best: Costed) -> tuple[Training, Costed]:
    """Try a few bucket sizes on one assignment.

    Parameters
    ----------
    formulation
        The network on the machine.
    best
        The assignment, costed with the options of the formulation.
    """
    given = formulation.machine.training
    costed = {given: best}

    def objective(parameters: dict[str, Any]) -> float:
        training = replace(given, **parameters)
        costed[training] = cost(formulation, best.choices, training)
        fits = costed[training].memory.total <= formulation.cluster.device.memory
        return costed[training].step.total if fits else math.inf

    space: dict[str, Sequence[Any]] = {"bucket_bytes": FEW_BUCKETS}
    tuning = tune(objective, space, max_trials=len(FEW_BUCKETS))
    if tuning.stopped_by == "interrupt":
        raise KeyboardInterrupt
    winner = tuning.best
    if winner is None or winner.value >= best.step.total * (1 - 1e-9):
        return given, best
    training = replace(given, **winner.parameters)
    return training, costed[training]


def tune_knobs(
    attempt: Callable[[Training], Attempt],
    first: Attempt,
    *,
    max_trials: int,
    seed: int,
    time_limit: float | None,
) -> Attempt:
    """Search again under other bucket sizes and all-reduce algorithms; the best of all.

    Parameters
    ----------
    attempt
        Searches under given options.
    first
        What the search under the user's options gave.
    max_trials
        How many settings to try. [items]
    seed, time_limit
        Of the choice of settings, and when to try no more. [s]
    """
    given = first[0].machine.training
    best = first

    def value(found: Found) -> float:
        return math.inf if found.best is None else found.best.step.total

    def objective(parameters: dict[str, Any]) -> float:
        nonlocal best
        trial = attempt(replace(given, **parameters))
        if value(trial[1]) < value(best[1]) * (1 - 1e-9):
            best = trial
        return value(trial[1])

    space = {"bucket_bytes": BUCKETS, "all_reduce": ("auto", *ALL_REDUCE_ALGORITHMS)}
    tune(objective, space, max_trials=max_trials, seed=seed, time_limit=time_limit)
    return best
