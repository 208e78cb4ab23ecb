"""Laws that the simulation of every plan obeys."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import BANDWIDTH, cluster, graph
from msgspec.structs import replace
from pipelines import BLOCK, PLAIN, SAMPLES, chain, compile_job, simulated
from simulated_jobs import WEIGHT

from costmodels.graph import Graph
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Queue,
    SimulatedStep,
    built_in_runtimes,
    run_graph,
)
from costmodels.simulation.parts import CAUSES, COMMUNICATION, COMPUTATION
from costmodels.strategy import Strategy
from costmodels.strategy.usual import hybrid


@st.composite
def networks(draw) -> tuple[Any, ...]:
    rows: list[Any] = [("in", "linear", {"filters": 64})]
    last, before = "in", "in"
    for i in range(draw(st.integers(3, 6))):
        kind = draw(st.sampled_from(["linear", "relu", "gelu", "norm", "dropout", "add"]))
        name = f"h.{i}"
        rows.append(
            {
                "linear": (name, "linear", {"filters": 64}, (last,)),
                "relu": (name, "activation", {}, (last,)),
                "gelu": (name, "activation", {"function": "gelu"}, (last,)),
                "norm": (name, "layer_norm", {}, (last,)),
                "dropout": (name, "dropout", {}, (last,)),
                "add": (name, "add", {}, (last, before)),
            }[kind]
        )
        before, last = last, name
    return (*rows, ("out", "linear", {"filters": 64}))


@st.composite
def jobs(draw) -> tuple[Graph, Strategy, tuple[int, ...], str]:
    """A network, a hybrid strategy of it, devices and a runtime."""
    g = graph({"hidden": 64}, draw(networks()), 16)
    dp_, tp, pp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    shape = (tp, dp_ * pp)
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]))
    strategy = hybrid(
        g,
        shape,
        dp=dp_,
        tp=tp,
        pp=pp,
        micro_batches=draw(st.sampled_from([1, 2, 4])) * (2 if kind == "interleaved" else 1),
        schedule_kind=kind,
        chunks=draw(st.sampled_from([1, 2])) if kind == "interleaved" else 1,
        max_in_flight=draw(st.sampled_from([None, 1, 2])) if kind != "interleaved" else None,
    )
    if draw(st.booleans()):
        stages = []
        for stage in strategy.stages:
            size = draw(st.integers(1, len(stage.layers)))
            stages.append(replace(stage, recompute=(stage.layers[:size],)))
        strategy = replace(strategy, stages=tuple(stages))
    return g, strategy, shape, draw(st.sampled_from(list(built_in_runtimes())))


def compiled(job: tuple[Graph, Strategy, tuple[int, ...], str], **options: Any) -> Compiler:
    g, strategy, shape, runtime = job
    where = cluster(*shape, **options.pop("links_of", {}))
    return compile_job(g, strategy, where, runtime=runtime, updates=True, **options)


behaviours = st.builds(
    Behaviour, overlap_factor=st.sampled_from([0.0, 0.1, 0.5]), sharing=st.booleans()
)


def check_breakdown(result: SimulatedStep, role: int) -> None:
    """The parts of a step add up to it, and all communication is either exposed or hidden."""
    found, use = result.break_down(role), result.roles[role]
    assert set(found.causes) == set(CAUSES)
    assert all(seconds >= 0.0 for seconds in (*found.causes.values(), *found.hidden.values()))
    assert math.fsum(found.causes.values()) == pytest.approx(result.step_time, rel=1e-9)
    assert sum(found.causes[c] for c in COMPUTATION) == pytest.approx(use.busy["compute"])
    assert found.causes["idle"] == pytest.approx(use.idle, abs=1e-9 * result.step_time)
    exposed = math.fsum(found.causes[cause] for cause in COMMUNICATION)
    assert exposed == pytest.approx(use.exposed)
    busy = math.fsum(use.busy[queue.name.lower()] for queue in Queue if queue != Queue.COMPUTE)
    assert exposed + math.fsum(found.hidden.values()) == pytest.approx(busy)
    whole = ("compute", "halo", "reduction", "shuffle")
    of_layers = math.fsum(t for parts in found.layers.values() for t in parts.values())
    assert of_layers == pytest.approx(sum(found.causes[cause] for cause in whole))


@given(job=jobs(), behaviour=behaviours, steps=st.sampled_from([1, 2]))
@settings(max_examples=60)
def test_laws_of_every_plan(job, behaviour, steps):
    compiler = compiled(job)
    tasks = compiler.compile(steps)
    # no operation is laid out twice
    assert len(compiler.ids) == len(compiler.rows) == len(tasks.tasks)
    result = run_graph(tasks, behaviour)
    line = result.task_times
    assert all(b >= a for a, b in zip(line.starts, line.ends, strict=True))
    assert line.end * (1 + 1e-9) >= result.critical_path
    for role, use in enumerate(result.roles):
        for queue in Queue:
            mine = [n for n, t in enumerate(tasks.tasks) if (t.role, t.queue) == (role, queue)]
            mine = [n for n in mine if n not in line.fused]
            work = math.fsum(tasks.tasks[n].seconds + tasks.tasks[n].transfer for n in mine)
            assert line.end * (1 + 1e-9) >= work
            # in order, one at a time
            for one, other in itertools.pairwise(mine):
                assert line.starts[other] >= line.ends[one] - 1e-12
        # nothing but what is always there is left, and there is never less
        fixed = math.fsum(tasks.roles[role].fixed_memory.values())
        assert line.ledger.live[role] == {}
        assert line.ledger.total[role] == pytest.approx(fixed)
        assert use.memory.total >= fixed * (1 - 1e-12)
        assert use.memory.total == pytest.approx(sum(use.memory.holders.values()))
        check_breakdown(result, role)
    again = run_graph(compiled(job).compile(steps), behaviour)
    assert again.step_time == result.step_time
    assert again.task_times.starts == line.starts


@given(job=jobs())
@settings(max_examples=30)
def test_bytes_do_not_depend_on_how_they_are_timed(job):
    counts = []
    for links, behaviour in (
        ("shared", Behaviour(overlap_factor=0.2)),
        ("alone", PLAIN),
        ("nominal", PLAIN),
    ):
        result = run_graph(compiled(job, links=links).compile(1), behaviour)
        counts.append([role.received for role in result.roles])
    assert counts[0] == counts[1] == counts[2]


@given(job=jobs())
@settings(max_examples=30)
def test_stages_send_back_what_they_receive(job):
    compiler = compiled(job)
    compiler.compile(1)
    sent: Counter[Any] = Counter()
    for _, _, stage, micro, op in compiler.rows:
        if op.key[0] == "send":
            sent[op.name, stage, op.key[2], micro] += op.num_bytes
        elif op.key[0] == "send gradient":
            sent[op.name, op.key[2], stage, micro] -= op.num_bytes
    assert set(sent.values()) <= {0.0}
    _, strategy, _, _ = job
    assert len(sent) % strategy.schedule.micro_batches == 0


@given(job=jobs(), factor=st.sampled_from([1.1, 2.0, 10.0]))
@settings(max_examples=40)
def test_faster_links_never_slow_a_step_down(job, factor):
    """Strict where tasks take what they take; fusing while the step runs may go either way."""
    if job[3] == "horovod":
        job = (*job[:3], "ddp")
    slow = run_graph(compiled(job).compile(1), PLAIN)
    fast = run_graph(compiled(job, links_of={"bandwidth": factor * BANDWIDTH}).compile(1), PLAIN)
    assert fast.step_time <= slow.step_time * (1 + 1e-9)


@given(job=jobs())
@settings(max_examples=20)
def test_overlap_and_sharing_never_pay(job):
    if job[3] == "horovod":
        job = (*job[:3], "ddp")
    tasks = compiled(job).compile(1)
    plain = run_graph(tasks, PLAIN)
    for behaviour in (Behaviour(overlap_factor=0.5, sharing=False), Behaviour(sharing=True)):
        assert run_graph(tasks, behaviour).step_time >= plain.step_time * (1 - 1e-9)


@given(rows=networks(), pp=st.sampled_from([1, 2]))
@settings(max_examples=20)
def test_memory_of_gpipe_never_falls_with_more_micro_batches(rows, pp):
    g = graph({"hidden": 64}, rows, 8)
    peaks = []
    for micro in (1, 2, 3, 5):
        strategy = hybrid(g, (pp,), pp=pp, micro_batches=micro, schedule_kind="gpipe")
        peaks.append([r.memory.total for r in simulated(g, strategy).roles])
    for one, more in itertools.pairwise(peaks):
        assert all(b >= a for a, b in zip(one, more, strict=True))


def test_samples_of_the_chain_are_as_assumed():
    assert chain(1).layers["fc.0"].output.size * 4 == BLOCK
    assert chain(1).layers["fc.0"].parameters * 4 == WEIGHT
    assert SAMPLES % 4 == 0
