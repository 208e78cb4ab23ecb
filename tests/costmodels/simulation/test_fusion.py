"""Horovod's fusion of gradients that are ready."""

from __future__ import annotations

from small_tasks import (
    COMPUTE,
    FEATURE,
    fusion,
    gradients,
    graph,
    run,
    task,
    times,
)


def test_gradients_that_are_ready_at_a_tick_travel_together():
    rows = gradients([2.0, 4.0, 6.0], [3.0, 4.0, 5.0])
    line = run(rows, fusion=fusion())
    # at 5 the first two: 1 + 0.5 + 7 s; the third is agreed on at 11, and waits for the queue
    assert times(line)[1] == times(line)[3] == (5, 13.5)
    assert times(line)[5] == (13.5, 19)
    assert line.fused == {3: 1}
    # fused gradients count with nothing, and queues are no dependencies
    assert graph(rows, fusion=fusion()).critical_path() == 2.0


def test_the_buffer_is_no_larger_than_its_limit():
    rows = gradients([1.0, 2.0, 3.0], [3.0, 4.0, 5.0])
    line = run(rows, fusion=fusion(limit=7.0))
    assert line.fused == {3: 1}
    # what else was ready at the tick follows at once, in another buffer
    assert times(line)[5] == (13.5, 19)
    alone = run(rows, fusion=fusion(limit=2.0))
    # each is larger than the buffer, and travels by itself
    assert alone.fused == {}
    assert [alone.starts[n] for n in (1, 3, 5)] == [5.0, 9.5, 14.0]
    assert run(rows, fusion=fusion(limit=12.0)).fused == {3: 1, 5: 1}


def test_gradients_of_different_groups_are_not_fused():
    rows = gradients([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], groups=[0, 1, 1])
    line = run(rows, fusion=fusion())
    assert line.fused == {5: 3}
    assert [line.starts[n] for n in (1, 3, 5)] == [5.0, 7.5, 7.5]


def test_what_is_ready_at_a_tick_goes_with_it():
    line = run(gradients([5.0], [1.0]), fusion=fusion())
    assert times(line)[1] == (5, 7.5)
    line = run(gradients([5.01], [1.0]), fusion=fusion())
    assert times(line)[1] == (10, 12.5)


def test_without_a_cycle_each_gradient_goes_when_it_can():
    line = run(gradients([2.0, 4.0, 6.0], [1.0, 1.0, 1.0]), fusion=fusion(cycle=0.0))
    # the second is agreed on at 5, while the first travels until 4.5, and the third at 7
    assert [times(line)[n] for n in (1, 3, 5)] == [(2, 4.5), (4.5, 6.5), (6.5, 8.5)]


def test_what_waits_for_gradients_waits_for_the_whole_buffer():
    rows = gradients([2.0, 4.0], [3.0, 4.0])
    line = run([*rows, task(COMPUTE, 1.0, 1), task(FEATURE, 1.0, 3)], fusion=fusion())
    assert times(line)[4:] == [(13.5, 14.5), (13.5, 14.5)]


def test_fused_gradients_and_computation_slow_each_other_down():
    rows = [*gradients([5.0], [1.0]), task(COMPUTE, 10.0)]
    # from 5: 2.5 s of the reduction take 5, in which 2.5 of 10 s are computed
    line = run(rows, 1.0, fusion=fusion())
    assert times(line)[1:] == [(5, 10), (5, 17.5)]
