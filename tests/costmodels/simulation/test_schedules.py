"""Schedules of pipelines: whole timelines worked out by hand, and the closed forms of the papers.

A linear layer of the chain takes 1 ms forward, 1 ms backward for its input and 1 ms for its
weight. "F0.1 2-4" is the forward pass of stage 0 on micro-batch 1 from 2 to 4 ms; B and W are
backward passes (B the whole of one, unless W runs apart), R is a forward pass computed again.
"""

from __future__ import annotations

from collections import Counter

import pytest
from machines import cluster
from msgspec.structs import replace
from pipelines import (
    BLOCK,
    CHANNELS,
    MS,
    P2P,
    SAMPLES,
    Pass,
    as_text,
    chain,
    in_flight,
    passes,
    simulated,
)

from costmodels.errors import InputError
from costmodels.simulation import Queue, SimulatedStep
from costmodels.simulation.schedules import BACKWARD, FORWARD, WEIGHT, group_order
from costmodels.strategy import Schedule, Strategy
from costmodels.strategy.usual import hybrid


def pipeline(
    layers: int,
    groups: int,
    kind: str,
    micro_batches: int,
    chunks: int = 1,
    most: int | None = None,
) -> Strategy:
    """A chain in equal stages; what is left over of the layers goes to the first one."""
    g = chain(layers)
    strategy = hybrid(
        g,
        (groups,),
        pp=groups,
        micro_batches=micro_batches,
        schedule_kind=kind,
        chunks=chunks,
        max_in_flight=most,
    )
    names = [layer.name for layer in g.compute_layers]
    count = groups * chunks
    size = layers // count
    cuts = [0, *(len(names) - size * (count - n) for n in range(1, count)), len(names)]
    stages = tuple(
        replace(stage, layers=tuple(names[a:b]))
        for stage, a, b in zip(strategy.stages, cuts, cuts[1:], strict=False)
    )
    return replace(strategy, stages=stages)


def run(layers: int, groups: int, kind: str, micro_batches: int, **more) -> SimulatedStep:
    links = more.pop("links", None)
    strategy = pipeline(layers, groups, kind, micro_batches, **more)
    where = None if links is None else cluster(groups, **links)
    return simulated(chain(layers), strategy, where)


# three layers on two devices: F takes 2 and 1 ms, B 4 and 2 ms

FREE_TIMELINES = {
    "gpipe": (
        "F0.0 0-2, F0.1 2-4, F0.2 4-6, B0.0 9-13, B0.1 13-17, B0.2 17-21",
        "F1.0 2-3, F1.1 4-5, F1.2 6-7, B1.0 7-9, B1.1 9-11, B1.2 11-13",
    ),
    "1f1b": (
        "F0.0 0-2, F0.1 2-4, B0.0 5-9, F0.2 9-11, B0.1 11-15, B0.2 15-19",
        "F1.0 2-3, B1.0 3-5, F1.1 5-6, B1.1 6-8, F1.2 11-12, B1.2 12-14",
    ),
    "zero-bubble": (
        "F0.0 0-2, F0.1 2-4, B0.0 4-6, W0.0 6-8, F0.2 8-10, B0.1 10-12, W0.1 12-14, "
        "B0.2 14-16, W0.2 16-18",
        "F1.0 2-3, B1.0 3-4, F1.1 4-5, B1.1 5-6, W1.0 6-7, F1.2 10-11, B1.2 11-12, "
        "W1.1 12-13, W1.2 13-14",
    ),
}
# every message between the stages takes 0.5 ms
P2P_TIMELINES = {
    "gpipe": (
        "F0.0 0-2, F0.1 2-4, F0.2 4-6, B0.0 10-14, B0.1 14-18, B0.2 18-22",
        "F1.0 2.5-3.5, F1.1 4.5-5.5, F1.2 6.5-7.5, B1.0 7.5-9.5, B1.1 9.5-11.5, B1.2 11.5-13.5",
    ),
    "1f1b": (
        "F0.0 0-2, F0.1 2-4, B0.0 6-10, F0.2 10-12, B0.1 12-16, B0.2 16-20",
        "F1.0 2.5-3.5, B1.0 3.5-5.5, F1.1 5.5-6.5, B1.1 6.5-8.5, F1.2 12.5-13.5, B1.2 13.5-15.5",
    ),
    "zero-bubble": (
        "F0.0 0-2, F0.1 2-4, B0.0 5-7, W0.0 7-9, F0.2 9-11, B0.1 11-13, W0.1 13-15, "
        "B0.2 15-17, W0.2 17-19",
        "F1.0 2.5-3.5, B1.0 3.5-4.5, F1.1 4.5-5.5, B1.1 5.5-6.5, W1.0 6.5-7.5, F1.2 11.5-12.5, "
        "B1.2 12.5-13.5, W1.1 13.5-14.5, W1.2 14.5-15.5",
    ),
}


