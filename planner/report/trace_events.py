"""The events of a trace: what every queue does, which role waits for which, and what memory holds.

The start of an event is in whole nanoseconds here, so that events can be put in order; it becomes
microseconds, in which its length is already, when the trace is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from costmodels.simulation.execution import ExecutionGraph, Queue, Task
from costmodels.units import format_bytes

if TYPE_CHECKING:
    from costmodels.simulation import SimulatedStep
    from costmodels.simulation.executor import TaskTimes
    from planner.simulation.result import Simulation

# One event of the format, as JSON.
Event = dict[str, Any]

# Process of what concerns all roles, and its threads; those of roles have numbers from 10 on.
STEP_PROCESS, STEP_THREAD, INPUT_THREAD = 1, 1, 2
# Names out of the reserved ones of chrome://tracing, which refuses a trace with any other.
_COLOURS = {
    "forward": "thread_state_running",
    "recompute": "thread_state_runnable",
    "backward": "rail_response",
    "backward of weight": "rail_animation",
    "update": "rail_load",
    "decode": "yellow",
}
_COMMUNICATION_COLOURS = {
    Queue.FEATURE: "thread_state_iowait",
    Queue.GRADIENT: "rail_idle",
    Queue.PARAMETER: "olive",
    Queue.TO_HOST: "grey",
    Queue.FROM_HOST: "generic_work",
    Queue.HOST: "rail_load",
}


def nanoseconds(seconds: float) -> int:
    """A time as a trace counts it. [ns]"""
    return round(seconds * 1e9)


def microseconds(whole: int) -> int | float:
    """Microseconds that are the same whole nanoseconds again where an importer truncates."""
    if whole % 1000 == 0:
        return whole // 1000
    value = whole / 1000
    return value if int(value * 1000) == whole else math.nextafter(value, math.inf)


def role_process(role: int) -> int:
    """Number of the process of a role."""
    return 10 * (role + 1)


def _place(task: Task) -> dict[str, int]:
    return {"pid": role_process(task.role), "tid": role_process(task.role) + task.queue}


def event_times(timeline: TaskTimes) -> dict[int, tuple[int, int]]:
    """Start and length of every task that is an event. [ns]"""
    result = {}
    for number, (start, end) in enumerate(zip(timeline.starts, timeline.ends, strict=True)):
        first, last = nanoseconds(start), nanoseconds(end)
        if last > first and number not in timeline.fused:
            result[number] = (first, last - first)
    return result


def step_events(simulation: Simulation, simulated: SimulatedStep) -> Iterator[Event]:
    """The step that was measured, and the loading of the next batch beside it."""
    start = nanoseconds(simulated.start)
    rows: list[tuple[int, str, float, dict[str, Any]]] = [
        (STEP_THREAD, "step", simulated.step_time, {"step": simulated.task_times.graph.steps - 1})
    ]
    loading = simulation.input
    if loading is not None:
        stages = {**loading.host_stages, **loading.shared_stages}
        args = {
            "bottleneck": loading.bottleneck,
            "hosts": loading.hosts,
            "stages_s": {name: seconds for name, seconds in stages.items() if seconds > 0.0},
        }
        rows.append((INPUT_THREAD, "load the next batch", loading.seconds, args))
    for thread, name, seconds, args in rows:
        length = nanoseconds(seconds)
        if length:
            yield {
                "ph": "X",
                "name": name,
                "cat": "input" if thread == INPUT_THREAD else "step",
                "pid": STEP_PROCESS,
                "tid": thread,
                "ts": start,
                "dur": microseconds(length),
                "args": args,
            }


def task_events(timeline: TaskTimes, shown: Mapping[int, tuple[int, int]]) -> Iterator[Event]:
    """What every queue does; gradients that travelled together are one event."""
    graph = timeline.graph
    members: dict[int, list[int]] = {}
    for other, first in timeline.fused.items():
        members.setdefault(first, []).append(other)
    for number, (start, length) in shown.items():
        task = graph.tasks[number]
        together = [task, *(graph.tasks[n] for n in members.get(number, ()))]
        colour = _COLOURS.get(task.kind) or _COMMUNICATION_COLOURS.get(Queue(task.queue), "grey")
        more = f" and {len(together) - 1} more" if len(together) > 1 else ""
        yield {
            "ph": "X",
            "name": f"{task.kind} {task.name}{more}",
            "cat": task.kind,
            "cname": colour,
            **_place(task),
            "ts": start,
            "dur": microseconds(length),
            "args": _task_facts(graph, together, length),
        }


def _task_facts(graph: ExecutionGraph, together: list[Task], length: int) -> dict[str, Any]:
    """What a task is, and how much longer it took than it would have alone."""
    task = together[0]
    num_bytes = sum(member.num_bytes for member in together)
    alone = task.seconds + task.transfer
    if graph.fusion is not None and task.group >= 0:
        alone = sum(graph.fusion.cost(task.group, num_bytes)) + graph.fusion.negotiation
    facts: dict[str, Any] = {"layer": task.name, "kind": task.kind, "step": task.step}
    if task.stage >= 0:
        facts["stage"] = task.stage
    if task.micro >= 0:
        facts["micro_batch"] = task.micro
    if num_bytes:
        facts["bytes"] = round(num_bytes)
    facts["alone_us"] = round(alone * 1e6, 3)
    facts["actual_us"] = length / 1000
    if alone > 0.0:
        facts["slowdown"] = round(length / 1e9 / alone, 4)
    if graph.fusion is not None and task.group >= 0:
        facts["members"] = [member.name for member in together]
    return facts


def arrow_events(timeline: TaskTimes, shown: Mapping[int, tuple[int, int]]) -> Iterator[Event]:
    """From what one role does to the first task of each other role that waits for it."""
    tasks = timeline.graph.tasks
    first: dict[tuple[int, int], int] = {}
    for number, task in enumerate(tasks):
        reader = timeline.fused.get(number, number)
        if reader not in shown:
            continue
        for before in task.after:
            if tasks[before].role == task.role or before not in shown:
                continue
            known = first.setdefault((before, task.role), reader)
            if shown[reader] < shown[known]:
                first[before, task.role] = reader

    def inside(number: int) -> int:
        # where two slices touch, viewers differ on which one is open
        start, length = shown[number]
        return start + min(length - 1, 1)

    for arrow, ((source, _), target) in enumerate(sorted(first.items()), start=1):
        common = {"name": "to another stage", "cat": "arrow", "id": arrow}
        yield {"ph": "s", **common, **_place(tasks[source]), "ts": inside(source)}
        yield {"ph": "f", "bp": "e", **common, **_place(tasks[target]), "ts": inside(target)}


def memory_events(timeline: TaskTimes, role: int) -> Iterator[Event]:
    """Memory of a role by holder, whenever it has changed. [B]"""
    log = timeline.ledger.log[role]
    now = {key: size for key, size in timeline.graph.roles[role].fixed_memory.items() if size}
    for _, _, holder, _ in log:
        now.setdefault(holder, 0.0)

    def state(time: int) -> Event:
        held = {holder: max(round(size), 0) for holder, size in now.items()}
        process = role_process(role)
        name = "memory [bytes]"
        return {"ph": "C", "name": name, "pid": process, "tid": process, "ts": time, "args": held}

    live: dict[Any, float] = {}
    last, rising, changed = 0, False, True
    for seconds, key, holder, size in log:
        time = nanoseconds(seconds)
        # of several changes at one time, the highest state and the last one
        if changed and (time > last or (rising and not size)):
            yield state(last)
            changed = False
        now[holder] += size if size else -live.pop(key)
        if size:
            live[key] = size
        last, rising, changed = time, bool(size), True
    yield state(last)
    if nanoseconds(timeline.end) > last:
        yield state(nanoseconds(timeline.end))


def peak_events(simulated: SimulatedStep) -> Iterator[Event]:
    """When each role holds the most."""
    for number, role in enumerate(simulated.roles):
        process = role_process(number)
        yield {
            "ph": "i",
            "s": "p",
            "name": f"peak memory: {format_bytes(role.memory.total)}",
            "cat": "memory",
            "pid": process,
            "tid": process,
            "ts": nanoseconds(role.memory_time),
            "args": {
                "moment": role.memory.moment,
                "bytes": round(role.memory.total),
                "holders": {h: round(s) for h, s in role.memory.holders.items() if s},
            },
        }
