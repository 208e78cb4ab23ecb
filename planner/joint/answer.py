"""The answer to a question over the whole joint space: pipelines beside the splits of one stage."""

from __future__ import annotations

import math
from functools import cache, partial

from msgspec.structs import replace

from costmodels.strategy.blocks import is_transformer
from planner.errors import ConflictError, InfeasibleError
from planner.joint.activations import LeastOfStages
from planner.joint.fewer_by_splits import FewerBySplits
from planner.joint.fewer_gpus import FewerGpus
from planner.joint.interrupted import run_or_hurry
from planner.joint.known_splits import NO_SPLITS, KnownSplits
from planner.joint.mixed import MixedSearch
from planner.joint.other_runtime import has_other, with_other_runtime
from planner.joint.plans import plan_or_error, stopped_plan, with_usual
from planner.joint.result import JointResult
from planner.joint.runtimes import refuse_by_layer, searched_runtime, splits_by_layer
from planner.joint.search import JointSearch
from planner.joint.splits_alone import fits_as_usual, is_too_late, plan_of_splits
from planner.joint.verdict import (
    left_splits,
    unproven_splits,
    usual_of,
)
from planner.joint.wishes import NO_WISHES, Wishes
from planner.joint.with_own_splits import may_differ, with_own_splits
from planner.plan import Plan
from planner.planning.answer import Answers
from planner.planning.optimize import plan_for
from planner.planning.options import Overtaken, SearchOptions, Watch
from planner.planning.usual import UsualTrial, usual_trials
from planner.request.setting import Setting
from planner.simulation.garbage import uncollected
from search.problem.deadline import Deadline

# Part of the time limit that the search over global choices may take, and the part of that which
# the usual runtimes may, where weights that are cut are searched under another one as well: of six
# questions under limits on memory with 23 s five were answered better so (2026-11-30).
SHARE, USUAL_SHARE = 0.5, 0.6


def joint_plan(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline | None = None,
    known: Answers | None = None,
    wishes: Wishes = NO_WISHES,
) -> Plan:
    """The fastest plan that fits in memory, of one stage or of several.

    Splits of one stage are searched layer by layer, and all else beside them: of transformers
    first, of other networks as far as it can be faster by more than a simpler plan is worth.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    deadline
        When the plan must be there; by default after the time limit from now.
    known
        Answers to the same question for fewer devices.
    wishes
        What is held fixed or ruled out.

    Raises
    ------
    ContradictionError
        When what is held fixed leaves nothing of the space, nor of that of fewer GPUs.
    InfeasibleError
        When no plan that fits was found, whether or not that is proven.
    """
    deadline = deadline or Deadline(options.time_limit)
    one_stage = options.least_memory or options.dump_problem is not None
    by_layer = splits_by_layer(setting)
    if by_layer and (wishes.splits_alone or (not wishes.any and one_stage)):
        in_one = wishes.framework is not None
        part = wishes.with_splits_left(setting)
        return plan_of_splits(part, options, deadline, known, one_mesh=in_one)
    if not by_layer:
        refuse_by_layer(setting, options, wishes)
    if one_stage and setting.gpus > 1:
        raise ConflictError(
            "--least-memory and --dump-problem are of the splits of one stage, of which --keep and "
            "--forbid must leave nothing else; forbid pipeline,accumulation,sharding,recompute"
        )
    if setting.cluster.groups:
        with uncollected():
            return MixedSearch(
                setting=setting,
                options=options,
                deadline=deadline,
                wishes=wishes,
                on_one_kind=lambda part: joint_plan(part, options, deadline, wishes=wishes),
            ).run()
    setting.check_reserve()
    with uncollected():
        return _joint_plan(setting, options, deadline, known, wishes)


