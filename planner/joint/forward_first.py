"""Pipelines that run all forward passes first: what they keep costs memory, and saves waiting.

Where messages between stages take long, a stage of 1F1B waits for one of each direction in turn; of
forward passes alone the next ones are on their way meanwhile (Huang et al. 2019, GPipe).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate
from planner.joint.ranking import MARGIN, most_estimated
from planner.joint.shifted import climb
from planner.joint.simulations import Simulations
from planner.joint.variants import forward_first
from search.problem.deadline import Deadline

# Pipelines that are looked at, the fastest in turns first, and by how much these may be slower than
# the best: a small Llama on four hosts of one GPU got 17 % faster (2026-11-28). [items], [parts]
MOST_LOOKED_AT, NEAR = 64, 0.2
# Those of them that are simulated. [items]
MOST = 3


def run_forward_first(
    simulations: Simulations,
    ranked: Sequence[Estimate],
    bound: float,
    allows: Callable[[Choice], bool],
) -> None:
    """Simulate the best pipelines with all forward passes before any backward pass.

    Parameters
    ----------
    simulations, bound
        What was simulated, and what no choice takes less than. [s]
    ranked
        Estimates, the fastest first.
    allows
        Whether a choice is as wished for.
    """
    before = simulations.best
    for one in _forward_first(simulations, ranked, allows)[:MOST]:
        if simulations.has_time(one.choice):
            simulations.attempt(one.choice, bound)
    if simulations.best is not before:
        climb(simulations, bound)


def _forward_first(
    simulations: Simulations, ranked: Sequence[Estimate], allows: Callable[[Choice], bool]
) -> list[Estimate]:
    """Pipelines in that order that may be the fastest, by what others are expected to take.

    Takes what `run_forward_first` takes.
    """
    estimates, rival = simulations.estimates, simulations.rival
    most = most_estimated(estimates)
    turns = {one.choice: simulations.misjudged.expected(one) for one in ranked}
    turns |= simulations.fitting
    found: dict[Choice, tuple[float, Estimate]] = {}
    near = sorted(
        (seconds, place, choice)
        for place, (choice, seconds) in enumerate(turns.items())
        if seconds < rival * (1.0 + NEAR) and choice.pp > 1 == choice.chunks
        if choice.micro_batches > 1
    )
    for seconds, _, choice in simulations.pace.deadline.before(near[:MOST_LOOKED_AT]):
        other = forward_first(simulations.setting, choice)
        if other == choice or other in simulations.tried or not allows(other):
            continue
        # in turns or not, estimates are as far off
        gained = (one := estimates.of(other)).seconds / estimates.of(choice).seconds
        if seconds * gained < rival * (1.0 + MARGIN) and one.memory <= most:
            found[other] = seconds * gained, one
    return [one for _, one in sorted(found.values(), key=lambda row: row[0])]


def bound_of_all_orders(
    simulations: Simulations, bound: float, floors: PipelineBounds, deadline: Deadline
) -> float:
    """A bound of choices, or what holds in any order where one of these is below it. [s]

    Parameters
    ----------
    simulations
        What was simulated.
    bound
        What no choice takes less than in the other orders. [s]
    floors, deadline
        Know what no step takes less than, and until when it may be found.
    """
    steps = (seconds for one, seconds in simulations.fitting.items() if one.runs_forward_first)
    return floors.least(deadline) if min(steps, default=bound) < bound else bound
