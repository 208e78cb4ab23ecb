"""The executor on graphs made by hand: every start and end can be worked out on paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.simulation.execution import ExecutionGraph, Fusion, Queue, Role, Task
from costmodels.simulation.executor import Behaviour, TaskTimes, execute
from costmodels.simulation.measure import measure_step
from costmodels.simulation.sharing import Sharing, fair_paces

COMPUTE, FEATURE, GRADIENT, PARAMETER = Queue
NIC, BUS, OTHER = (1, 0, 0), (0, 0, 0), (0, 1, 0)


def task(queue: int, seconds: float = 0.0, *after: int, role: int = 0, **more: Any) -> Task:
    plain = {"name": "task", "kind": "test", **more}
    return Task(role=role, queue=queue, seconds=seconds, after=after, **plain)


def message(transfer: float, *links: Any, seconds: float = 0.0, **more: Any) -> Task:
    """A message on some links, each a link that it fills or a pair of link and part."""
    loads = tuple(link if isinstance(link[0], tuple) else (link, 1.0) for link in links)
    queue = more.pop("queue", FEATURE)
    after = more.pop("after", ())
    return task(queue, seconds, *after, transfer=transfer, loads=loads, **more)


def graph(
    tasks: Sequence[Task], fixed: dict[str, float] | None = None, **more: Any
) -> ExecutionGraph:
    count = max(one.role for one in tasks) + 1
    roles = tuple(
        Role(name=f"role {n}", first_device=n, num_devices=1, fixed_memory=fixed or {})
        for n in range(count)
    )
    return ExecutionGraph(roles=roles, tasks=tuple(tasks), **more)


def run(tasks: Sequence[Task], gamma: float = 0.0, sharing: bool = True, **more: Any) -> TaskTimes:
    return execute(graph(tasks, **more), Behaviour(overlap_factor=gamma, sharing=sharing))


def times(task_times: TaskTimes) -> list[tuple[float, float]]:
    return [
        (pytest.approx(a), pytest.approx(b))
        for a, b in zip(task_times.starts, task_times.ends, strict=True)
    ]


# order


def test_a_queue_keeps_its_order_though_later_tasks_are_ready():
    line = run([task(FEATURE, 5.0), task(COMPUTE, 2.0, 0), task(COMPUTE, 1.0)])
    assert times(line) == [(0, 5), (5, 7), (7, 8)]


def test_queues_run_beside_each_other():
    line = run([task(queue, 3.0) for queue in Queue])
    assert times(line) == [(0, 3)] * 4
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


# overlap


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


# sharing


def test_two_messages_on_one_link_take_twice_as_long():
    rows = [message(4.0, NIC), message(4.0, NIC, queue=GRADIENT)]
    assert times(run(rows)) == [(0, 8), (0, 8)]
    assert times(run(rows, sharing=False)) == [(0, 4), (0, 4)]


def test_two_messages_of_different_length():
    # both at half pace until the short one ends at 4, then the long one has 4 left
    rows = [message(6.0, NIC), message(2.0, NIC, role=1)]
    assert times(run(rows)) == [(0, 8), (0, 4)]


def test_messages_that_fill_a_link_in_parts():
    # 1 + 1/2 of the link: both at two thirds; 2 s take 3, of 4 s are then 2 left
    rows = [message(4.0, NIC), message(2.0, (NIC, 0.5), role=1)]
    assert times(run(rows)) == [(0, 5), (0, 3)]
    # together they fill no more than there is
    rows = [message(4.0, (NIC, 0.5)), message(2.0, (NIC, 0.5), role=1)]
    assert times(run(rows)) == [(0, 4), (0, 2)]


def test_a_message_held_up_elsewhere_leaves_the_rest_of_its_link():
    # three on the bus get a third each; the other one on the first one's NIC gets two thirds
    rows = [
        message(1.0, NIC, BUS),
        message(1.0, BUS, role=1),
        message(1.0, BUS, role=2),
        message(1.0, NIC, role=3),
    ]
    assert times(run(rows)) == [(0, 3), (0, 3), (0, 3), (0, 1.5)]


def test_links_are_shared_level_by_level():
    """A crosses both levels, B only the bus, C only the NIC, which it and A fill by 0.5 + 1.

    NIC: A and C at 2/3. Bus: A and B fill 1 + 0.4 of it, so 5/7 would do: A is held up by the NIC
    and uses 2/3 of the bus, of which B gets the last third: 5/6 of its pace.
    """
    rows = [
        message(2.0, (NIC, 0.5), (BUS, 1.0)),
        message(5 / 6, (BUS, 0.4), role=1),
        message(2.0, (NIC, 1.0), role=2),
    ]
    assert fair_paces({n: row.loads for n, row in enumerate(rows)}) == pytest.approx(
        {0: 2 / 3, 1: 5 / 6, 2: 2 / 3}
    )
    assert times(run(rows)) == [(0, 3), (0, 1), (0, 3)]


def test_directions_and_children_are_links_of_their_own():
    rows = [
        message(4.0, (1, 0, 0)),
        message(4.0, (1, 0, 1), role=1),
        message(4.0, (1, 1, 0), role=2),
        message(4.0, (0, 0, 0), role=3),
    ]
    assert times(run(rows)) == [(0, 4)] * 4


def test_only_bytes_share_a_link():
    # the first flows alone from 1 to 2, both from 2 to 4, the second alone until 5
    rows = [message(2.0, NIC, seconds=1.0), message(2.0, NIC, seconds=2.0, role=1)]
    assert times(run(rows)) == [(0, 4), (0, 5)]


def test_a_message_that_comes_and_goes_changes_the_pace_of_those_it_meets_only():
    # 0 alone until 3; both to 5; 0 has done 4 of 6 and is through at 7; the bus is of no concern
    rows = [
        message(6.0, NIC),
        task(COMPUTE, 3.0, role=1),
        message(1.0, NIC, role=1, after=(1,)),
        message(6.0, BUS, role=2),
    ]
    assert times(run(rows)) == [(0, 7), (0, 3), (3, 5), (0, 6)]


def test_overlap_and_sharing_multiply():
    # the gradient flows at a half of a half until the feature message ends at 4 s of half pace
    rows = [
        task(COMPUTE, 100.0),
        message(3.0, NIC, queue=GRADIENT),
        message(2.0, NIC),
    ]
    line = run(rows, 1.0)
    assert times(line)[2] == (0, 4)
    # 4 / 4 = 1 done, 2 left at a half
    assert times(line)[1] == (0, 8)
    # 8 s at half pace
    assert times(line)[0] == (0, 104)


def test_sharing_forgets_messages_that_have_ended():
    sharing = Sharing()
    assert sharing.add(1, ((NIC, 1.0),)) == {1: 1.0}
    assert sharing.add(2, ((NIC, 1.0),)) == {1: 0.5, 2: 0.5}
    assert sharing.remove(1) == {2: 1.0}
    assert sharing.remove(2) == {}
    assert sharing.add(3, ((NIC, 1.0),)) == {3: 1.0}


parts = st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0])
some_links = st.sampled_from([NIC, BUS, OTHER, (1, 0, 1)])
some_loads = st.dictionaries(some_links, parts, min_size=1, max_size=3).map(
    lambda row: tuple(row.items())
)


@given(loads=st.lists(some_loads, min_size=1, max_size=7))
@settings(max_examples=60)
def test_paces_are_max_min_fair(loads):
    paces = fair_paces(dict(enumerate(loads)))
    used: dict[Any, float] = {}
    for number, row in enumerate(loads):
        assert 0.0 < paces[number] <= 1.0
        for link, part in row:
            used[link] = used.get(link, 0.0) + part * paces[number]
    assert all(total <= 1.0 + 1e-6 for total in used.values())
    # who is slowed down crosses a full link on which nobody is faster
    for number, row in enumerate(loads):
        if paces[number] < 1.0:
            assert any(
                used[link] >= 1.0 - 1e-6
                and all(
                    paces[other] <= paces[number] + 1e-6
                    for other, others in enumerate(loads)
                    if link in dict(others)
                )
                for link, _ in row
            )


# Horovod's fusion


def gradients(ready: Sequence[float], sizes: Sequence[float], groups: Sequence[int] | None = None):
    """Computations that end at given times, and a gradient after each."""
    rows, before = [], 0.0
    for number, (time, size) in enumerate(zip(ready, sizes, strict=True)):
        group = groups[number] if groups else 0
        rows.append(task(COMPUTE, time - before))
        rows.append(task(GRADIENT, 0.0, 2 * number, num_bytes=size, group=group))
        before = time
    return rows


def fusion(cycle: float = 5.0, negotiation: float = 1.0, limit: float = 10.0) -> Fusion:
    """A reduction takes 0.5 s and 1 s a byte."""
    return Fusion(
        cycle=cycle,
        negotiation=negotiation,
        limit=limit,
        cost=lambda group, size: (0.5, size),
        received=lambda group: 1.5,
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


# memory


def key(name: str, micro: int = 0) -> tuple[int, str, str, int]:
    return micro, "out", name, 0


def made(name: str, size: float, holder: str = "activations", micro: int = 0):
    return ((key(name, micro), holder, size),)


def test_a_tensor_lives_until_its_last_reader_has_ended():
    rows = [
        task(COMPUTE, 1.0, makes=made("a", 10.0), name="a"),
        task(FEATURE, 5.0, 0, uses=(key("a"),), name="slow"),
        task(COMPUTE, 1.0, 0, makes=made("b", 20.0), uses=(key("a"),), name="b"),
        task(COMPUTE, 1.0, 2, makes=made("c", 5.0), uses=(key("b"),), name="c"),
        task(COMPUTE, 1.0, 1, makes=made("d", 22.0), uses=(key("c"), key("d")), name="d"),
    ]
    ledger = run(rows).ledger
    # 10, then a and b 30, then a, b, c 35 (a is still read); at 6 a is gone: c and d, 27
    peak = ledger.peak_memory(0)
    assert peak.total == 35.0
    assert peak.holders["activations"] == 35.0
    assert peak.moment == "test of c"
    assert ledger.time[0] == 2.0
    assert [(t.name, t.size) for t in ledger.largest(0, 2)] == [("b", 20.0), ("a", 10.0)]
    assert ledger.live[0] == {}


def test_what_is_taken_goes_before_anything_comes():
    a, b = made("a", 10.0), made("b", 10.0)
    taking = [
        task(COMPUTE, 1.0, makes=a),
        task(COMPUTE, 1.0, 0, makes=b, takes=(key("a"),), uses=(key("b"),)),
    ]
    assert run(taking).ledger.peak_total == [10.0]
    using = [taking[0], task(COMPUTE, 1.0, 0, makes=b, uses=(key("a"), key("b")))]
    assert run(using).ledger.peak_total == [20.0]
    # what another task is still to read is not taken over
    both = [*taking, task(FEATURE, 9.0, 0, uses=(key("a"),))]
    assert run(both).ledger.peak_total == [20.0]


def test_scratch_space_is_there_while_its_task_runs():
    rows = [
        task(COMPUTE, 2.0, makes=made("a", 1.0), scratch=10.0, buffer=5.0, name="first"),
        task(GRADIENT, 1.0, scratch=100.0),
        task(GRADIENT, 2.0, buffer=30.0),
        task(COMPUTE, 3.0, uses=(key("a"),), scratch=20.0, name="second"),
    ]
    ledger = run(rows).ledger
    peak = ledger.peak_memory(0)
    # at 0: a, 10 + 5 and 100
    assert peak.total == 116.0
    assert peak.holders["workspace"] == 110.0
    assert peak.holders["communication buffers"] == 5.0
    assert peak.holders["activations"] == 1.0
    # without the largest: at 2 s a, 30 and 20
    ledger = run([rows[0], *rows[2:]]).ledger
    assert ledger.peak_memory(0).total == 51.0
    assert ledger.peak_memory(0).moment == "test of second"


def test_fixed_memory_is_always_there_and_roles_are_apart():
    rows = [
        task(COMPUTE, 1.0, makes=made("a", 10.0), uses=(key("a"),), micro=2, name="a"),
        task(COMPUTE, 1.0, role=1),
    ]
    fixed = {"weights": 100.0, "reserved": 7.0}
    ledger = run(rows, fixed=fixed).ledger
    assert ledger.peak_memory(0).total == 117.0
    assert ledger.peak_memory(0).moment == "test of a of micro-batch 2"
    idle = ledger.peak_memory(1)
    assert (idle.total, idle.moment) == (107.0, "start")
    assert idle.holders["weights"] == 100.0
    assert ledger.total == [107.0, 107.0]


def test_a_tensor_that_two_tasks_make_counts_once():
    grad = made("g", 10.0, "activation gradients")
    rows = [
        task(COMPUTE, 1.0, makes=grad),
        task(COMPUTE, 1.0, makes=grad),
        task(COMPUTE, 1.0, uses=(key("g"),)),
    ]
    ledger = run(rows).ledger
    assert ledger.peak_total == [10.0]
    assert ledger.total == [0.0]


# what is measured


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
    assert role.busy == {"compute": 3.0, "feature": 2.0, "gradient": 4.0, "parameter": 0.0}
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


# random graphs


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
