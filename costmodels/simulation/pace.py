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
# What a communicator of two stages takes to come to be. NCCL agrees on it by sockets and sets up
# channels, in tenths of seconds or more: an assumption, of which all that counts is that hosts
# launch whatever they may meanwhile. [s]
_JOINING = 1.0


def most_in_flight(order: Sequence[StagePass]) -> int:
    """The most micro-batches that a group of devices holds at once. [items]"""
    count = most = 0
    for run in order:
        count += (run.phase == FORWARD) - (run.phase == BACKWARD)
        most = max(most, count)
    return most


def until_joined(run: StagePass, stages: int) -> float:
    """What a pass of a first step waits for connections that its own host does not make. [s]

    c10d makes a communicator when a pair of processes first sends (ProcessGroupNCCL, getNCCLComm),
    and both hosts are busy with it: they come to be one after another down the pipeline. A stage
    whose own are there launches ahead, but what it sends is received only when the next stage is
    free again, which waits for those behind it. NCCL connects each way when it is first used
    (group.cc, ncclP2PPreconnect), so that a host waits with its first gradient for all of them.

    Parameters
    ----------
    run
        The pass.
    stages
        How many there are. [items]
    """
    made = run.stage + run.micro if run.phase == FORWARD else stages
    return max(min(made, stages - 1) - run.stage - 1, 0) * _JOINING


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
