"""What to do, in words: the first line of a plan that was searched for."""

from __future__ import annotations

from planner.plan import Plan
from planner.report import figures, rivals
from planner.report.runs import main_split, shares
from planner.report.sentences import how

# Differences of less read "0.0 %".
LEAST_SHOWN = 5e-4


def verdict(plan: Plan) -> str:
    """What to do, how much that gains and how much more there could be; empty for a given plan."""
    if plan.search.status == "given":
        return ""
    if plan.is_staged:
        advice = f"Train with {how(plan)}: "
        advice += f"{_compared(plan)}, {_distance(plan)}"
        return advice if not plan.search.stopped_by else f"{advice} (stopped early)"
    dims = {dim for layer in plan.layers.values() for dim in layer.degrees}
    if plan.gpus_at_work == 1:
        advice = f"Split nothing: {_rest(plan)}"
    elif dims <= {"sample"} and len(shares(plan)) == 1:
        advice = f"Use plain data parallelism: {_rest(plan)}"
    else:
        advice = f"Split {main_split(plan)}: {_compared(plan)}, {_distance(plan)}"
    text = advice if plan.fits else f"This plan does not fit in memory. {advice}"
    stopped = plan.search.stopped_by
    return f"{text} (stopped early by {stopped})" if stopped else text


def _compared(plan: Plan) -> str:
    """The plan beside the fastest usual strategy that fits."""
    rival = rivals.best_rival(plan)
    if rival is None or rival.speed_up is None:
        return rivals.no_rival(plan)
    return f"{figures.much(rival.speed_up)} {rivals.called(rival.name)}"


def _rest(plan: Plan) -> str:
    """How much faster another plan could be."""
    found = plan.search
    if found.lower_bound_s <= 0.0:
        return "how much faster another plan could be is not known"
    every = found.num_choices > 0
    others = "nothing in the searched space" if every else "no other split of the layers"
    if found.proven_optimal or found.gap < LEAST_SHOWN:
        return f"{others} is faster"
    ratio = 1.0 / (1.0 - found.gap)
    if ratio >= figures.IN_TIMES:
        return f"{others} is more than {figures.speed_up(ratio)} as fast"
    return f"{others} is more than {figures.percent(found.gap)} faster"


def _distance(plan: Plan) -> str:
    """How far the plan may be from the best one."""
    found = plan.search
    if found.lower_bound_s <= 0.0:
        return "how far from the best possible is not known"
    if found.proven_optimal or found.gap < LEAST_SHOWN:
        return f"the best {_space(plan)}"
    return f"within {figures.percent(found.gap)} of the best {_space(plan)}"


def _space(plan: Plan) -> str:
    """What was searched."""
    choices = plan.search.num_choices
    if choices and plan.search.num_candidates:
        return "in the searched space"
    return f"of {choices:,} ways to train" if choices else "split there is"
