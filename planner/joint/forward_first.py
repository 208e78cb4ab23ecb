"""Pipelines that run all forward passes first: what they keep costs memory, and saves waiting.

Where messages between stages take long, a stage of 1F1B waits for one of each direction in turn; of
forward passes alone the next ones are on their way meanwhile. Estimates know nothing of that: the
best pipelines are simulated that way as well (Huang et al. 2019, GPipe).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds
from planner.joint.simulations import Simulations
from search.problem.deadline import Deadline

SCHEDULE = "gpipe"
# Pipelines that are tried that way, and how much slower than the best they are at most: a small
# Llama on four hosts of one GPU got 17 % faster (2026-11-28). [items], [parts]
MOST, NEAR = 3, 0.2


def run_forward_first(
    simulations: Simulations, bound: float, allows: Callable[[Choice], bool]
) -> None:
    """Simulate the best pipelines with all forward passes before any backward pass.

    Parameters
    ----------
    simulations, bound
        What was simulated, and what no choice takes less than. [s]
    allows
        Whether a choice is as wished for.
    """
    asked = simulations.setting.asked_runtime
    if asked is not None and SCHEDULE in asked.lacks:
        return
    limit = simulations.rival * (1.0 + NEAR)
    found = dict[Choice, None]()
    for choice, seconds in sorted(simulations.fitting.items(), key=lambda row: row[1]):
        if seconds < limit and choice.pp > 1 == choice.chunks and choice.micro_batches > 1:
            found[replace(choice, schedule=SCHEDULE)] = None
    for choice in list(filter(allows, found))[:MOST]:
        if simulations.has_time(choice):
            simulations.attempt(choice, bound)


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
    steps = (seconds for one, seconds in simulations.fitting.items() if one.schedule == SCHEDULE)
    return floors.least(deadline) if min(steps, default=bound) < bound else bound
