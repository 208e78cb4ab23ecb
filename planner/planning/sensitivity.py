"""Whether a plan rests on what tables say of shapes that they lack, or on slips in tables.

The search is repeated where those shapes take what is modelled, where they deviate by the spread of
the measurements, and where rows that are far off akin ones are not believed. A plan is marked where
another one is then faster by more than it was before: that decides, and is worth measuring.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs
from msgspec.structs import replace

from costmodels.compute import ComputeModel
from costmodels.compute.measured import Measured
from costmodels.distribution import Distribution
from planner.planning.decision.decide import Decision
from planner.planning.prepare import UsualStrategies
from planner.planning.space.costing import Costed, searched_step
from planner.planning.tuning import Attempt
from planner.request.setting import Setting
from search.problem.deadline import Deadline, OutOfTime
from search.problem.notes import Note

# A plan is marked when another one would be faster by more than this part of the step.
WORTH_WHILE = 0.01
# Spreads below this are no reason to search again.
LEAST_SPREAD = 0.005
# The plan among the strategies of another search.
_PLAN = "the plan"

SearchAgain = Callable[[Setting, UsualStrategies], Attempt]


def marked(
    decision: Decision,
    setting: Setting,
    search_again: SearchAgain,
    *,
    usual: UsualStrategies,
    deadline: Deadline,
    took: float,
) -> Decision:
    """The decision, with notes on whether it rests on unmeasured shapes.

    Parameters
    ----------
    decision
        What was decided.
    setting
        The question.
    search_again
        Searches for the plan of a setting, beside some strategies.
    usual
        The usual strategies.
    deadline
        When the plan must be there.
    took
        Time that the decision took. [s]
    """
    measured = setting.machine.compute.measured
    if measured is None or decision.stopped_by:
        return decision
    plan = decision.formulation.distributions(decision.best.choices)

    def gain_of(compute: ComputeModel) -> tuple[float, float]:
        # as long again, and as much for putting the plan together
        if deadline.remaining < 2.0 * took:
            raise OutOfTime
        other = replace(setting, machine=replace(setting.machine, compute=compute))
        again = search_again(other, {**usual, _PLAN: plan})
        if again.result.incumbent.stopped_by == "interrupt":
            raise KeyboardInterrupt
        return _gain(again, plan)

    # what the search takes for faster anyway, though it is not when simulated
    known: float | None = None
    try:
        for kind, doubts in _doubts(setting.machine.compute, measured).items():
            gain, share = max(map(gain_of, doubts))
            if gain > WORTH_WHILE and known is None:
                known, _ = gain_of(setting.machine.compute)
            if gain > (known or 0.0) + WORTH_WHILE:
                decision = decision.noted(Note.of(kind, share=share, gain=gain))
    except OutOfTime:
        decision = decision.noted(Note.of("no-time-to-check-tables"))
    except KeyboardInterrupt:
        decision = replace(decision, stopped_by="interrupt")
    return decision


def _doubts(compute: ComputeModel, measured: Measured) -> dict[str, list[ComputeModel]]:
    """Other ways to take what tables say, by the kind of the note on plans that rest on it."""
    known = measured.agreement()
    found = {}
    if known is not None:
        found["rests-on-correction"] = [compute.doubted(None)]
        if known.spread > LEAST_SPREAD:
            found["rests-on-spread"] = [compute.doubted(-1.0), compute.doubted(1.0)]
    if measured.outliers:
        found["rests-on-outliers"] = [compute.doubted(slips=False)]
    return found


def _gain(again: Attempt, plan: dict[str, Distribution]) -> tuple[float, float]:
    """By how much another plan is faster, and what part of the time it splits otherwise.

    Parameters
    ----------
    again
        A search that had the plan among its strategies.
    plan
        How the plan splits each layer.
    """
    formulation, best = again.formulation, again.result.best
    here = again.result.met.get(formulation.choices(plan))
    if here is None or best is None:
        return 0.0, 0.0
    others = formulation.distributions(best.choices)
    moved = sum(_time_of_layer(here, name) for name, split in plan.items() if others[name] != split)
    total = sum(_time_of_layer(here, name) for name in plan)
    return 1.0 - again.result.incumbent.cost / searched_step(formulation, here), moved / total


def _time_of_layer(costed: Costed, layer: str) -> float:
    *waited, _ = structs.astuple(costed.layers[layer])  # gradients are exchanged behind computation
    return float(sum(waited))
