"""Weights that are cut, under another runtime than the usual one of such steps."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.simulation import load_runtime
from planner.joint.interrupted import run_or_hurry
from planner.joint.known_splits import NO_SPLITS, KnownSplits
from planner.joint.result import JointResult
from planner.joint.search import JointSearch
from planner.joint.wishes import Wishes
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Gathers weights sooner and in other pieces than the usual one: which is faster depends.
OTHER = "zero3"
_CUT = 3
# Steps took up to 8 % less under it: so much slower the fastest under the usual one may be.
NEAR = 0.1


def search_under_other(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    wishes: Wishes,
    splits: KnownSplits = NO_SPLITS,
) -> JointSearch:
    """The search over what cuts weights, under the other runtime.

    Parameters
    ----------
    setting, options, deadline, wishes, splits
        As of `planner.joint.search.JointSearch`, under no runtime.
    """
    runtime = load_runtime(OTHER)
    return JointSearch(
        setting=setting.under(runtime),
        runtime=runtime,
        options=options,
        deadline=deadline,
        wishes=replace(wishes, keep={**wishes.keep, "zero": _CUT}),
        splits=splits,
    )


def has_other(setting: Setting, wishes: Wishes) -> bool:
    """Whether steps that cut weights are searched under the other runtime at all."""
    free = setting.asked_runtime is None and wishes.framework is None
    return free and wishes.keep.get("zero", _CUT) == _CUT and "sharding" not in wishes.forbid


def _may_cut_weights(setting: Setting, found: JointResult, best: StagedStep) -> bool:
    """Whether the best, or what is estimated to be about as fast, cuts weights."""
    if best.degrees is not None and best.degrees.sharding == _CUT:
        return True
    room, limit = setting.cluster.device.memory, best.seconds * (1.0 + NEAR)
    cut = (one for one in found.estimates if one.choice.zero == _CUT and one.memory <= room)
    return any(one.seconds <= limit for one in cut)


def with_other_runtime(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    wishes: Wishes,
    found: JointResult,
) -> JointResult:
    """What a search came to, or the same under the other runtime where weights are cut.

    The usual ways to train are compared under either: what is proven must hold for both.

    Parameters
    ----------
    setting, options, deadline, wishes
        As of `planner.joint.answer.joint_plan`.
    found
        What the search under the usual runtimes came to.
    """
    if found.stopped_by == "interrupt" or deadline.passed or found.best is None:
        return found
    if not (has_other(setting, wishes) and _may_cut_weights(setting, found, found.best)):
        return found
    seconds = found.best.seconds
    options = replace(options, limit=min(options.limit, seconds))
    known = KnownSplits.limited(seconds)
    other = run_or_hurry(search_under_other(setting, options, deadline, wishes, known))
    is_faster = other.best is not None and other.best.seconds < seconds
    return replace(found.beside(other), best=other.best if is_faster else found.best)
