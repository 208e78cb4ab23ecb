"""The front of step time against peak memory: no plan of it is better than another in both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from costmodels.errors import InputError
from planner.joint.choices import computing_again
from planner.joint.estimate import Estimate, Estimates
from planner.joint.ranking import MEMORY_MARGIN
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.search import JointSearch
from planner.joint.verdict import infeasible, search_notes, summary
from planner.joint.wishes import NO_WISHES, Wishes
from planner.plan import Plan
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep, tried
from planner.planning.staged_plan import plan_of_stages
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


def front(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline | None = None,
    wishes: Wishes = NO_WISHES,
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

    Raises
    ------
    InfeasibleError
        When no plan that fits was found.
    """
    setting.check_reserve()
    if setting.cluster.groups:
        names = ", ".join(group.name for group in setting.cluster.groups)
        raise InputError(
            "a front of step time against memory must be of hosts of one kind but "
            f"{setting.cluster.name} has several, {names}; use the GPUs of one group, or --against "
            "gpus"
        )
    deadline = deadline or Deadline(options.time_limit)
    search = JointSearch(
        setting=setting,
        runtime=searched_runtime(setting),
        options=options,
        deadline=deadline,
        wishes=wishes,
    )
    found = search.look()
    if found.refused is not None:
        raise found.refused
    capacity = setting.cluster.device.memory
    trials: list[StagedStep] = []
    try:
        every = [*found.estimates]
        if wishes.leaves_some_again:
            every += partly_again(search.estimates, every, deadline)
        fitting = [one for one in every if one.memory <= capacity * (1.0 + MEMORY_MARGIN)]
        rows = spread_out(estimated_front(fitting), MOST_POINTS)
        timely = search.pace.timely(rows, capacity)
        if len(timely) < len(rows):
            found = replace(found, stopped_by=found.stopped_by or "time limit")
        for one in timely:
            late = not search.pace.allows(one.choice, len(trials) + 1)
            if trials and (late or found.stopped_by == "interrupt"):
                found = replace(found, stopped_by=found.stopped_by or "time limit")
                break
            runtime = choice_runtime(search.runtime, one.choice.zero)
            with search.pace.measured(one.choice):
                trial, _ = tried(setting, one.choice.degrees, runtime)
            if trial is not None:
                trials.append(trial)
                options.tell("simulating", trial.seconds, found.bound)
    except KeyboardInterrupt:
        found = replace(found, stopped_by="interrupt")
    points = undominated([one for one in trials if one.fits])
    if not points:
        raise infeasible(setting, replace(found, simulated=tuple(trials)))
    return [
        plan_of_stages(one, summary(found, one), notes=search_notes(found, one)) for one in points
    ]


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


def undominated(trials: Sequence[StagedStep]) -> list[StagedStep]:
    """Simulated strategies of which none is both faster and smaller, the fastest first."""
    found: list[StagedStep] = []
    for one in sorted(trials, key=lambda row: (row.seconds, row.peak_memory)):
        if not found or one.peak_memory < found[-1].peak_memory * (1.0 - APART):
            found.append(one)
    return found
