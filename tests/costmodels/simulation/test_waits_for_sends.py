"""A stage whose runtime waits for what it sends computes nothing meanwhile."""

from __future__ import annotations

import pytest
from machines import cluster
from pipelines import compile_job
from simulated_jobs import gpt

from costmodels.simulation import load_runtime
from costmodels.simulation.execution import Queue
from costmodels.simulation.executor import Behaviour, TaskTimes, execute
from costmodels.strategy.usual import hybrid


def run(waits: bool) -> TaskTimes:
    """Two stages of one device each and four micro-batches, one step."""
    network = gpt(batch=1)
    strategy = hybrid(network, (2,), pp=2, micro_batches=4)
    runtime = load_runtime("ddp", waits_for_sends=waits)
    return execute(
        compile_job(network, strategy, cluster(2), runtime=runtime).compile(1), Behaviour()
    )


def beside_sends(times: TaskTimes) -> float:
    """For how long devices compute while they send. [s]"""
    tasks = times.graph.tasks
    spans = [
        (t.role, start, end) for t, start, end in zip(tasks, times.starts, times.ends, strict=True)
    ]
    return sum(
        max(min(spans[one][2], spans[other][2]) - max(spans[one][1], spans[other][1]), 0.0)
        for one, send in enumerate(tasks)
        if send.kind == "send_recv"
        for other, task in enumerate(tasks)
        if task.queue == Queue.COMPUTE and task.role == send.role
    )


def test_no_device_computes_while_it_sends() -> None:
    free, waiting = run(False), run(True)
    assert beside_sends(free) > 0.0
    assert beside_sends(waiting) == pytest.approx(0.0, abs=1e-12)
    assert waiting.end > free.end


@pytest.mark.parametrize(
    ("name", "waits"), [("deepspeed", True), ("megatron", True), ("megatron-core", False)]
)
def test_frameworks_wait_as_their_code_says(name: str, waits: bool) -> None:
    assert load_runtime(name).waits_for_sends == waits
