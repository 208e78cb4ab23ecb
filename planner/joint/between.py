"""Points of a front that answer its question under limits on memory.

What is estimated for a front splits all layers alike. Where each layer can be split in its own way,
far faster plans may need no more memory, and a search under a limit finds them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec import Struct

from planner.errors import InfeasibleError
from planner.joint.pareto import SLOWEST, none_better
from planner.joint.plans import stopped_plan
from planner.plan import Plan
from search.problem.deadline import Deadline

# Limits that are asked for: each takes as long as a question of its own. [items]
MOST_ASKED = 8
# What a gap between two points is worth is their ratio of times by that of memory, as logarithms.
LEAST_WORTH = 0.05
# Below the least point, what is left of what it has beside what frameworks reserve. [parts]
NEXT_BELOW = 0.85
# Limits are whole numbers of these, so that they can be asked for again. [B]
UNIT = 2.0**20


class KnownPoint(Struct, frozen=True):
    """A point, and the most memory with which nothing faster was found, None if none was asked."""

    plan: Plan
    limit: float | None = None


def filled(
    points: Sequence[Plan], ask: Callable[[float], Plan], reserved: float, deadline: Deadline
) -> list[Plan]:
    """A front with answers under limits, first with as much as its least point has.

    Parameters
    ----------
    points
        The front, the fastest first, which is an answer without regard to memory.
    ask
        The answer under a limit [B], or raises an InfeasibleError.
    reserved
        What frameworks hold of every device. [B]
    deadline
        When the front must be there.

    Returns
    -------
    The front, the fastest of which says what cut the search short, if anything did.
    """
    known = [KnownPoint(points[0], math.inf), *map(KnownPoint, points[1:])]
    longest, stopped = 0.0, ""
    limit = _next_limit(known, reserved)
    if len(known) > 1:
        limit = UNIT * math.ceil(known[-1].plan.peak_memory / UNIT)
    for _ in range(MOST_ASKED):
        if limit is None or stopped:
            break
        if deadline.remaining <= longest:
            stopped = "time limit"
            break
        began = time.monotonic()
        try:
            found = ask(limit)
        except InfeasibleError as error:
            stopped = error.stopped_by
            if limit < known[-1].plan.peak_memory:
                break
            known = _without_answer(known, limit)
        else:
            stopped = found.search.stopped_by
            known = _with_answer(known, limit, found)
        longest = max(longest, time.monotonic() - began)
        limit = _next_limit(known, reserved)
    plans = [one.plan for one in known]
    return [stopped_plan(plans[0], stopped), *plans[1:]]


def _next_limit(known: Sequence[KnownPoint], reserved: float) -> float | None:
    """The limit that is asked for next: in the widest gap, or else below the least point.

    A gap is what may be between two answers under limits, whatever points by degrees are there.

    Parameters
    ----------
    known, reserved
        Points, and as of `filled`.
    """
    worth, limit = LEAST_WORTH, None
    area, first = 0.0, known[0]
    for before, one in pairwise(known):
        if before.limit is not None:
            area, first = 0.0, before
        high = before.plan.peak_memory - reserved
        low = (one.limit or one.plan.peak_memory) - reserved
        if 0.0 < low < high:
            # nothing is known to be slower than the last one that was asked for
            slower = math.log(one.plan.step_time_s / first.plan.step_time_s)
            area += slower * math.log(high / low)
        if area > worth and low > 0.0:
            most = first.plan.peak_memory - reserved
            worth, limit = area, reserved + math.sqrt(most * low)
    last = known[-1]
    fastest = known[0].plan.step_time_s
    if limit is None and last.limit is not None and last.plan.step_time_s < SLOWEST * fastest:
        limit = reserved + NEXT_BELOW * (last.plan.peak_memory - reserved)
    return None if limit is None else UNIT * math.floor(limit / UNIT)


def _with_answer(known: Sequence[KnownPoint], limit: float, found: Plan) -> list[KnownPoint]:
    """Points with what was found under a limit.

    Parameters
    ----------
    known, limit, found
        Points, the limit [B] and its answer.
    """
    slower = next((one for one in known if one.plan.peak_memory <= limit), None)
    if slower is not None and slower.plan.step_time_s <= found.step_time_s:
        return _without_answer(known, limit)
    points = [*known, KnownPoint(found, limit)]
    return none_better(points, lambda one: (one.plan.step_time_s, one.plan.peak_memory))


def _without_answer(known: Sequence[KnownPoint], limit: float) -> list[KnownPoint]:
    """Points of which the fastest within a limit [B] is known to have none that is faster."""
    fastest = next(one for one in known if one.plan.peak_memory <= limit)
    return [KnownPoint(one.plan, limit) if one is fastest else one for one in known]
