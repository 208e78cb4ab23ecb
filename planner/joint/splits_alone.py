"""Splits of one stage alone, on all GPUs or on fewer."""

from __future__ import annotations

from planner.errors import InfeasibleError
from planner.joint.hosts import on_gpus
from planner.joint.plans import left_idle
from planner.plan import Plan
from planner.planning.answer import Answers
from planner.planning.optimize import plan_for
from planner.planning.options import SearchOptions
from planner.planning.summary import bounded
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Part of a time limit that the search on all GPUs may take where fewer are asked as well.
SHARE = 0.5


def plan_of_splits(
    setting: Setting, options: SearchOptions, deadline: Deadline, known: Answers | None
) -> Plan:
    """The plan of splits of one stage alone, on fewer GPUs where the batch is shared out there.

    Parameters
    ----------
    setting, options, deadline, known
        As of `planner.joint.answer.joint_plan`.

    Raises
    ------
    InfeasibleError
        When no plan that fits was found.
    """
    one = options.least_memory or options.dump_problem is not None
    fewer = None if one else _sharing_evenly(setting)
    if fewer is None:
        return plan_for(setting, options, deadline, known)
    plan = _plan_or_error(setting, options, deadline.part(SHARE), known)
    other = plan
    if _cut_short_by(plan) != "interrupt":
        other = _plan_or_error(fewer, options, deadline, known)
    if isinstance(other, Plan) and other is not plan:
        if isinstance(plan, InfeasibleError) or other.step_time_s < plan.step_time_s:
            return left_idle(other, setting.gpus - fewer.gpus, plan)
        plan = bounded(plan, other.search.lower_bound_s)
    if isinstance(plan, InfeasibleError):
        raise plan
    return plan


def _plan_or_error(
    setting: Setting, options: SearchOptions, deadline: Deadline, known: Answers | None
) -> Plan | InfeasibleError:
    """The plan on all GPUs of a question, or why there is none.

    Parameters
    ----------
    setting, options, deadline, known
        As of `plan_of_splits`.
    """
    try:
        return plan_for(setting, options, deadline, known)
    except InfeasibleError as error:
        return error


def _cut_short_by(plan: Plan | InfeasibleError) -> str:
    return plan.stopped_by if isinstance(plan, InfeasibleError) else plan.search.stopped_by


def _sharing_evenly(setting: Setting) -> Setting | None:
    """The question for the most GPUs that share out the batch, None where all do or may unequally.

    Where layers must be split evenly, others repeat each other's work by whole levels of the
    cluster, which may be more than these leave without any.
    """
    layers = setting.graph.compute_layers
    if setting.batch % setting.gpus == 0 or not any(layer.evenly for layer in layers):
        return None
    numbers = (n for n in range(setting.gpus - 1, 1, -1) if setting.batch % n == 0)
    most = next(filter(setting.cluster.can_use, numbers), None)
    return None if most is None else on_gpus(setting, most)
