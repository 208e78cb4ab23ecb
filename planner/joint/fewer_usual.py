"""The usual ways to train on fewer GPUs, as far as no choice of the search stands for them."""

from __future__ import annotations

import math

from planner.joint.runtimes import searched_runtime, stages_of_zero
from planner.joint.wishes import Wishes
from planner.planning.usual import usual_degrees, usual_trials
from planner.request.named_degrees import usual_runtime
from planner.request.setting import Setting
from search.problem.deadline import Deadline


def fastest_usual(
    part: Setting, every: Setting, wishes: Wishes, deadline: Deadline, *, attends: bool
) -> float:
    """The fastest usual way with a runtime of its own, which no choice stands for. [s]

    Of networks without attention those are no part of what is searched for, but where shares of
    the batch are not equal: no choice has those.

    Parameters
    ----------
    part, every
        The question on fewer GPUs, and on all of them.
    wishes, deadline
        What is held fixed or ruled out, and when to stop.
    attends
        Whether the network has attention.
    """
    uneven = part.batch % part.gpus > 0
    alike = not attends or part.asked_runtime is not None
    if (alike and not uneven) or (uneven and not _is_least_for_its_share(part, every.gpus)):
        return math.inf
    apart = {
        name: degrees
        for name, degrees in usual_degrees(part, stages_of_zero(part)).items()
        if (uneven and degrees.tp == 1) or usual_runtime(name, degrees) is not None
        if wishes.allows_usual(part, degrees)
    }
    under_one = part.asked_runtime is not None
    rows = usual_trials(part, searched_runtime(part), deadline, apart, under_one=under_one)
    steps = (one.step for one in rows if one.step is not None and one.step.fits)
    return min((step.seconds for step in steps), default=math.inf)


def _is_least_for_its_share(part: Setting, gpus: int) -> bool:
    """Whether fewer have a larger share of a batch that all of them cannot have equally.

    Parameters
    ----------
    part
        The question on fewer GPUs.
    gpus
        All of them. [items]
    """
    batch, usable = part.batch, filter(part.cluster.can_use, range(part.gpus - 1, 0, -1))
    if batch % gpus == 0 or batch < part.gpus:
        return False
    return -(-batch // part.gpus) < -(-batch // next(usable, 1))
