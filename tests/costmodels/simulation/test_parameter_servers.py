"""Simulated parameter servers: what is pushed, pulled and waited for."""

from __future__ import annotations

import math
from typing import Any

import pytest
from machines import BANDWIDTH, cluster
from pipelines import PLAIN, chain, compile_job, simulated
from simulated_jobs import WEIGHT, dp

from costmodels.simulation import (
    SimulatedStep,
    Task,
    load_runtime,
    run_graph,
)


def servers(hosts: int, local: int, **changes: Any) -> SimulatedStep:
    plain = {"server_rate": math.inf, "bucket": WEIGHT, "local_reduce": False}
    runtime = load_runtime("ps-sync", **{**plain, **changes})
    g = chain(1)
    p = hosts * local
    where = cluster(local, hosts, latency=0.0)
    return simulated(g, dp(g, p, shape=(local, hosts)), where, runtime=runtime)


def push_and_pull(result: SimulatedStep) -> tuple[Task, Task]:
    tasks = result.task_times.graph.tasks
    pushes = [t for t in tasks if t.kind == "push"]
    pulls = [t for t in tasks if t.kind == "pull"]
    assert len(pushes) == len(pulls) == 1
    return pushes[0], pulls[0]


def test_parameter_servers_on_the_workers_hosts():
    """Each of 4 hosts keeps its quarter: 3/4 of the gradients go out and come in."""
    push, pull = push_and_pull(servers(4, 1))
    assert push.transfer == pytest.approx(WEIGHT * 3 / 4 / BANDWIDTH)
    assert pull.transfer == pytest.approx(WEIGHT * 3 / 4 / BANDWIDTH)
    assert push.loads == (((1, 0, 0), 1.0),)
    assert pull.loads == (((1, 0, 1), 1.0),)
    # without local reduction the two devices of a host send one each
    push, _ = push_and_pull(servers(4, 2))
    assert push.transfer == pytest.approx(2 * WEIGHT * 3 / 4 / BANDWIDTH)
    # with it they add up first: each reduces and scatters half over the links of the host
    push, _ = push_and_pull(servers(4, 2, local_reduce=True))
    assert push.transfer == pytest.approx(WEIGHT * 3 / 4 / BANDWIDTH + WEIGHT / 2 / BANDWIDTH)


def test_parameter_servers_on_hosts_of_their_own():
    # one server receives from all four hosts; four receive as much as a host sends
    push, pull = push_and_pull(servers(4, 1, servers=1))
    assert push.transfer == pytest.approx(4 * WEIGHT / BANDWIDTH)
    assert pull.num_bytes == WEIGHT
    push, _ = push_and_pull(servers(4, 1, servers=4))
    assert push.transfer == pytest.approx(WEIGHT / BANDWIDTH)
    # a server adds up four gradients of its quarter
    push, pull = push_and_pull(servers(4, 1, servers=4, server_rate=1e9))
    assert push.seconds == pytest.approx(WEIGHT / 1e9)
    assert pull.seconds == 0.0


def test_pieces_are_pulled_as_soon_as_they_are_pushed():
    result = servers(4, 1, bucket=WEIGHT / 4)
    tasks, line = result.task_times.graph.tasks, result.task_times
    pushes = [n for n, t in enumerate(tasks) if t.kind == "push"]
    pulls = [n for n, t in enumerate(tasks) if t.kind == "pull"]
    assert len(pushes) == len(pulls) == 4
    assert sum(tasks[n].num_bytes for n in pulls) == pytest.approx(WEIGHT)
    # one after the other, a push beside the pull before: 4 + 1 pieces of 3/4 of a quarter
    piece = WEIGHT / 4 * 3 / 4 / BANDWIDTH
    first = line.starts[pushes[0]]
    for n in range(4):
        assert line.ends[pushes[n]] - first == pytest.approx((n + 1) * piece)
        assert line.ends[pulls[n]] - first == pytest.approx((n + 2) * piece)


def test_the_next_step_begins_before_all_weights_are_pulled_if_the_runtime_allows_it():
    g = chain(4)
    where = cluster(1, 4)
    strategy = dp(g, 4, shape=(1, 4))
    runtime = load_runtime("ps-sync", crosses_steps=True)
    graph_ = compile_job(g, strategy, where, runtime=runtime).compile(2)
    line = run_graph(graph_, PLAIN).task_times
    pulls = [n for n, t in enumerate(graph_.tasks) if t.kind == "pull" and t.step == 0]
    forward = {t.name: n for n, t in enumerate(graph_.tasks) if (t.kind, t.step) == ("forward", 1)}
    by_layer = {graph_.tasks[n].name: n for n in pulls}
    for name in ("fc.0", "fc.3"):
        assert by_layer[name] in graph_.tasks[forward[name]].after
    assert line.starts[forward["relu"]] < max(line.ends[n] for n in pulls)
    # else the update, and all after it, waits for the last
    waiting = compile_job(g, strategy, where, runtime="ps-sync").compile(2)
    line = run_graph(waiting, PLAIN).task_times
    forward = next(n for n, t in enumerate(waiting.tasks) if (t.kind, t.step) == ("forward", 1))
    last = max(line.ends[n] for n, t in enumerate(waiting.tasks) if (t.kind, t.step) == ("pull", 0))
    assert line.starts[forward] >= last