@pytest.mark.parametrize("kind", list(FREE_TIMELINES))
@pytest.mark.parametrize(("links", "expected"), [(None, FREE_TIMELINES), (P2P, P2P_TIMELINES)])
def test_two_stages_of_three_layers(kind, links, expected):
    result = run(3, 2, kind, 3, links=links)
    first, second = expected[kind]
    assert as_text(passes(result, 0)) == first
    assert as_text(passes(result, 1)) == second
    last = max(row.end for row in (*passes(result, 0), *passes(result, 1)))
    assert result.step_time == pytest.approx(last * MS)


def test_interleaved_stages_by_hand():
    """Devices 0 and 1 with stages 0, 2 and 1, 3 of one layer: F takes 1 ms, B takes 2 ms."""
    result = run(4, 2, "interleaved", 4, chunks=2)
    assert as_text(passes(result, 0)) == (
        "F0.0 0-1, F0.1 1-2, F2.0 2-3, F2.1 3-4, F0.2 4-5, B2.0 6-8, F0.3 8-9, B2.1 9-11, "
        "F2.2 11-12, B0.0 12-14, F2.3 14-15, B0.1 15-17, B2.2 18-20, B2.3 21-23, B0.2 23-25, "
        "B0.3 25-27"
    )
    assert as_text(passes(result, 1)) == (
        "F1.0 1-2, F1.1 2-3, F3.0 3-4, B3.0 4-6, F3.1 6-7, B3.1 7-9, F1.2 9-10, B1.0 10-12, "
        "F1.3 12-13, B1.1 13-15, F3.2 15-16, B3.2 16-18, F3.3 18-19, B3.3 19-21, B1.2 21-23, "
        "B1.3 23-25"
    )


def test_interleaved_stages_with_messages():
    # as many micro-batches as groups: all forward passes come first (Megatron-LM)
    result = run(4, 2, "interleaved", 2, chunks=2, links=P2P)
    assert as_text(passes(result, 0)) == (
        "F0.0 0-1, F0.1 1-2, F2.0 3-4, F2.1 4-5, B2.0 9-11, B2.1 11-13, B0.0 14-16, B0.1 16-18"
    )
    assert as_text(passes(result, 1)) == (
        "F1.0 1.5-2.5, F1.1 2.5-3.5, F3.0 4.5-5.5, F3.1 5.5-6.5, B3.0 6.5-8.5, B3.1 8.5-10.5, "
        "B1.0 11.5-13.5, B1.1 13.5-15.5"
    )
    sent = [t for t in result.task_times.graph.tasks if t.kind == "send_recv"]
    # three borders, forward and backward, of two micro-batches
    assert len(sent) == 3 * 2 * 2
    assert {t.num_bytes for t in sent} == {BLOCK}
    assert {t.queue for t in sent} == {Queue.FEATURE}


# closed forms


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro"), [(1, 3), (2, 2), (2, 5), (3, 4), (4, 8), (4, 2)])
def test_gpipe_and_1f1b_take_the_same_time(kind, stages, micro):
    """(M + S - 1)(tF + tB): a part (S - 1) / (M + S - 1) of the step is a bubble."""
    result = run(stages, stages, kind, micro)
    forward, backward = 1 * MS, 2 * MS
    assert result.step_time == pytest.approx((micro + stages - 1) * (forward + backward))
    for role in result.roles:
        idle = result.step_time - role.busy["compute"]
        assert idle / result.step_time == pytest.approx((stages - 1) / (micro + stages - 1))
        assert role.idle + role.exposed == pytest.approx(idle)


@pytest.mark.parametrize(
    ("groups", "chunks", "micro"), [(2, 2, 4), (2, 3, 4), (3, 2, 6), (4, 2, 8), (2, 1, 4)]
)
def test_interleaved_bubble_is_divided_by_the_chunks(groups, chunks, micro):
    """Narayanan et al. 2021, section 2.2: (S - 1)(tF + tB) / v."""
    result = run(groups * chunks, groups, "interleaved", micro, chunks=chunks)
    forward, backward = chunks * MS, 2 * chunks * MS
    bubble = (groups - 1) * (forward + backward) / chunks
    assert result.step_time == pytest.approx(micro * (forward + backward) + bubble)


