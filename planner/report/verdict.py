"""What to do, in words: the first line of a plan that was searched for."""

from __future__ import annotations

import math

from planner.plan import Plan
from planner.report import figures
from planner.report.runs import main_split, shares

# Differences of less read "0.0 %".
LEAST_SHOWN = 5e-4


def verdict(plan: Plan) -> str:
    """What to do, how much that gains and how much more there could be; empty for a given plan."""
    if plan.search.status == "given":
        return ""
    dims = {dim for layer in plan.layers.values() for dim in layer.degrees}
    if enough_gpus(plan) == 1:
        advice = f"Split nothing: {_rest(plan)}"
    elif dims <= {"sample"} and len(shares(plan)) == 1:
        advice = f"Use plain data parallelism: {_rest(plan)}"
    else:
        advice = f"Split {main_split(plan)}: {_gain(plan)}, {_distance(plan)}"
    doubts = ["" if plan.fits else "This plan does not fit in memory", _idle(plan)]
    text = ". ".join([*filter(None, doubts), advice])
    stopped = plan.search.stopped_by
    return f"{text} (stopped early by {stopped})" if stopped else text


def enough_gpus(plan: Plan) -> int:
    """The GPUs that have work of their own; all others do the same as one of them. [items]"""
    used = [1] * len(plan.shape)
    for layer in plan.layers.values():
        for level in range(len(used)):
            ways = math.prod(degrees[level] for degrees in layer.degrees.values())
            used[level] = math.lcm(used[level], ways)
    return math.prod(used)


def _idle(plan: Plan) -> str:
    enough = enough_gpus(plan)
    if enough >= plan.gpus:
        return ""
    return f"{enough:,} of the {plan.gpus:,} GPUs would be enough: the others repeat their work"


def _gain(plan: Plan) -> str:
    """The plan beside the fastest usual strategy that fits."""
    rival = figures.best_rival(plan)
    if rival is None or rival.time is None:
        return "none of the usual strategies can be used"
    return f"{figures.much(rival.time / plan.step_time_s)} {rival.name} parallelism"


def _rest(plan: Plan) -> str:
    """How much faster another plan could be."""
    found = plan.search
    if found.lower_bound_s <= 0.0:
        return "how much faster another plan could be is not known"
    if found.proven_optimal or found.gap < LEAST_SHOWN:
        return "nothing in the searched space is faster"
    return f"nothing in the searched space is more than {figures.percent(found.gap)} faster"


def _distance(plan: Plan) -> str:
    """How far the plan may be from the best one."""
    found = plan.search
    if found.lower_bound_s <= 0.0:
        return "how far from the best possible is not known"
    if found.proven_optimal or found.gap < LEAST_SHOWN:
        return "the best of the searched space"
    return f"within {figures.percent(found.gap)} of the best of the searched space"
