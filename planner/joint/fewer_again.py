"""As few blocks computed again as it takes: between none, which do not fit, and all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from planner.joint.choices import Choice
from planner.joint.estimate import Estimate, Estimates
from planner.joint.ranking import MARGIN
from search.problem.deadline import NO_DEADLINE, Deadline

# Ways to train of which that is found out, those first that promise to be the fastest. [items]
MOST_REFINED = 64
# The same with some of it in the hosts, beside what is simulated. [items]
MOST_OFFLOADED = 16
# Parts of the memory of a device that are filled: estimates are not exact, and what does not fit
# when it is simulated has one beside it that is a little smaller.
FILLED = (1.0, 0.96)
# What is slower than the best by more is not faster with a block less computed again. [times]
PROMISING_AGAIN = 1.2


def with_fewer_again(
    estimates: Estimates,
    ranked: Sequence[Estimate],
    refuted: AbstractSet[Choice] = frozenset(),
    limit: float = math.inf,
    deadline: Deadline = NO_DEADLINE,
) -> list[Estimate]:
    """Estimates with those of fewer blocks computed again, the fastest first.

    Parameters
    ----------
    estimates
        Makes them.
    ranked
        Those of all choices, the fastest first.
    refuted
        What does not fit, whatever is estimated.
    limit
        Steps that take longer do not matter. [s]
    deadline
        When to stop.
    """
    capacity = estimates.setting.cluster.device.memory
    alone = {
        replace(one.choice, blocks=()): one
        for one in ranked
        if one.choice.inside.recompute == "none"
    }
    rows: list[tuple[float, Estimate]] = []
    for one in ranked:
        again = one.choice.inside.recompute == "full" and estimates.most_again(one.choice) > 1
        if not again or one.memory > capacity:
            continue
        inside = dataclasses.replace(one.choice.inside, recompute="none")
        nothing = alone.get(replace(one.choice, inside=inside, blocks=()))
        if nothing is not None and (nothing.memory > capacity or nothing.choice in refuted):
            rows.append((_between(nothing, one, capacity), one))
    fitting = (one for one in ranked if one.memory <= capacity and one.choice not in refuted)
    best = min((one.seconds for one in fitting), default=math.inf)
    best = min(best, limit)
    found = list(ranked)
    rows.sort(key=lambda row: row[0])
    for promised, one in deadline.before(rows[:MOST_REFINED]):
        if promised > best * (1.0 + MARGIN):
            break
        fewest = [choice for choice in fewest_again(estimates, one) if choice != one.choice]
        found += map(estimates.of, fewest)
        best = min(
            [best, *(new.seconds for new in found[-len(FILLED) :] if new.memory <= capacity)]
        )
    return sorted(found, key=lambda one: one.seconds)


def _between(nothing: Estimate, full: Estimate, capacity: float) -> float:
    """About what a choice takes with as many blocks computed again as it takes to fit. [s]

    Parameters
    ----------
    nothing, full
        Its estimates with none and with all of them.
    capacity
        The memory of a device. [B]
    """
    short, saved = max(nothing.memory - capacity, 0.0), nothing.memory - full.memory
    share = short / saved if short < saved < math.inf else float(short > 0.0)
    return nothing.seconds + (full.seconds - nothing.seconds) * share


def those_with_fewer_again(
    estimates: Estimates, ranked: Iterable[Estimate], best: float, most: float
) -> list[Estimate]:
    """Those that compute a block less again than others, which are not much slower than the best.

    With some of it in the hosts nothing less was estimated so far: as few as fit come as well.

    Parameters
    ----------
    estimates, ranked
        Makes them, and those of the others, the fastest first.
    best
        The best step. [s]
    most
        What may fit is estimated to hold no more than that. [B]
    """
    full = (one for one in ranked if one.choice.inside.recompute == "full")
    near = [one for one in full if one.seconds < best * PROMISING_AGAIN]
    found = [less for one in near for less in one_fewer_again(estimates, one.choice, most)]
    away = [one for one in near if one.choice.offload and not one.choice.again]
    fewest = (choice for one in away[:MOST_OFFLOADED] for choice in fewest_again(estimates, one))
    known = {one.choice for one in found}
    return [*found, *(estimates.of(one) for one in fewest if one.again and one not in known)]


def one_fewer_again(estimates: Estimates, choice: Choice, most: float) -> list[Estimate]:
    """The estimate of a choice with one block less of each stage computed again, if it may fit.

    Parameters
    ----------
    estimates, most
        As of `those_with_fewer_again`.
    choice
        Blocks of it are computed again.
    """
    count = choice.again or estimates.most_again(choice)
    if count < 2:
        return []
    less = estimates.of(replace(choice, again=count - 1))
    return [less] if less.memory <= most else []


def fewest_again(estimates: Estimates, full: Estimate) -> list[Choice]:
    """Choices that compute as few blocks again as it takes to fill parts of the memory.

    Parameters
    ----------
    estimates, full
        Makes them, and that of all blocks.
    """
    capacity = estimates.setting.cluster.device.memory
    found = {fewest_within(estimates, full.choice, part * capacity) for part in FILLED}
    return sorted(found, key=lambda choice: choice.again)


def fewest_within(estimates: Estimates, choice: Choice, most: float) -> Choice:
    """The choice that computes the fewest blocks again and is estimated to hold no more than that.

    Parameters
    ----------
    estimates
        Makes estimates.
    choice
        With all blocks computed again.
    most
        What a device may hold. [B]
    """
    most_again = estimates.most_again(choice)
    low, high = 1, most_again
    while low < high:
        middle = (low + high) // 2
        if estimates.of(replace(choice, again=middle)).memory <= most:
            high = middle
        else:
            low = middle + 1
    return choice if high == most_again else replace(choice, again=high)


def of_replicas(
    estimates: Estimates, rows: Sequence[tuple[float, Choice]], refuted: AbstractSet[Choice]
) -> float:
    """What replicas of the whole network are estimated to take, where some is computed again.

    In networks without attention that is nearly always among the best, and leaves little of all
    else to estimate. [s]

    Parameters
    ----------
    estimates, rows
        Makes them, and choices by what no step of them takes less than. [s]
    refuted
        Choices that do not fit although they are estimated to.
    """
    if estimates.cuts.first:
        return math.inf
    gpus, capacity = estimates.setting.gpus, estimates.setting.cluster.device.memory
    plain = (one for _, one in rows if (one.dp, one.micro_batches) == (gpus, 1))
    found = with_fewer_again(
        estimates, [estimates.of(one) for one in plain if one.zero < 3], refuted
    )
    fitting = (one for one in found if one.choice not in refuted)
    return min((one.seconds for one in fitting if one.memory <= capacity), default=math.inf)