@pytest.mark.parametrize(("stages", "micro"), [(1, 3), (2, 4), (3, 6), (4, 8), (4, 5)])
def test_zero_bubble_fills_a_third_of_the_bubble(stages, micro):
    """Qi et al. 2023, Table 2: (S - 1)(tF + tB - tW), with all three equal."""
    result = run(stages, stages, "zero-bubble", micro)
    assert result.step_time == pytest.approx((3 * micro + (stages - 1)) * MS)


def test_sequential_stages_overlap_nothing():
    # one micro-batch: S (tF + tB) and 2 (S - 1) messages
    for kind in ("gpipe", "1f1b"):
        result = run(3, 3, kind, 1, links=P2P)
        assert result.step_time == pytest.approx((3 * 3 + 4 * 0.5) * MS)


# micro-batches in flight, and what they hold


@pytest.mark.parametrize(("stages", "micro"), [(1, 2), (2, 4), (3, 2), (4, 6)])
def test_micro_batches_in_flight(stages, micro):
    gpipe = run(2 * stages, stages, "gpipe", micro)
    one = run(2 * stages, stages, "1f1b", micro)
    zero = run(2 * stages, stages, "zero-bubble", micro)
    for stage in range(stages):
        assert in_flight(gpipe, stage) == micro
        assert in_flight(one, stage) == min(micro, stages - stage)
        assert in_flight(zero, stage) <= in_flight(one, 0)


@pytest.mark.parametrize(("stages", "micro"), [(1, 2), (2, 4), (3, 2), (4, 6)])
def test_memory_follows_what_is_in_flight(stages, micro):
    """Each micro-batch in flight holds the inputs of the two linear layers of its stage."""
    for kind in ("gpipe", "1f1b"):
        result = run(2 * stages, stages, kind, micro)
        for stage, role in enumerate(result.roles):
            count = micro if kind == "gpipe" else min(micro, stages - stage)
            assert role.memory.moment.startswith("backward of fc")
            # gradients of a layer's output and of its input
            assert role.memory.holders["activation gradients"] == 2 * BLOCK
            # an output is still on its way when the backward pass after it is ready at once
            steady = kind == "1f1b" and stage < stages - 1 and micro > count
            held = count * 2 * BLOCK + steady * BLOCK
            assert role.memory.holders["activations"] == pytest.approx(held)


