"""Small execution graphs, whose tasks and times can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from costmodels.simulation.execution import ExecutionGraph, Fusion, Queue, Role, Task
from costmodels.simulation.executor import Behaviour, TaskTimes, execute

COMPUTE, FEATURE, GRADIENT, PARAMETER, TO_HOST, FROM_HOST, HOST = Queue


NIC, BUS, OTHER = (1, 0, 0), (0, 0, 0), (0, 1, 0)


def task(queue: int, seconds: float = 0.0, *after: int, role: int = 0, **more: Any) -> Task:
    plain = {"name": "task", "kind": "test", **more}
    return Task(role=role, queue=queue, seconds=seconds, after=after, **plain)


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


parts = st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0])


some_links = st.sampled_from([NIC, BUS, OTHER, (1, 0, 1)])


some_loads = st.dictionaries(some_links, parts, min_size=1, max_size=3).map(
    lambda row: tuple(row.items())
)


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
