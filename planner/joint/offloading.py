"""Choices that do not fit, with some of what they hold in the memory of the hosts.

Where a choice fits, nothing is gained by that: copies only add to what a step takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.strategy.blocks import is_transformer
from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate
from planner.joint.memory_bounds import MemoryBounds
from planner.joint.offload import least_copied, most_waiting, offloaded
from planner.joint.promises import promises
from planner.joint.ranking import MARGIN, MEMORY_MARGIN, Ranking, Rows, most_estimated
from planner.joint.variants import is_variant
from planner.joint.weights import LeastWeights
from planner.joint.wishes import Wishes
from planner.request.setting import Setting
from search.problem.deadline import NO_DEADLINE, Deadline

# Of choices that do not fit so many are estimated with that, those that promise the most. [items]
MOST_REFINED = 1024


def may_offload(setting: Setting, wishes: Wishes) -> bool:
    """Whether what does not fit may wait in the memory of the hosts."""
    known = setting.cluster.host is not None and not setting.cluster.groups
    # images leave much to copy for what they compute
    known = known and is_transformer(setting.graph)
    return known and wishes.framework is None and wishes.kept_offload is None


def with_offload(
    ranking: Ranking, ranked: Sequence[Estimate], heavy: Rows, deadline: Deadline = NO_DEADLINE
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
    deadline
        When to stop with those that are not heavy.

    Returns
    -------
    All estimates, and what no other of the heavy ones takes less than. [s]
    """
    capacity = ranking.capacity
    fitting = (one for one in ranked if one.memory <= capacity)
    sure = (one.seconds for one in fitting if one.choice not in ranking.refuted)
    best = min([ranking.limit, *sure])
    found = list(ranked)
    heavier = (one for one in ranked if not (ranking.fits(one) or one.choice.again))
    alone = [one for one in heavier if not is_variant(one.choice)]
    # estimates of memory are not exact
    most, refined = most_estimated(ranking.estimates), 0
    memory = MemoryBounds(ranking.estimates)

    def may_be_fast(choice: Choice) -> bool:
        limit = best * (1.0 + MARGIN)
        return limit == math.inf or ranking.at_least(choice, limit) <= limit

    near = [one for one in alone if one.seconds <= best * (1.0 + MARGIN)]
    for ways in deadline.before(promises(memory, near, most)):
        if ways[0].seconds > best * (1.0 + MARGIN) or refined >= MOST_REFINED:
            break
        surely: set[Choice] = set()
        for promise in ways:
            way = replace(near[promise.place].choice, offload=promise.names)
            if not surely.isdisjoint(way.less_copied()) or not may_be_fast(way):
                continue
            refined += 1
            other = ranking.estimates.of(way)
            found += [other] if other.memory <= most else []
            best = min(best, other.seconds) if other.memory <= capacity else best
            surely |= {way} if other.memory <= capacity * (1.0 - MEMORY_MARGIN) else set()
    ranking.cut_short |= deadline.passed
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
