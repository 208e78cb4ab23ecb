"""Weights that are cut, under another runtime than the usual one of such steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.simulation import load_runtime
from planner.joint.estimate import Estimate, Estimates
from planner.joint.interrupted import run_or_hurry
from planner.joint.known_splits import NO_SPLITS, KnownSplits
from planner.joint.result import JointResult
from planner.joint.search import JointSearch
from planner.joint.verdict import least_held
from planner.joint.wishes import Wishes
from planner.planning.options import SearchOptions
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Gathers weights sooner and in other pieces than the usual one, and holds others of them: which is
# faster, or fits, depends.
OTHER = "zero3"
_CUT = 3
# Ways to cut weights that are estimated under it as well, the fastest first, on each of many
# numbers of GPUs. [items]
MOST_ESTIMATED = 4


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


def estimates_under_other(estimates: Estimates, wishes: Wishes) -> Estimates | None:
    """Estimates of what cuts weights under the other runtime, None where none is searched there.

    Parameters
    ----------
    estimates
        Under the usual runtimes.
    wishes
        What is held fixed or ruled out.
    """
    if not has_other(estimates.setting, wishes):
        return None
    runtime = load_runtime(OTHER)
    found = Estimates(estimates.setting.under(runtime), runtime)
    found.plain = estimates.plain
    return found


def with_those_under_other(other: Estimates, ranked: Sequence[Estimate]) -> list[Estimate]:
    """Estimates with those of the fastest that cut weights under the other runtime as well.

    Parameters
    ----------
    other
        As of `estimates_under_other`.
    ranked
        Those under the usual runtimes, the fastest first.
    """
    cut = [one.choice for one in ranked if one.choice.zero == _CUT][:MOST_ESTIMATED]
    return sorted([*ranked, *map(other.of, cut)], key=lambda one: one.seconds)


def with_other_runtime(search: JointSearch, deadline: Deadline, found: JointResult) -> JointResult:
    """What a search came to, or the same under the other runtime where weights are cut.

    The usual ways to train are compared under either: what is proven must hold for both.

    Parameters
    ----------
    search, found
        The search under the usual runtimes, and what it came to.
    deadline
        When the other one is to be there.
    """
    setting, wishes = search.setting, search.wishes
    late = deadline.passed or found.stopped_by == "interrupt"
    if late or found.refused is not None or not has_other(setting, wishes):
        return found
    held = least_held(setting) / setting.gpus
    if not found.offloads and held > setting.cluster.device.usable_memory:
        return found  # nor does anything else fit
    options, splits, seconds = search.options, search.splits, math.inf
    if found.best is not None:
        seconds = found.best.seconds
        options = replace(options, limit=min(options.limit, seconds))
        splits = KnownSplits.limited(options.limit)
    under_other = search_under_other(setting, options, deadline, wishes, splits)
    # layers that are gathered take what they do otherwise: what is too slow is not costed again
    under_other.under_another = found
    other = run_or_hurry(under_other)
    is_faster = other.best is not None and other.best.seconds < seconds
    return replace(found.beside(other), best=other.best if is_faster else found.best)
