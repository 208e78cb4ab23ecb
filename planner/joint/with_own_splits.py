"""What a joint search came to, or layers that are each split in their own way."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.strategy.blocks import is_transformer
from planner.joint.activations import LeastOfStages
from planner.joint.own_splits import OwnSplits
from planner.joint.result import JointResult
from planner.joint.runtimes import splits_by_layer
from planner.joint.search import JointSearch
from planner.joint.sharded_splits import least_sharded
from planner.joint.verdict import least_held
from planner.joint.wishes import Wishes
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# What can be held fixed while layers are split in their own ways, and what cannot be ruled out.
_FREE = frozenset({"pp", "micro_batches", "zero", "recompute", "schedule", "offload"})
_NEEDED = frozenset({"data", "tensor"})


def with_own_splits(search: JointSearch, found: JointResult, deadline: Deadline) -> JointResult:
    """What a search came to, or layers that are each split in their own way where that is faster.

    Parameters
    ----------
    search, found
        The search, and what it came to.
    deadline
        When the plan must be there.
    """
    found = _with_faster(search, found, deadline)
    if search.splits.any and found.best is not None:
        # beside splits that are known it is found out only where they are not the answer
        found = replace(found, any_split=search.floors.least(deadline))
    if found.is_by_degrees:
        return found
    # the bound of choices is none of splits beside them
    if not search.splits.distributions:
        return replace(found, bound=found.any_split)
    # of splits that are known only what is cut over replicas was tried beside choices
    sharded = least_sharded(search.setting, search.runtime, deadline)
    return replace(found, bound=min(found.bound, max(sharded, found.any_split)))


def may_differ(setting: Setting, wishes: Wishes) -> bool:
    """Whether layers that are each split in their own way are searched beside all choices.

    Parameters
    ----------
    setting, wishes
        The question, and what is held fixed or ruled out.
    """
    usual = {"pp": 1, "schedule": "1f1b", "offload": "none"}
    free = (
        wishes.framework is None
        and _FREE.issuperset(wishes.keep)
        and _NEEDED.isdisjoint(wishes.forbid)
        and all(wishes.keep.get(name, value) == value for name, value in usual.items())
    )
    of_one_stage = setting.gpus > 1 and not setting.cluster.groups and splits_by_layer(setting)
    return free and of_one_stage and not is_transformer(setting.graph)


def _with_faster(search: JointSearch, found: JointResult, deadline: Deadline) -> JointResult:
    """As `with_own_splits`, with the bound of choices alone.

    Parameters
    ----------
    search, found, deadline
        As there.
    """
    setting, wishes = search.setting, search.wishes
    if found.stopped_by == "interrupt" or not may_differ(setting, wishes):
        return found
    if (
        found.best is None
        and least_held(setting) / setting.gpus > setting.cluster.device.usable_memory
    ):
        return found  # nor would anything else fit
    own = OwnSplits(
        setting=setting,
        runtime=search.runtime,
        options=search.options,
        wishes=wishes,
        deadline=deadline.earlier(search.pace.assembly),
        floors=search.floors,
        least=search.least or LeastOfStages(setting),
        known=search.simulations.known,
        best=found.best,
        rival=search.splits.seconds,
        in_vain=frozenset() if search.like is None else search.like.tried_in_vain,
    )
    if search.splits.distributions:
        # micro-batches and recomputation make no split faster that fits without
        own.shard(search.splits)
    else:
        own.run()
    simulated, stopped = tuple(own.simulated), found.stopped_by or own.stopped_by
    found = replace(found, best=own.best, own_splits=simulated, stopped_by=stopped)
    if search.splits.distributions:
        bound = min([found.bound, *(one.seconds for one in simulated if one.fits)])
        found = replace(found, bound=bound)
    return found
