"""Gradients of a simulated step: accumulated, in buckets, fused."""

from __future__ import annotations

import pytest
from machines import ALPHA, BANDWIDTH, cluster
from pipelines import CHANNELS, chain, compile_job, simulated
from simulated_jobs import WEIGHT, dp, zero

from costmodels.simulation import (
    Queue,
    built_in_runtimes,
    load_runtime,
)


@pytest.mark.parametrize("name", list(built_in_runtimes()))
def test_gradients_are_accumulated_or_reduced_after_each_micro_batch(name):
    micro = 3
    result = simulated(chain(2), dp(chain(2), 4, micro), cluster(4), runtime=name)
    reductions = [
        t
        for t in result.task_times.graph.tasks
        if t.kind in ("all_reduce", "reduce_scatter", "fused", "push")
    ]
    each = name in ("zero2", "zero3", "fsdp", "torchtitan")
    assert load_runtime(name).each_micro_batch is each
    assert {t.micro for t in reductions} == (set(range(micro)) if each else {micro - 1})
    update = next(n for n, t in enumerate(result.task_times.graph.tasks) if t.kind == "update")
    starts, ends = result.task_times.starts, result.task_times.ends
    for number, task in enumerate(result.task_times.graph.tasks):
        if task.queue == Queue.GRADIENT:
            assert ends[number] <= starts[update] + 1e-12


def test_accumulation_reduces_as_much_as_one_batch():
    one, four = zero("ddp", micro=1), zero("ddp", micro=4)
    assert one.roles[0].received == four.roles[0].received
    twice, thrice = zero("fsdp", micro=2), zero("fsdp", micro=3)
    assert thrice.roles[0].received == pytest.approx(1.5 * twice.roles[0].received)


def test_ddp_buckets_run_against_the_forward_pass_and_begin_small():
    # weights of 4 MB: 1 MiB is full with the first; 25 MiB (26.2 MB) with seven more
    g = chain(16)
    compiler = compile_job(g, dp(g, 2), cluster(2))
    found = [bucket.layers for bucket in compiler.weights[0].buckets]
    names = [f"fc.{n}" for n in reversed(range(16))]
    assert found == [tuple(names[:1]), tuple(names[1:8]), tuple(names[8:15]), tuple(names[15:])]
    sizes = [bucket.num_bytes for bucket in compiler.weights[0].buckets]
    assert sizes == [WEIGHT, 7 * WEIGHT, 7 * WEIGHT, WEIGHT]
    assert all(size >= 25 * 2**20 for size in sizes[1:-1])
    assert all(size - WEIGHT < 25 * 2**20 for size in sizes)
    graph_ = compiler.compile(1)
    reductions = [t for t in graph_.tasks if t.queue == Queue.GRADIENT]
    # a bucket waits for the last of its gradients, and it alone
    for task, layers in zip(reductions, found, strict=True):
        waited = {graph_.tasks[n].name for n in task.after}
        assert waited == set(layers)


def test_gradients_travel_in_low_precision_where_the_framework_does():
    g = chain(2)
    for name, size in (("ddp", 4), ("fsdp", 2), ("zero2", 2), ("horovod", 4)):
        compiler = compile_job(g, dp(g, 2), cluster(2), runtime=name, precision="fp16")
        buckets = compiler.weights[0].buckets
        assert sum(b.num_bytes for b in buckets) == pytest.approx(2 * CHANNELS**2 * size)


def test_horovod_fuses_what_is_ready_and_moves_as_much_as_ddp():
    g = chain(8)
    where = cluster(4)
    ddp = simulated(g, dp(g, 4), where)
    horovod = simulated(g, dp(g, 4), where, runtime=load_runtime("horovod", cycle=1e-3))
    line = horovod.task_times
    fused = [t for t in line.graph.tasks if t.kind == "fused"]
    assert len(fused) == 8
    assert 0 < len(line.fused) < 8
    assert sum(t.num_bytes for t in fused) == 8 * WEIGHT
    assert horovod.roles[0].received == pytest.approx(ddp.roles[0].received)
    slow = simulated(g, dp(g, 4), where, runtime=load_runtime("horovod", cycle=0.5))
    # one reduction of all, half a second after the start
    assert len(slow.task_times.fused) == 7
    runtime = load_runtime("horovod")
    everything = 2 * 3 * (ALPHA + 8 * WEIGHT / 4 / BANDWIDTH)
    assert slow.step_time == pytest.approx(0.5 + runtime.negotiation(4) + everything)
