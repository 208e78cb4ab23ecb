"""Plans for frameworks that train under one runtime or another, by what is cut over replicas.

The search under one runtime has all stages of ZeRO in common. Where a framework has another runtime
from a stage on, each stage is a question of its own, and the fastest of their answers the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec.structs import replace

from planner.errors import ContradictionError, InfeasibleError, detached
from planner.joint.plans import bounded_by, stopped_plan
from planner.joint.wishes import Wishes
from planner.plan import Plan
from planner.planning.summary import bounded
from planner.request.frameworks import FRAMEWORKS
from planner.request.setting import Setting
from search.problem.deadline import Deadline


def fastest_of_stages(
    setting: Setting,
    wishes: Wishes,
    deadline: Deadline,
    ask: Callable[[Setting, Wishes, Deadline], Plan],
    under: Callable[[str], Setting],
) -> Plan:
    """The answer to a question under the runtimes that its framework has.

    Parameters
    ----------
    setting, wishes
        The question.
    deadline
        When the plan must be there; stages share the time out.
    ask
        Answers a question under one runtime.
    under
        The question under the runtime of a name.

    Raises
    ------
    ContradictionError
        When what is held fixed leaves nothing of any stage.
    InfeasibleError
        When no plan that fits was found for any of them: of what lacks the least.
    """
    framework = FRAMEWORKS.get(wishes.framework or "")
    if framework is None or framework.cuts_under is None or setting.asked_runtime is not None:
        return ask(setting, wishes, deadline)
    kept = wishes.keep.get("zero")
    stages = [zero for zero in framework.zero if kept in (None, zero)]
    if "sharding" in wishes.forbid:
        stages = [zero for zero in stages if zero == 0]
    plans: list[Plan] = []
    failures: list[InfeasibleError | ContradictionError] = []
    for place, zero in enumerate(stages):
        name = framework.runtime_of(zero)
        part = setting if name is None else under(name)
        wished = replace(wishes, keep={**wishes.keep, "zero": zero})
        try:
            plans.append(ask(part, wished, deadline.part(1.0 / (len(stages) - place))))
        except (InfeasibleError, ContradictionError) as error:
            failures.append(detached(error))
            if isinstance(error, InfeasibleError) and error.stopped_by == "interrupt":
                break
        if plans and plans[-1].search.stopped_by == "interrupt":
            break
    if not plans:
        short = [one for one in failures if isinstance(one, InfeasibleError)]
        if short:
            raise min(short, key=lambda one: (one.proven, one.missing_bytes or math.inf))
        if failures:
            raise failures[0]
        return ask(setting, wishes, deadline)
    best = min(plans, key=lambda one: one.step_time_s)
    for one in plans:
        best = best if one is best else stopped_plan(bounded_by(best, one), one.search.stopped_by)
    for failed in failures:
        if isinstance(failed, InfeasibleError) and not failed.proven:
            best = stopped_plan(bounded(best, failed.bound_s), failed.stopped_by)
    return best
