"""Plans of what searches came to: the faster of two, with a bound of both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.strategy.blocks import is_transformer
from costmodels.units import format_seconds
from planner.errors import InfeasibleError, detached
from planner.joint.result import JointResult
from planner.joint.verdict import infeasible, search_notes, summary
from planner.notes import words
from planner.plan import Finalist, Plan
from planner.planning.decision.choice import EQUAL
from planner.planning.staged import StagedStep
from planner.planning.staged_plan import plan_of_stages
from planner.planning.summary import bounded
from planner.planning.usual import UsualTrial
from planner.request.setting import Setting
from search.problem.notes import Note


def plan_or_error(
    setting: Setting,
    found: JointResult,
    usual: Sequence[UsualTrial],
    single: Plan | None,
    crowded: str = "",
) -> Plan | InfeasibleError:
    """The faster of two plans, or why there is neither.

    Parameters
    ----------
    setting, found, usual, single, crowded
        As of `faster_plan`.
    """
    try:
        return faster_plan(setting, found, usual, single, crowded)
    except InfeasibleError as error:
        return detached(error)


def faster_plan(
    setting: Setting,
    found: JointResult,
    usual: Sequence[UsualTrial],
    single: Plan | None,
    crowded: str = "",
) -> Plan:
    """The faster of two plans, with a bound of both.

    Parameters
    ----------
    setting
        The question.
    found, usual
        What the search came to, and the usual ways to train.
    single
        The plan of one stage without micro-batches, where there is one.
    crowded
        The layer that holds the most where no split of one stage layer by layer fits.

    Raises
    ------
    InfeasibleError
        When there is neither.
    """
    best = found.best
    if single is not None and (best is None or single.step_time_s <= best.seconds):
        return joint_single(single, found)
    if best is None:
        raise infeasible(setting, found, crowded)
    rows = [one.baseline for one in usual]
    if single is not None:
        found = replace(found, bound=min(found.bound, single.search.lower_bound_s))
    if single is not None and not is_transformer(setting.graph):
        # the usual strategies of such networks, under the buckets that suit them
        known = {one.name for one in single.baselines}
        rows = [*single.baselines, *(row for row in rows if row.name not in known)]
    return plan_of_stages(
        best,
        summary(found, best),
        notes=search_notes(found, best),
        baselines=tuple(rows),
        finalists=_finalists(found, best),
    )


def joint_single(single: Plan, found: JointResult) -> Plan:
    """A plan of one stage as the answer over all ways to train: no bound above theirs holds."""
    plan = stopped_plan(bounded(single, found.bound), found.stopped_by)
    said, others = plan.fallbacks, [one.seconds for one in found.every_step if one.fits]
    least = min(others, default=math.inf)
    if least * (1.0 + EQUAL) < plan.step_time_s:
        gain = 1.0 - least / plan.step_time_s
        note = Note.of("splits-are-simpler", seconds=format_seconds(least), gain=gain)
        said = (*said, words(note))
    search = replace(plan.search, num_choices=found.num_choices)
    return dataclasses.replace(plan, search=search, fallbacks=said)


def stopped_plan(plan: Plan, stopped_by: str) -> Plan:
    """A plan the search for which was cut short, if it was, unless it says so already."""
    if plan.search.stopped_by or not stopped_by:
        return plan
    said = words(Note.of("search-stopped", reason=stopped_by))
    search = replace(plan.search, stopped_by=stopped_by)
    return dataclasses.replace(plan, search=search, fallbacks=(*plan.fallbacks, said))


def with_usual(found: JointResult, usual: Sequence[UsualTrial]) -> JointResult:
    """What was found, or a usual way to train where that is faster than its estimate let expect."""
    steps = tuple(one.step for one in usual if one.step is not None)
    rivals = [one for one in (found.best, *steps) if one is not None and one.fits]
    best = min(rivals, key=lambda one: one.seconds, default=None)
    # the usual ways are part of what is asked, and known exactly
    bound = min([found.bound, *(one.seconds for one in rivals)])
    return replace(found, best=best, bound=bound, simulated=(*found.simulated, *steps))


def _finalists(found: JointResult, best: StagedStep) -> tuple[Finalist, ...]:
    rows = sorted((one for one in found.every_step if one.fits), key=lambda one: one.seconds)
    return tuple(
        Finalist(step_time_s=one.seconds, peak_memory_bytes=one.peak_memory, chosen=one is best)
        for one in rows
    )


def left_idle(plan: Plan, idle: int, other: Plan | InfeasibleError) -> Plan:
    """A plan that leaves GPUs without work, with a bound of what was asked for besides.

    Parameters
    ----------
    plan, idle
        The plan, and how many it leaves.
    other
        That of more GPUs, or why there was none.
    """
    if isinstance(other, Plan):
        plan = bounded_by(plan, other)
        # others are compared with as they are on all GPUs, if any can use them
        if any(one.step_time_s for one in other.baselines):
            plan = dataclasses.replace(plan, baselines=other.baselines)
    return dataclasses.replace(plan, idle_gpus=idle)


def bounded_by(plan: Plan, other: Plan) -> Plan:
    """A plan with a bound that holds for what another one is the answer to as well."""
    found = bounded(plan, other.search.lower_bound_s)
    choices = plan.search.num_choices + other.search.num_choices
    return dataclasses.replace(found, search=replace(found.search, num_choices=choices))