def test_zero_bubble_holds_no_more_than_the_first_stage():
    """What waits for its backward pass of weights keeps activations and gradients."""
    one, zero = run(8, 4, "1f1b", 8), run(8, 4, "zero-bubble", 8)
    first = one.roles[0].memory.holders["activations"]
    # inputs of two layers of four micro-batches, and at most one output on its way
    assert first == 9 * BLOCK
    for role in zero.roles:
        assert 8 * BLOCK <= role.memory.holders["activations"] <= first
    # the last stage holds three gradients of both of its layers for later
    assert zero.roles[3].memory.holders["activation gradients"] >= 3 * 2 * BLOCK
    assert one.roles[3].memory.holders["activation gradients"] == 2 * BLOCK


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble"])
def test_a_limit_of_what_is_in_flight_limits_memory(kind):
    held = []
    for most in (1, 2, 3):
        result = run(6, 3, kind, 6, most=most)
        assert in_flight(result, 0) == most
        held.append(result.roles[0].memory.holders["activations"] / BLOCK)
    # two inputs each, and at most one output on its way
    assert [size // 2 for size in held] == [1, 2, 3]
    # with one in flight nothing overlaps
    if kind != "zero-bubble":
        assert run(3, 3, kind, 6, most=1).step_time == pytest.approx(6 * 3 * 3 * MS)


def test_memory_of_gpipe_grows_with_the_micro_batches_and_that_of_1f1b_does_not():
    for kind, grows in (("gpipe", True), ("1f1b", False)):
        peaks = [run(2, 2, kind, micro).peak.memory.total for micro in (3, 4, 8)]
        assert peaks == sorted(peaks)
        assert (peaks[0] < peaks[-1]) is grows


# recomputation


def recomputing(layers: int, groups: int, kind: str, micro: int) -> SimulatedStep:
    """All layers of a stage but the free one are one segment."""
    plain = pipeline(layers, groups, kind, micro)
    stages = tuple(
        replace(s, recompute=(tuple(n for n in s.layers if n != "relu"),)) for s in plain.stages
    )
    return simulated(chain(layers), replace(plain, stages=stages))


def test_recomputation_by_hand():
    # right before its backward pass, and not before the gradient has come
    result = recomputing(3, 2, "1f1b", 2)
    assert as_text(passes(result, 0)) == (
        "F0.0 0-2, F0.1 2-4, R0.0 6-8, B0.0 8-12, R0.1 12-14, B0.1 14-18"
    )
    assert as_text(passes(result, 1)) == (
        "F1.0 2-3, R1.0 3-4, B1.0 4-6, F1.1 6-7, R1.1 7-8, B1.1 8-10"
    )


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_recomputation_adds_a_forward_pass_and_saves_memory(kind):
    plain, again = run(12, 3, kind, 4), recomputing(12, 3, kind, 4)
    forward, backward = 4 * MS, 8 * MS
    assert plain.step_time == pytest.approx((4 + 2) * (forward + backward))
    assert again.step_time == pytest.approx((4 + 2) * (2 * forward + backward))
    for stage, (with_all, with_inputs) in enumerate(zip(plain.roles, again.roles, strict=True)):
        count = 4 if kind == "gpipe" else 3 - stage
        steady = kind == "1f1b" and stage < 2  # an output on its way
        held = (count * 4 + steady) * BLOCK
        assert with_all.memory.holders["activations"] == pytest.approx(held)
        # the input of the segment of each, and the three others of the one computed again
        assert with_inputs.memory.holders["activations"] == pytest.approx((count + 3) * BLOCK)
        names = Counter(p.name[0] for p in passes(again, stage))
        assert names == {"F": 4, "R": 4, "B": 4}


def test_each_segment_is_recomputed_right_before_its_own_backward_pass():
    plain = pipeline(4, 1, "1f1b", 1)
    segments = (("fc.0", "fc.1"), ("fc.2", "fc.3"))
    strategy = replace(plain, stages=(replace(plain.stages[0], recompute=segments),))
    result = simulated(chain(4), strategy)
    order = [
        (task.kind, task.name)
        for task in result.task_times.graph.tasks
        if task.kind in ("recompute", "backward") and task.name != "relu"
    ]
    assert order == [
        ("recompute", "fc.2"),
        ("recompute", "fc.3"),
        ("backward", "fc.3"),
        ("backward", "fc.2"),
        ("recompute", "fc.0"),
        ("recompute", "fc.1"),
        ("backward", "fc.1"),
        ("backward", "fc.0"),
    ]
    assert result.step_time == pytest.approx((4 + 4 + 8) * MS)


# orders


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble", "interleaved"])
@pytest.mark.parametrize(("groups", "micro"), [(1, 1), (2, 4), (4, 4), (3, 9)])
def test_every_pass_runs_once_and_backward_after_forward(kind, groups, micro):
    chunks = 2 if kind == "interleaved" else 1
    for position in range(groups):
        stages = tuple(range(position, groups * chunks, groups))
        schedule = Schedule(kind=kind, micro_batches=micro)
        order = group_order(schedule, position, stages, groups)
        phases = [FORWARD, BACKWARD, *([WEIGHT] if kind == "zero-bubble" else [])]
        assert len(set(order)) == len(order) == micro * len(stages) * len(phases)
        place = {run: n for n, run in enumerate(order)}
        for stage in stages:
            for m in range(micro):
                at = [place[phase, stage, m] for phase in phases]
                assert at == sorted(at)
            for phase in phases:
                at = [place[phase, stage, m] for m in range(micro)]
                assert at == sorted(at)


def test_interleaved_stages_need_a_multiple_of_the_groups():
    with pytest.raises(InputError, match=r"multiple of its 2 device groups.*has 3.*choose 4"):
        run(4, 2, "interleaved", 3, chunks=2)


def test_the_unit_of_time_is_what_the_docstring_says():
    result = run(1, 1, "zero-bubble", 1)
    assert passes(result, 0) == [
        Pass("F0.0", 0.0, 1.0),
        Pass("B0.0", 1.0, 2.0),
        Pass("W0.0", 2.0, 3.0),
    ]
    assert pytest.approx(MS) == 2 * SAMPLES * CHANNELS**2 / 10e12