def _joint_plan(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    known: Answers | None,
    wishes: Wishes,
) -> Plan:
    """The plan of a question that is not about the splits of one stage alone.

    Parameters
    ----------
    setting, options, deadline, known, wishes
        As of `joint_plan`.
    """
    by_layer = splits_by_layer(setting) and wishes.leaves_splits
    how = _splits_first if by_layer and not is_transformer(setting.graph) else _plan_of_all
    asked = partial(how, deadline=deadline, known=known, wishes=wishes)
    found, plan = asked(setting, options)
    if found is None:
        assert isinstance(plan, Plan), "where nothing else was searched, splits were found"
        return plan
    if isinstance(plan, InfeasibleError) and (plan.proven or plan.stopped_by):
        raise found.refused or plan
    if found.costs is not None and found.floors is not None and found.stopped_by != "interrupt":
        by_splits = FewerBySplits(
            unfinished=how is _splits_first and found.no_splits is not None,
            needed=any(not one.fits for one in found.own_splits),
            repeated=isinstance(plan, Plan) and _repeats_work(plan),
            uneven=how is _plan_of_all and by_layer and setting.batch % setting.gpus > 0,
        )
        hosts = isinstance(plan, InfeasibleError) or found.waits_in_hosts
        fewer = FewerGpus(setting, wishes, found.costs, found.floors, deadline, by_splits, hosts)
        bound = plan.search.lower_bound_s if isinstance(plan, Plan) else 0.0
        beside = replace(options, watch=_with_bound(options.watch, bound))
        plan = fewer.faster_plan(
            plan, lambda part, limit: asked(part, replace(beside, limit=limit), like=found)[1]
        )
        if isinstance(plan, InfeasibleError) and found.refused is not None:
            raise fewer.none_fits(found.refused)
    if isinstance(plan, InfeasibleError):
        raise found.refused or plan
    return plan


def _repeats_work(plan: Plan) -> bool:
    """Whether GPUs compute what others do most of the time."""
    layers = plan.layers.values()
    twice = (one for one in layers if one.distribution.replication > 1)
    return 2.0 * sum(one.time for one in twice) > sum(one.time for one in layers)


def _with_bound(watch: Watch | None, bound: float) -> Watch | None:
    """What watches a question of which another bound is known than those that are told. [s]"""
    return None if watch is None else lambda phase, step, _: watch(phase, step, bound)


def _plan_of_all(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    known: Answers | None,
    wishes: Wishes,
    like: JointResult | None = None,
) -> tuple[JointResult, Plan | InfeasibleError]:
    """The plan that gives work to all GPUs, or why there is none, and the search behind it.

    Parameters
    ----------
    setting, options, deadline, known, wishes
        As of `joint_plan`.
    like
        What the same question came to on another number of GPUs, with what that costed.
    """
    by_layer = splits_by_layer(setting) and wishes.leaves_splits
    limited = by_layer and deadline.remaining < math.inf
    splits = limited and LeastOfStages(setting).fits_in_one_stage(1, "none")
    found, usual = _searched(
        setting,
        options,
        deadline.part(SHARE) if splits else deadline,
        wishes,
        until=deadline,
        like=like,
    )
    single = None
    if wishes.leaves_splits and found.stopped_by != "interrupt":
        found = left_splits(setting, found, options.limit)
    if by_layer and found.stopped_by != "interrupt" and found.no_splits is None:
        part = wishes.with_splits_left(setting)
        single, found = _single_stage(part, options, deadline, known, found)
    return found, plan_or_error(setting, found, usual, single)


def _single_stage(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    known: Answers | None,
    found: JointResult,
) -> tuple[Plan | None, JointResult]:
    """The splits of one stage layer by layer, None where they hold nothing faster.

    Parameters
    ----------
    setting, options, deadline, known
        As of `joint_plan`.
    found
        What all else came to.

    Returns
    -------
    The plan, and what all else came to, with what is said of the splits.
    """
    if found.best is not None:
        options = replace(options, limit=min(options.limit, found.best.seconds))
    single = None
    try:
        single = plan_for(setting, options, deadline, known)
        cut_short = single.search.stopped_by
    except Overtaken as error:
        return None, found.without_splits(error.note, error.bound)
    except InfeasibleError as error:
        # that no split fits says nothing of micro-batches, sharding and recomputation
        cut_short = error.stopped_by
        found = found if error.proven else unproven_splits(found)
    return single, replace(found, stopped_by=found.stopped_by or cut_short)


