"""What a step is made of: worked out by hand for tasks of whole seconds."""

from __future__ import annotations

import pytest

from costmodels.simulation import Behaviour, Queue, SimulatedStep, run_graph
from costmodels.simulation.breakdown import merged, uncovered
from costmodels.simulation.execution import ExecutionGraph, Role, Task


def ran(*tasks: Task, behaviour: Behaviour | None = None) -> SimulatedStep:
    roles = [Role(name=f"{n}", first_device=n, num_devices=1) for n in range(2)]
    alone = Behaviour(overlap_factor=0.0, sharing=False)
    return run_graph(ExecutionGraph(roles=tuple(roles), tasks=tasks), behaviour or alone)


def computes(
    name: str, seconds: float, after: tuple[int, ...] = (), kind: str = "forward", role: int = 0
) -> Task:
    return Task(name=name, kind=kind, role=role, queue=Queue.COMPUTE, seconds=seconds, after=after)


def sends(queue: Queue, kind: str, seconds: float, after: tuple[int, ...] = ()) -> Task:
    return Task(name="a", kind=kind, role=0, queue=queue, seconds=seconds, after=after)


def test_a_step_by_hand():
    # a computes 0-2; its halo travels 2-5 and its gradients 2-9; b waits for the halo, 5-7; the
    # update waits for the gradients, 9-10
    step = ran(
        computes("a", 2.0),
        sends(Queue.FEATURE, "halo exchange", 3.0, (0,)),
        sends(Queue.GRADIENT, "all_reduce", 7.0, (0,)),
        computes("b", 2.0, (1,), kind="backward"),
        computes("weights", 1.0, (2, 3), kind="update"),
    )
    found = step.break_down(0)
    assert step.step_time == 10.0
    spent = {cause: seconds for cause, seconds in found.causes.items() if seconds}
    # from 2 to 5 computation waits for the halo, not for gradients
    assert spent == {"compute": 4.0, "update": 1.0, "halo": 3.0, "gradient": 2.0}
    assert {cause: s for cause, s in found.hidden.items() if s} == {"gradient": 5.0}
    assert found.layers == {"a": {"forward": 2.0, "halo": 3.0}, "b": {"backward": 2.0}}


def test_what_gradients_slow_down_is_a_part_of_its_own():
    step = ran(
        computes("a", 1.0),
        sends(Queue.GRADIENT, "all_reduce", 1.0, (0,)),
        computes("b", 3.0, (0,), kind="backward"),
        behaviour=Behaviour(overlap_factor=0.5, sharing=False),
    )
    found = step.break_down(0)
    # the all-reduce takes 1.5 s beside b, which does 1 s of its work in the same time
    assert step.step_time == pytest.approx(1.0 + 1.5 + 2.0)
    assert found.causes["compute"] == pytest.approx(4.0)
    assert found.causes["slowdown"] == pytest.approx(0.5)
    assert found.hidden["gradient"] == pytest.approx(1.5)
    assert found.layers["b"] == {"backward": pytest.approx(3.0)}


def test_what_other_roles_take_is_idle():
    step = ran(
        computes("a", 1.0),
        computes("b", 5.0, (0,), role=1),
        computes("c", 1.0, (1,)),
    )
    assert step.break_down(0).causes["idle"] == 5.0
    assert step.break_down(1).causes["idle"] == 2.0


@pytest.mark.parametrize(
    ("queue", "kind", "cause"),
    [
        (Queue.FEATURE, "all_reduce", "reduction"),
        (Queue.FEATURE, "reduce_scatter", "reduction"),
        (Queue.FEATURE, "all_gather", "shuffle"),
        (Queue.FEATURE, "all_to_all", "shuffle"),
        (Queue.FEATURE, "send_recv", "shuffle"),
        (Queue.FEATURE, "halo exchange", "halo"),
        (Queue.PARAMETER, "all_gather", "parameter"),
        (Queue.GRADIENT, "reduce_scatter", "gradient"),
    ],
)
def test_communication_is_called_by_what_it_is_for(queue, kind, cause):
    found = ran(computes("a", 1.0), sends(queue, kind, 2.0, (0,))).break_down(0)
    assert found.causes[cause] == 2.0


def test_intervals_that_others_cover():
    covers = merged([(4.0, 6.0), (1.0, 2.0), (2.0, 3.0)])
    assert covers == [(1.0, 3.0), (4.0, 6.0)]
    assert list(uncovered([(0.0, 2.0), (2.0, 5.0), (5.5, 9.0)], covers)) == [1.0, 1.0, 3.0]
