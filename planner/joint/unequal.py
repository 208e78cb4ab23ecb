"""Stages of several chunks with unequally many blocks, where equal ones leave a group behind.

The last stage has the head beside its blocks: of equal stages its group is the slowest of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from planner.joint.choices import Choice
from planner.joint.estimate import HOPELESS, Estimate, Estimates
from planner.joint.ranking import MARGIN
from search.problem.deadline import NO_DEADLINE, Deadline

# Ways to train of which that is estimated, the fastest first. [items]
MOST_REFINED = 64


def cuts_of(estimates: Estimates, choice: Choice) -> list[tuple[int, ...]]:
    """The first layers of the stages of several chunks, for each way that these are cut.

    Parameters
    ----------
    estimates
        Cuts them.
    choice
        The choice, whatever numbers of blocks it says.
    """
    cuts = estimates.cuts
    inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
    found = [cuts.starts(choice.parts, work=inside.balance)] if cuts.divides(choice.parts) else []
    if cuts.first and not cuts.by_shares and choice.parts < len(cuts.pieces):
        blocks = estimates.balanced(choice, inside).blocks
        if not found or len(set(blocks)) > 1:
            found.append(cuts.starts(choice.parts, blocks))
    return found


def with_unequal_stages(
    estimates: Estimates, ranked: Sequence[Estimate], deadline: Deadline = NO_DEADLINE
) -> list[Estimate]:
    """Estimates with those of stages that balance their work, the fastest first.

    Parameters
    ----------
    estimates
        Makes them.
    ranked
        Those of all choices, the fastest first.
    deadline
        When to stop.
    """
    cuts = estimates.cuts
    if not cuts.first or cuts.by_shares:
        return list(ranked)
    capacity, found = estimates.setting.cluster.device.memory, list(ranked)
    best = min((one.seconds for one in ranked if one.memory <= capacity), default=math.inf)
    alike = (
        one.choice
        for one in ranked
        if one.choice.chunks > 1
        and not one.choice.blocks
        and one.memory <= capacity * (1.0 + HOPELESS)
    )
    near = (
        choice
        for choice in deadline.before(alike)
        if estimates.least(choice) <= best * (1.0 + MARGIN)
    )
    for choice in islice(near, MOST_REFINED):
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        other = estimates.balanced(choice, inside)
        if len(set(other.blocks)) > 1:
            found.append(estimates.of(other))
    return sorted(found, key=lambda one: one.seconds)
