"""The executor: order, overlap, what is measured, and laws of random graphs."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import (
    COMPUTE,
    FEATURE,
    GRADIENT,
    PARAMETER,
    fusion,
    gradients,
    graph,
    run,
    some_loads,
    task,
    times,
)

from costmodels.simulation.execution import Queue, Task
from costmodels.simulation.measure import measure_step


def test_a_queue_keeps_its_order_though_later_tasks_are_ready():
    line = run([task(FEATURE, 5.0), task(COMPUTE, 2.0, 0), task(COMPUTE, 1.0)])
    assert times(line) == [(0, 5), (5, 7), (7, 8)]


def test_queues_run_beside_each_other():
    line = run([task(queue, 3.0) for queue in Queue])
    assert times(line) == [(0, 3)] * len(Queue)
    assert line.end == 3.0


def test_a_task_waits_for_the_last_of_those_before_it():
    rows = [
        task(COMPUTE, 1.0),
        task(COMPUTE, 4.0, role=1),
        task(FEATURE, 2.0, 0),
        task(COMPUTE, 1.0, 0, 1, 2),
        task(COMPUTE, 1.0, 3, role=1),
    ]
    assert times(run(rows)) == [(0, 1), (0, 4), (1, 3), (4, 5), (5, 6)]
    assert graph(rows).critical_path() == 6.0


def test_tasks_that_take_no_time_pass_on_their_turn():
    line = run([task(COMPUTE), task(FEATURE, 0.0, 0), task(COMPUTE, 1.0, 1), task(COMPUTE)])
    assert times(line) == [(0, 0), (0, 0), (0, 1), (1, 1)]


def test_tasks_that_wait_for_each_other_are_reported():
    with pytest.raises(AssertionError, match=r"wait for each other.*early"):
        run([task(COMPUTE, 1.0, 1, name="early"), task(COMPUTE, 1.0, name="late")])
    # two queues, each with the task first that the other one's second waits for
    rows = [
        task(COMPUTE, 1.0, 3),
        task(COMPUTE, 1.0),
        task(FEATURE, 1.0, 1),
        task(FEATURE, 1.0),
    ]
    with pytest.raises(AssertionError, match="wait for each other"):
        run(rows)


@pytest.mark.parametrize(
    ("compute", "talk", "gamma", "ends"),
    [
        # 4 s of both take 6 s, then 6 s are left of the computation
        (10.0, 4.0, 0.5, (12.0, 6.0)),
        # 10 s of both take 15 s, then 10 s are left of the communication
        (10.0, 20.0, 0.5, (15.0, 25.0)),
        (10.0, 10.0, 1.0, (20.0, 20.0)),
        (10.0, 4.0, 0.0, (10.0, 4.0)),
    ],
)
@pytest.mark.parametrize("queue", [GRADIENT, PARAMETER])
@pytest.mark.parametrize("part", ["seconds", "transfer"])
def test_computation_and_gradients_slow_each_other_down(compute, talk, gamma, ends, queue, part):
    other = task(queue)._replace(**{part: talk})
    line = run([task(COMPUTE, compute), other], gamma)
    assert tuple(line.ends) == pytest.approx(ends)


def test_only_what_overlaps_is_slowed_down():
    # 2 s alone, then 4 s of both in 6 s, then 4 s alone
    rows = [task(COMPUTE, 10.0), task(FEATURE, 2.0), task(GRADIENT, 4.0, 1)]
    assert times(run(rows, 0.5)) == [(0, 12), (0, 2), (2, 8)]
    # the gradient travels for 2 s before the computation begins: 2 left in 3 s, then 8 of 10
    rows = [task(FEATURE, 2.0), task(COMPUTE, 10.0, 0), task(GRADIENT, 4.0)]
    assert times(run(rows, 0.5)) == [(0, 2), (2, 13), (0, 5)]


def test_gradients_and_parameters_together_slow_computation_down_once():
    # gradient: 4 s in 6; parameters: 8 s in 12; by then 8 s are computed and 2 are left
    rows = [task(COMPUTE, 10.0), task(GRADIENT, 4.0), task(PARAMETER, 8.0)]
    assert times(run(rows, 0.5)) == [(0, 14), (0, 6), (0, 12)]
    # they do not slow each other down
    assert times(run(rows[1:], 0.5)) == [(0, 4), (0, 8)]


def test_feature_communication_slows_nothing_down():
    rows = [task(COMPUTE, 10.0), task(FEATURE, 4.0)]
    assert times(run(rows, 0.5)) == [(0, 10), (0, 4)]
    rows = [task(FEATURE, 10.0), task(GRADIENT, 4.0)]
    assert times(run(rows, 0.5)) == [(0, 10), (0, 4)]


def test_other_roles_are_not_slowed_down():
    rows = [task(COMPUTE, 10.0), task(GRADIENT, 4.0, role=1)]
    assert times(run(rows, 0.5)) == [(0, 10), (0, 4)]


def test_busy_exposed_and_idle_times_make_up_the_step():
    """
    compute  |0 1|      |4 6|
    feature      |1 2 3|
    gradient                |5    9|   with 5 s before the update
    """
    rows = [
        task(COMPUTE, 1.0),
        task(FEATURE, 2.0, 0, num_bytes=7.0),
        task(COMPUTE, 4.0, role=1),
        task(COMPUTE, 2.0, 2),
        task(FEATURE, 1.0, 2, role=1),
        task(GRADIENT, 4.0, 4, num_bytes=5.0),
    ]
    result = measure_step(run(rows))
    role = result.roles[0]
    known = {"compute": 3.0, "feature": 2.0, "gradient": 4.0}
    assert role.busy == {**dict.fromkeys(role.busy, 0.0), **known}
    # 1 to 3, and 6 to 9
    assert role.exposed == 5.0
    assert role.idle == 1.0
    assert role.received == 12.0
    assert result.step_time == 9.0 == result.critical_path
    assert result.slowest.name == "role 1"
    assert role.exposed + role.idle + role.busy["compute"] == result.step_time


def test_fused_gradients_count_with_what_their_reduction_receives():
    rows = gradients([2.0, 4.0], [3.0, 4.0])
    assert measure_step(run(rows, fusion=fusion())).roles[0].received == 1.5 * 7.0


def test_of_several_steps_the_last_is_measured():
    rows = [task(COMPUTE, 3.0, step=0), task(GRADIENT, 2.0, 0, step=0), task(COMPUTE, 4.0, step=1)]
    result = measure_step(run(rows, steps=2))
    # the first step ends at 5, the second, which began at 3, at 7
    assert (result.start, result.end, result.step_time) == (5.0, 7.0, 2.0)
    assert result.roles[0].busy["compute"] == 2.0


@st.composite
def random_tasks(draw) -> list[Task]:
    rows: list[Task] = []
    for number in range(draw(st.integers(1, 14))):
        before = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else ()
        queue = draw(st.sampled_from(list(Queue)))
        seconds = draw(st.sampled_from([0.0, 1.0, 2.5]))
        flows = queue != COMPUTE and draw(st.booleans())
        rows.append(
            task(
                queue,
                seconds,
                *sorted(before),
                role=draw(st.integers(0, 1)),
                transfer=draw(st.sampled_from([0.5, 3.0])) if flows else 0.0,
                loads=draw(some_loads) if flows else (),
            )
        )
    return rows


@given(rows=random_tasks(), gamma=st.sampled_from([0.0, 0.3, 1.0]), sharing=st.booleans())
@settings(max_examples=60)
def test_laws_of_every_execution(rows, gamma, sharing):
    line = run(rows, gamma, sharing)
    g = graph(rows)
    tolerance = 1e-9
    for number, row in enumerate(rows):
        took = line.ends[number] - line.starts[number]
        alone = row.seconds + row.transfer
        assert took >= alone - tolerance
        if gamma == 0.0 and not sharing:
            assert took == pytest.approx(alone)
        assert all(line.starts[number] >= line.ends[n] - tolerance for n in row.after)
    assert line.end >= g.critical_path() - tolerance
    for role in {row.role for row in rows}:
        for queue in Queue:
            numbers = [n for n, r in enumerate(rows) if (r.role, r.queue) == (role, queue)]
            for one, other in itertools.pairwise(numbers):
                assert line.starts[other] >= line.ends[one] - tolerance
            work = math.fsum(rows[n].seconds + rows[n].transfer for n in numbers)
            assert line.end >= work - tolerance
    again = run(rows, gamma, sharing)
    assert (again.starts, again.ends) == (line.starts, line.ends)
