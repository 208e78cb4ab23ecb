"""When the passes of a pipeline's stages may start, from what each of them takes alone.

A pass of a stage starts when the one before it in its stage, and that of the neighbour which it
receives from, are through. What messages between stages take is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodels.simulation.host import device_time
from costmodels.simulation.schedules import BACKWARD, FORWARD, StagePass
from costmodels.simulation.stage_program import StageProgram

Starts = Mapping[StagePass, float]
# Micro-batches that are looked at, as a multiple of those in flight: a host is further ahead of its
# device with each of them.
SIMULATED = 3


def most_in_flight(order: Sequence[StagePass]) -> int:
    """The most micro-batches that a group of devices holds at once. [items]"""
    count = most = 0
    for run in order:
        count += (run.phase == FORWARD) - (run.phase == BACKWARD)
        most = max(most, count)
    return most


def pass_starts(
    programs: Sequence[StageProgram], orders: Sequence[Sequence[StagePass]]
) -> dict[StagePass, float]:
    """When passes of the first micro-batches start, some for each that is in flight. [s]

    Parameters
    ----------
    programs
        Of all stages.
    orders
        What each group of devices runs, in order.
    """
    most = SIMULATED * max(map(most_in_flight, orders))
    taken = {
        (program.number, phase): device_time(operations)
        for program in programs
        for phase, operations in program.phases.items()
    }
    waiting = [[run for run in reversed(order) if run.micro <= most] for order in orders]
    free = [0.0] * len(waiting)
    starts: dict[StagePass, float] = {}
    ends: dict[StagePass, float] = {}
    moved = True
    while moved:
        moved = False
        for group, runs in enumerate(waiting):
            while runs and (ready := _ready(runs[-1], ends, len(programs))) is not None:
                run = runs.pop()
                starts[run] = max(free[group], ready)
                ends[run] = free[group] = starts[run] + taken[run.stage, run.phase]
                moved = True
    return starts


def _ready(run: StagePass, ends: Mapping[StagePass, float], stages: int) -> float | None:
    """When what a pass receives is there; None where that is not known yet. [s]"""
    before = run.stage + {FORWARD: -1, BACKWARD: 1}.get(run.phase, stages)
    return ends.get(run._replace(stage=before)) if 0 <= before < stages else 0.0
