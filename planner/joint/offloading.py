"""Choices that do not fit, with some of what they hold in the memory of the hosts.

Where a choice fits, nothing is gained by that: copies only add to what a step takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.strategy.blocks import is_transformer
from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate
from planner.joint.memory_bounds import MemoryBounds
from planner.joint.offload import least_copied, most_waiting, offloaded
from planner.joint.ranking import MARGIN, Ranking, Rows, most_estimated
from planner.joint.variants import is_variant
from planner.joint.weights import LeastWeights
from planner.joint.wishes import Wishes
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Choices that do not fit of which that is looked at, the fastest without it first, and those of
# them that may fit with all of it in the hosts, of which the rest is estimated. [items]
MOST_LOOKED_AT, MOST_REFINED = 4096, 1024


def may_offload(setting: Setting, wishes: Wishes) -> bool:
    """Whether what does not fit may wait in the memory of the hosts."""
    known = setting.cluster.host is not None and not setting.cluster.groups
    # images leave much to copy for what they compute
    known = known and is_transformer(setting.graph)
    return known and wishes.framework is None and wishes.kept_offload is None


def with_offload(
    ranking: Ranking, ranked: Sequence[Estimate], heavy: Rows
) -> tuple[list[Estimate], float]:
    """Estimates with those of choices that fit with some of them in the hosts, the fastest first.

    Parameters
    ----------
    ranking
        Of the choices that may fit without.
    ranked
        Their estimates, the fastest first.
    heavy
        Choices whose weights do not fit without, by what no step of them takes less than. [s]

    Returns
    -------
    All estimates, and what no other of the heavy ones takes less than. [s]
    """
    capacity = ranking.capacity
    fitting = (one for one in ranked if one.memory <= capacity)
    surely = (one.seconds for one in fitting if one.choice not in ranking.refuted)
    best = min([ranking.limit, *surely])
    found = list(ranked)
    heavier = (one for one in ranked if not (ranking.fits(one) or one.choice.again))
    alone = [one for one in heavier if not is_variant(one.choice)]
    # estimates of memory are not exact
    most, refined = most_estimated(ranking.estimates), 0
    memory = MemoryBounds(ranking.estimates)

    def promises(choice: Choice) -> bool:
        limit = best * (1.0 + MARGIN)
        return limit == math.inf or ranking.at_least(choice, limit) <= limit

    for one in alone[:MOST_LOOKED_AT]:
        if one.seconds > best or refined == MOST_REFINED:
            break
        *ways, all_of_it = offloaded(one.choice)
        # copies only add to what it takes without
        if memory.refutes(all_of_it) or not promises(one.choice):
            continue
        least = ranking.estimates.of(all_of_it)
        if least.memory > most:
            continue
        refined += 1
        others = [least, *(ranking.estimates.of(way) for way in ways if promises(way))]
        found += [other for other in others if other.memory <= most]
        best = min([best, *(other.seconds for other in others if other.memory <= capacity)])
    # told one by one, as far as they are asked for
    rows = (row for row in heavy if not memory.refutes(row[1]))
    left = ranking.add(rows, found, margin=MARGIN)
    return sorted(found, key=lambda one: one.seconds), left


def heavy_rows(
    setting: Setting, heavy: Sequence[Choice], floors: PipelineBounds, deadline: Deadline
) -> tuple[list[tuple[float, Choice]], float]:
    """Choices whose weights fit with some of them in the hosts, by what none takes less than. [s]

    Parameters
    ----------
    setting
        The question.
    heavy
        Choices whose weights do not fit.
    floors
        What no step of them takes less than by computation alone.
    deadline
        After which no further ones are looked for, once there is one.

    Returns
    -------
    The choices, and what all others take at least that may fit so. [s]
    """
    weights = LeastWeights(setting)
    rows: list[tuple[float, Choice]] = []
    for choice in heavy:
        if rows and deadline.passed:
            return sorted(rows, key=lambda row: row[0]), 0.0
        if not weights.fit(choice, most_waiting(choice)):
            continue
        fitting = offloaded(choice, weights.fit)
        floor = floors.floor(choice) if fitting else 0.0
        for one in fitting:
            copied = least_copied(setting, one, weights.least_parameters(one))
            rows.append((max(floor, copied), one))
    return sorted(rows, key=lambda row: row[0]), math.inf
