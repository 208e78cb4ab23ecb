"""What is cut over some of the ranks that hold a weight: gathered over near links, in more memory.

Known as hybrid sharding. Its gradients are reduced over those ranks, and summed up over the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from msgspec.structs import replace

from planner.joint.choices import Choice, divisors
from planner.joint.estimate import Estimate, Estimates
from planner.joint.exchanges import Exchanges
from planner.joint.fewer_again import fewest_again
from planner.joint.micro_batch import MicroBatch
from planner.planning.staged import StagedStep
from search.problem.deadline import NO_DEADLINE, Deadline

# Ways to train of which that is estimated, the fastest first: so many that cut weights, and so many
# that do not. [items]
MOST_REFINED = 64
# A step must gain more for state to be cut over some of its replicas: plans as fast are simpler.
# [parts]
WORTH_SHARDS = 1e-3


def judged(step: StagedStep | None) -> float:
    """What a step counts for beside others, +inf for none. [s]"""
    if step is None:
        return math.inf
    degrees = step.degrees
    some = degrees is not None and degrees.shard_size and degrees.sharding in (1, 2)
    return step.seconds * (1.0 + WORTH_SHARDS) if some else step.seconds


def shard_sizes(choice: Choice, inside: MicroBatch, exchanges: Exchanges) -> list[int]:
    """Numbers of ranks that shards may lie on, fewer than all of a weight, the most first. [items]

    Ranks that share weights are neighbours: all of a level before those of the next.

    Parameters
    ----------
    choice, inside
        A choice that cuts something over all that hold a weight, and what a micro-batch of it
        costs.
    exchanges
        Knows who these are.
    """
    if not choice.zero or choice.shard_size or choice.offload or not inside.cuts:
        return []
    numbers = inside.held[: len(inside.cuts)].sum(axis=1)
    below, found = 1, set[int]()
    for members in exchanges.group(choice.pp, inside.cuts[int(numbers.argmax())]):
        found.update(below * size for size in divisors(members))
        below *= members
    return sorted(found - {1, below}, reverse=True)


def with_fewer_shards(
    estimates: Estimates,
    ranked: Sequence[Estimate],
    *,
    partly: bool = False,
    deadline: Deadline = NO_DEADLINE,
) -> list[Estimate]:
    """Estimates with those of shards on fewer ranks, the fastest first.

    Parameters
    ----------
    estimates
        Makes them.
    ranked
        Those of all choices, the fastest first.
    partly
        Whether as many blocks are computed again as it takes to fit.
    deadline
        When to stop.
    """
    capacity, found = estimates.setting.cluster.device.memory, list(ranked)
    fitting = [one for one in ranked if one.memory <= capacity]
    best = min((one.seconds for one in fitting), default=math.inf)
    ways = [one.choice for one in fitting if one.choice.zero]
    # over all ranks, cut weights may be far slower than cut state, and over near ones as fast
    cut = [way for way in ways if way.zero > 2][:MOST_REFINED]
    cut += [way for way in ways if way.zero < 3][:MOST_REFINED]
    seen: set[Choice] = set()
    for choice in deadline.before(cut):
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        for size in shard_sizes(choice, inside, estimates.exchanges):
            other = estimates.of(replace(choice, shard_size=size))
            if other.memory <= capacity:
                new = [other]
            elif partly and other.seconds < best:
                new = _fitting_again(estimates, other.choice)
            else:
                new = []
            if not new:
                break  # fewer hold more
            found += [one for one in new if one.choice not in seen]
            seen.update(one.choice for one in new)
            best = min([best, *(one.seconds for one in new if one.memory <= capacity)])
    return sorted(found, key=lambda one: one.seconds)


def _fitting_again(estimates: Estimates, choice: Choice) -> list[Estimate]:
    """Estimates of a choice with as many blocks computed again as it takes to fit, if that helps.

    Parameters
    ----------
    estimates
        Makes them.
    choice
        Does not fit.
    """
    if estimates.most_again(choice) < 1:
        return []
    again = dataclasses.replace(choice.inside, recompute="full")
    full = estimates.of(replace(choice, inside=again, again=0))
    if full.memory > estimates.setting.cluster.device.memory:
        return []
    return [estimates.of(one) for one in fewest_again(estimates, full)]
