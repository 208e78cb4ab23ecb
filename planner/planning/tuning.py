"""Choices outside the additive problem: the size of gradient buckets and how they are all-reduced.

How the ranks of one level are numbered is no such choice: which dim is split at which level is
searched, and within a level all children are alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from costmodels.communication.collectives import ALL_REDUCE_ALGORITHMS
from costmodels.graph import Graph
from costmodels.step.training import Training
from planner.planning.options import SearchOptions
from planner.planning.search_plan import PlanSearchResult
from planner.planning.space.formulate import Formulation
from search.black_box import tune
from search.problem.deadline import OutOfTime
from search.problem.incumbent import Incumbent, tolerated
from search.problem.notes import Note

MIB = 2.0**20
# Tried on the plan that was found: the 25 MiB of PyTorch's DistributedDataParallel, and about four
# times less and more.
FEW_BUCKETS = (5 * MIB, 25 * MIB, 100 * MIB)
# Tried on the best plans between the smallest and the largest of these, about the square root of
# two apart: which gradients are left for the last bucket, which nothing hides, is a matter of luck.
MANY_BUCKETS = tuple(size * MIB for size in (5, 7, 10, 14, 20, 25, 35, 50, 70, 100))
# Where memory is short, the search is under buckets as small as they get: still smaller ones each
# pay the latency of an all-reduce.
SMALLEST_BUCKET = min(FEW_BUCKETS)
# Tried with a search for each: about a factor of two apart around PyTorch's 25 MiB. Much smaller
# ones pay the latency of an all-reduce too often, much larger ones leave nothing to hide behind.
BUCKETS = tuple(size * MIB for size in (1, 2, 5, 10, 25, 50, 100))
LARGEST_BUCKET = max(BUCKETS)


def buckets_to_try(graph: Graph, training: Training) -> tuple[float, ...]:
    """Sizes of gradient buckets to try on a plan: those that its gradients would fill twice. [B]"""
    gradients = graph.parameters * training.gradient_size
    return tuple(size for size in FEW_BUCKETS if 2.0 * size <= gradients) or FEW_BUCKETS[:1]


def buckets_between(tried: Sequence[float]) -> tuple[float, ...]:
    """Further sizes of buckets between the smallest and the largest of those tried. [B]"""
    least, most = min(tried), max(tried)
    return tuple(size for size in MANY_BUCKETS if least < size < most and size not in tried)


class Attempt(Struct, frozen=True, kw_only=True, eq=False):
    """A search under some options of the step.

    Parameters
    ----------
    formulation
        The network on the machine with these options.
    result
        What the search came to.
    notes
        What the time limit left out.
    starts
        The usual strategies that can be used, as assignments.
    cap
        Candidates that a layer could keep, 0 where the usual strategies alone were costed. [items]
    """

    formulation: Formulation
    result: PlanSearchResult
    notes: tuple[Note, ...] = ()
    starts: tuple[tuple[int, ...], ...] = ()
    cap: int = 0

    @property
    def step_time(self) -> float:
        """Step of the best plan, +inf where none fits. [s]"""
        return math.inf if self.result.best is None else self.result.best.step.total


def tune_step(
    attempt: Callable[[Training], Attempt],
    first: Attempt,
    options: SearchOptions,
    *,
    time_limit: float | None,
) -> Attempt:
    """Search again under other bucket sizes and all-reduce algorithms, but for those given.

    Parameters
    ----------
    attempt
        Searches under given options of the step.
    first
        What the search under the user's options came to.
    options
        How many settings to try, the seed of their choice, and what was given.
    time_limit
        When to try no more. [s]

    Returns
    -------
    The attempt with the fastest plan; the first one unless another is faster than by rounding.
    """
    given = first.formulation.machine.training
    best: Incumbent[Attempt] = Incumbent()
    best.offer(first, first.step_time)

    def objective(parameters: dict[str, Any]) -> float:
        try:
            trial = attempt(replace(given, **parameters))
        except OutOfTime:
            return math.inf
        if trial.step_time < tolerated(best.cost):
            best.offer(trial, trial.step_time)
        if trial.result.incumbent.stopped_by == "interrupt":
            raise KeyboardInterrupt
        return trial.step_time

    space = {"bucket_bytes": BUCKETS, "all_reduce": ("auto", *ALL_REDUCE_ALGORITHMS)}
    tuning = tune(
        objective,
        {name: values for name, values in space.items() if getattr(options, name) is None},
        max_trials=options.tune_trials,
        seed=options.seed,
        time_limit=time_limit,
    )
    found = best.choices or first
    if not tuning.stopped_by:
        return found
    stopped = dataclasses.replace(found.result.incumbent, stopped_by=tuning.stopped_by)
    return replace(found, result=replace(found.result, incumbent=stopped))
