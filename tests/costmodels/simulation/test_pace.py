"""When passes of a pipeline may start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Operation
from costmodels.simulation.pace import most_in_flight, pass_starts, until_joined
from costmodels.simulation.schedules import BACKWARD, FORWARD, StagePass, group_order
from costmodels.strategy import Schedule


def program(number: int, forward: float, backward: float) -> Any:
    phases = {
        phase: [
            Operation(
                key=(phase, "layer", 0), kind=phase, queue=Queue.COMPUTE, after=(), seconds=seconds
            )
        ]
        for phase, seconds in ((FORWARD, forward), (BACKWARD, backward))
    }
    return SimpleNamespace(number=number, phases=phases)


def test_stages_wait_for_each_other():
    schedule = Schedule(kind="1f1b", micro_batches=4)
    orders = [group_order(schedule, n, (n,), 2) for n in range(2)]
    assert [most_in_flight(order) for order in orders] == [2, 1]
    starts = pass_starts([program(0, 1.0, 2.0), program(1, 3.0, 6.0)], orders)
    assert starts[StagePass(FORWARD, 0, 1)] == 1.0
    assert starts[StagePass(FORWARD, 1, 0)] == 1.0
    assert starts[StagePass(BACKWARD, 1, 0)] == 4.0
    # the first stage has its gradient when the last one is through with its backward pass
    assert starts[StagePass(BACKWARD, 0, 0)] == 10.0
    assert starts[StagePass(FORWARD, 1, 1)] == 10.0
    assert set(starts) == {run for order in orders for run in order}


def test_communicators_come_to_be_one_after_another_down_the_pipeline():
    def waits(phase: str, stage: int, micro: int, stages: int) -> float:
        return until_joined(StagePass(phase, stage, micro), stages)

    # the only one is made by both hosts before they go on
    assert {waits(FORWARD, 0, n, 2) for n in range(9)} == {0.0}
    one = waits(FORWARD, 0, 2, 8)
    assert one > 0.0
    assert [waits(FORWARD, 0, n, 8) / one for n in range(9)] == [0, 0, 1, 2, 3, 4, 5, 6, 6]
    assert [waits(FORWARD, 6, n, 8) for n in range(3)] == [0.0, 0.0, 0.0]
    assert waits(BACKWARD, 0, 0, 8) == 6 * one
    assert waits(BACKWARD, 7, 0, 8) == 0.0