def _splits_first(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    known: Answers | None,
    wishes: Wishes,
    like: JointResult | None = None,
) -> tuple[JointResult | None, Plan | InfeasibleError]:
    """As `_plan_of_all`, of a network without attention: its splits first, and all else then.

    Parameters
    ----------
    setting, options, deadline, known, wishes, like
        As of `_plan_of_all`.

    Returns
    -------
    The search behind the plan is None where only splits were searched.
    """
    single, proven, early, least = None, False, deadline, LeastOfStages(setting)
    searched = partial(_searched, setting, options, deadline, wishes, until=deadline, like=like)
    others = cache(partial(searched, splits=KnownSplits.limited(options.limit)))

    def rival() -> float:
        found, _ = others()
        if found.stopped_by == "interrupt":
            raise KeyboardInterrupt
        return math.inf if found.best is None else found.best.seconds

    if deadline.remaining == math.inf:
        options = replace(options, rival=rival)
    elif not fits_as_usual(setting, deadline):
        early = deadline.part(SHARE)
    crowded, cut_short = least.fullest_layer, ""
    try:
        if least.fits_in_one_stage(1, "none"):
            single = plan_for(setting, options, early, known)
    except Overtaken as error:
        found, usual = others()
        found = found.without_splits(error.note, error.bound)
        return found, plan_or_error(setting, found, usual, None)
    except InfeasibleError as error:
        if error.stopped_by == "interrupt" or (error.stopped_by and is_too_late(setting, deadline)):
            raise
        crowded, proven, cut_short = error.layer, error.proven, error.stopped_by
    if single is not None and single.search.stopped_by == "interrupt":
        return None, single
    if single is not None and not single.search.memory_binds:
        if single.search.stopped_by and early is deadline:
            return None, single  # there is no time left for others
        try:
            found, usual = searched(splits=KnownSplits.of(single))
        except KeyboardInterrupt:
            return None, stopped_plan(single, "interrupt")
        return found, plan_or_error(setting, found, usual, single)
    found, usual = others()
    if not least.fits_in_one_stage(1, "none"):
        found = left_splits(setting, found)
    elif single is None and not proven:
        found = unproven_splits(found)
    found = replace(found, stopped_by=found.stopped_by or cut_short)
    return found, plan_or_error(setting, found, usual, single, crowded)


def _searched(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    wishes: Wishes,
    *,
    until: Deadline,
    splits: KnownSplits = NO_SPLITS,
    like: JointResult | None = None,
) -> tuple[JointResult, tuple[UsualTrial, ...]]:
    """What the search over global choices comes to, and the usual ways to train beside it.

    Parameters
    ----------
    setting, options, wishes
        As of `joint_plan`.
    deadline, until
        When the search, and when the comparison is to be there.
    splits, like
        Splits of one stage that are known, and as of `_plan_of_all`.
    """
    known = splits if splits.distributions else NO_SPLITS
    options.tell("estimating pipelines", known.step, known.bound if known.any else 0.0)
    limited, of_own = deadline.remaining < math.inf, may_differ(setting, wishes)
    others_follow = limited and (of_own or has_other(setting, wishes))
    search = JointSearch(
        setting=setting,
        runtime=searched_runtime(setting),
        options=options,
        deadline=deadline.part(USUAL_SHARE) if others_follow else deadline,
        wishes=wishes,
        splits=splits,
        like=like,
    )
    found = run_or_hurry(search)
    if found.stopped_by == "interrupt":
        until = Deadline(0.0)  # who interrupts does not wait for comparisons
    if splits.any:
        found = with_own_splits(search, found, until.part(SHARE) if limited else until)
        if found.best is None:
            # splits that are known are compared already
            return with_other_runtime(search, until, found), ()
    until = until.earlier(search.pace.assembly)
    named, usual = usual_of(setting, found), tuple[UsualTrial, ...]()
    is_wished = partial(wishes.allows_usual, setting)
    if found.refused:  # nothing else is as wished, with which all of them would be compared
        named = {name: degrees for name, degrees in named.items() if is_wished(degrees)}
    try:
        usual = usual_trials(
            setting,
            search.runtime,
            until,
            named,
            under_one=setting.asked_runtime is not None,
            known=search.simulations.known,
        )
    except KeyboardInterrupt:
        found = replace(found, stopped_by="interrupt")
    found = with_usual(found, [one for one in usual if is_wished(one.degrees)])
    own_follow = limited and of_own and not splits.any
    found = with_other_runtime(search, until.part(SHARE) if own_follow else until, found)
    return found if splits.any else with_own_splits(search, found, until), usual
