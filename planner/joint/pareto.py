"""The front of step time against peak memory: no plan of it is better than another in both."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from costmodels.errors import InputError
from planner.joint.choices import Choice, computing_again
from planner.joint.estimate import Estimate, Estimates
from planner.joint.offload import most_waiting, offloaded
from planner.joint.offloading import may_offload
from planner.joint.other_runtime import has_other, search_under_other
from planner.joint.plans import stopped_plan
from planner.joint.ranking import most_estimated
from planner.joint.result import JointResult
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.search import JointSearch
from planner.joint.verdict import infeasible, search_notes, summary
from planner.joint.weights import LeastWeights
from planner.joint.wishes import NO_WISHES, Wishes
from planner.plan import Plan
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep, tried
from planner.planning.staged_plan import plan_of_stages
from planner.planning.summary import bounded
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Points of a front that are simulated: a reader compares no more. [items]
MOST_POINTS = 12
# Nobody trains several times as long to save what is left then. [times the fastest]
SLOWEST = 4.0
# Parts of the blocks of a stage that are tried to be computed again. [items]
PARTS_AGAIN = 4
# Points closer to each other than that in both are one. [parts]
APART = 0.01

Point = TypeVar("Point")


def front(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline | None = None,
    wishes: Wishes = NO_WISHES,
    fastest: Plan | None = None,
) -> list[Plan]:
    """The front of a question, the fastest plan first, each with less memory than the one before.

    Parameters
    ----------
    setting
        The question; what needs more than the memory of its devices is left out.
    options
        How to search.
    deadline
        When the front must be there; by default after the time limit from now.
    wishes
        What is held fixed or ruled out.
    fastest
        The answer to the question without regard to memory, where there is one.

    Raises
    ------
    InfeasibleError
        When no plan that fits was found.
    """
    deadline = deadline or Deadline(options.time_limit)
    asked = setting, options, deadline, wishes
    usual = JointSearch(
        setting=setting,
        runtime=searched_runtime(setting),
        options=options,
        deadline=deadline,
        wishes=wishes,
    )
    searches = [usual, *([search_under_other(*asked)] if has_other(setting, wishes) else [])]
    found, of_search = _looked(searches)
    if found.refused is not None:
        raise found.refused
    trials: list[StagedStep] = []
    try:
        found = _simulate_points(found, of_search, deadline, trials)
    except KeyboardInterrupt:
        found = replace(found, stopped_by="interrupt")
    points = none_better(
        [one for one in trials if one.fits], lambda one: (one.seconds, one.peak_memory)
    )
    if fastest is None and not points:
        raise infeasible(setting, replace(found, simulated=tuple(trials)))
    plans = [
        plan_of_stages(one, summary(found, one), notes=search_notes(found, one)) for one in points
    ]
    if fastest is None:
        return plans
    bound = fastest.search.lower_bound_s
    fastest = stopped_plan(bounded(fastest, found.bound), found.stopped_by)
    plans = [fastest, *(bounded(one, bound) for one in plans)]
    kept = none_better(plans, lambda one: (one.step_time_s, one.peak_memory))
    return [one for one in kept if one.step_time_s <= SLOWEST * fastest.step_time_s]


def _looked(
    searches: Sequence[JointSearch],
) -> tuple[JointResult, dict[JointSearch, list[Estimate]]]:
    """What searches of one question come to together, and what each of them estimates."""
    of_search: dict[JointSearch, list[Estimate]] = {}
    found: JointResult | None = None
    for search in searches:
        if found is not None and found.stopped_by:
            break
        other = search.look()
        of_search[search] = list(other.estimates)
        found = other if found is None else found.beside(other)
    assert found is not None
    return found, of_search


def _simulate_points(
    found: JointResult,
    of_search: dict[JointSearch, list[Estimate]],
    deadline: Deadline,
    trials: list[StagedStep],
) -> JointResult:
    """Simulate the front of what was estimated.

    Parameters
    ----------
    found, of_search
        As of `_looked`.
    deadline
        After which there are no more of those.
    trials
        To which steps are added.

    Returns
    -------
    What the searches came to, with what cut it short.
    """
    search_of = {one: search for search, rows in of_search.items() for one in rows}
    for search, rows in of_search.items():
        if search.wishes.leaves_some_again:
            more = partly_again(search.estimates, rows, deadline)
            search_of.update(dict.fromkeys(more, search))
    first = next(iter(of_search))
    pace, capacity = first.pace, first.setting.cluster.device.memory
    room = most_estimated(first.estimates)
    longest = SLOWEST * min(
        (one.seconds for one in search_of if one.memory <= room), default=math.inf
    )
    for search, rows in of_search.items():
        if may_offload(search.setting, search.wishes):
            more = in_hosts(search, rows, longest, deadline)
            search_of.update(dict.fromkeys(more, search))
    fitting = [one for one in search_of if one.memory <= room]
    rows = spread_out(estimated_front(fitting), MOST_POINTS)
    timely = pace.timely(rows, capacity)
    if len(timely) < len(rows):
        found = replace(found, stopped_by=found.stopped_by or "time limit")
    for one in timely:
        late = not pace.allows(one.choice, len(trials) + 1)
        if trials and (late or found.stopped_by == "interrupt"):
            return replace(found, stopped_by=found.stopped_by or "time limit")
        search = search_of[one]
        runtime = choice_runtime(search.runtime, one.choice.zero)
        with pace.measured(one.choice):
            trial, _ = tried(search.setting, one.choice.degrees, runtime)
        if trial is not None:
            trials.append(trial)
            search.options.tell("simulating", trial.seconds, found.bound)
    return found


def partly_again(
    estimates: Estimates, rows: Sequence[Estimate], deadline: Deadline
) -> Iterator[Estimate]:
    """Choices of which some blocks are computed again, where that may be a point of the front.

    A quarter, half and three quarters of the blocks of the fullest stage.

    Parameters
    ----------
    estimates, rows
        Of choices of which no block is, or every one.
    deadline
        After which there are no more.
    """
    points = estimated_front(rows)
    known = {one.choice: one for one in rows}
    for one in rows:
        choice = one.choice
        if choice.inside.recompute != "full" or choice.again or deadline.passed:
            continue
        # it takes no less than with nothing computed again, and holds no less than with all
        kept = known.get(replace(choice, inside=computing_again(choice.inside, "none")))
        least = 0.0 if kept is None else kept.seconds
        if any(point.seconds <= least and point.memory <= one.memory for point in points):
            continue
        most = estimates.most_again(choice)
        for count in sorted({most * part // PARTS_AGAIN for part in range(1, PARTS_AGAIN)} - {0}):
            yield estimates.of(replace(choice, again=count))


def in_hosts(
    search: JointSearch, rows: Sequence[Estimate], longest: float, deadline: Deadline
) -> Iterator[Estimate]:
    """Choices with some of them in the memory of the hosts, where that may be a point of the front.

    All of every choice waits there first. Less of it matters of those of which no other one is
    faster and smaller, both with nothing and with all of it in the hosts.

    Parameters
    ----------
    search
        Of the choices.
    rows
        What it estimated without.
    longest
        Steps that take longer do not matter. [s]
    deadline
        After which there are no more.
    """
    estimates, weights = search.estimates, LeastWeights(search.setting)
    alone: dict[Choice, Estimate] = {}
    least_of = defaultdict[tuple[object, ...], float](lambda: math.inf)
    for one in sorted(rows, key=lambda row: row.seconds):
        if one.choice.again or one.seconds > longest:
            continue
        # what lies on devices in the same way copies the same, as often as it has micro-batches
        alike = one.choice.layout, one.choice.micro_batches
        if one.memory < least_of[alike]:
            least_of[alike], alone[one.choice] = one.memory, one
    waiting = (one for one in search.heavy if weights.fit(one, most_waiting(one)))
    heavy = (one for one in waiting if search.floors.floor(one) < longest)
    costs: dict[Choice, tuple[float, ...]] = {}
    for choice in itertools.chain(alone, heavy):
        if deadline.passed:
            break
        with suppress(InputError):  # heavy ones were not tried before
            all_of_it = estimates.of(replace(choice, offload=most_waiting(choice)))
            one = alone.get(choice, replace(all_of_it, memory=math.inf))
            costs[choice] = one.seconds, one.memory, all_of_it.seconds, all_of_it.memory
    table = np.array([*costs.values()])
    for choice, cost in costs.items():
        if deadline.passed:
            return
        better = (table <= cost).all(axis=1) & (table < cost).any(axis=1)
        if not better.any():
            yield from map(estimates.of, offloaded(choice))


def estimated_front(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Those of which none is both faster and smaller than another, the fastest first."""
    found: list[Estimate] = []
    for one in sorted(estimates, key=lambda row: (row.seconds, row.memory)):
        if found and one.seconds > SLOWEST * found[0].seconds:
            break
        if not found or one.memory < found[-1].memory * (1.0 - APART):
            found.append(one)
    return found


def spread_out(rows: Sequence[Estimate], most: int) -> list[Estimate]:
    """As many of a front, the ends included: without those that others stand in for the best.

    What a point is worth are the times and memory, by their logarithms, that suffice for it and for
    no other point.
    """
    found = list(rows)
    while len(found) > max(most, 2):
        worth = [
            math.log(after.seconds / one.seconds) * math.log(before.memory / one.memory)
            for before, one, after in zip(found, found[1:], found[2:], strict=False)
        ]
        del found[worth.index(min(worth)) + 1]
    return found


def none_better(
    points: Sequence[Point], cost: Callable[[Point], tuple[float, float]]
) -> list[Point]:
    """Those of which none is both faster and smaller than another, the fastest first.

    Parameters
    ----------
    points
        Of a front.
    cost
        The step and the peak memory of a point. [s], [B]
    """
    found: list[Point] = []
    for one in sorted(points, key=cost):
        if not found or cost(one)[1] < cost(found[-1])[1] * (1.0 - APART):
            found.append(one)
    return found
