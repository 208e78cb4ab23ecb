"""A simulated step as a trace in the Trace Event Format, which Perfetto and chrome://tracing open.

A role is a process and a queue a thread, so that numbers of threads are unique over all processes:
importers name a thread by its number alone. Times are whole nanoseconds, so that the events of a
queue touch but never overlap, which Perfetto would refuse. Tasks that take no time are left out and
counted in `otherData`. Gradients that travelled together are one event that lists its members.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from costmodels.simulation.execution import ExecutionGraph, Queue, Task
from costmodels.units import format_bytes

if TYPE_CHECKING:
    from costmodels.simulation import SimulatedStep
    from costmodels.simulation.executor import TaskTimes
    from planner.simulation.run import Simulation

Event = dict[str, Any]

THREADS = {
    Queue.COMPUTE: "computation",
    Queue.FEATURE: "feature communication",
    Queue.GRADIENT: "gradient communication",
    Queue.PARAMETER: "parameter communication",
}
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
}
# At one time slices come first: arrows bind to the slice that is open.
_ORDER = {"X": 0, "s": 1, "f": 1, "i": 2, "C": 3}


def trace_text(simulation: Simulation) -> str:
    """The trace as JSON, the same for the same simulation.

    Parameters
    ----------
    simulation
        A simulated step; a closed form has no timeline.
    """
    simulated = simulation.simulated
    assert simulated is not None, "save_trace refuses closed forms"
    timeline = simulated.task_times
    shown = _shown(timeline)
    events = [
        *_step_events(simulation, simulated),
        *_task_events(timeline, shown),
        *_arrows(timeline, shown),
        *_peaks(simulated),
    ]
    for role in range(len(simulated.roles)):
        events += _memory_events(timeline, role)
    events.sort(key=lambda event: (event["ts"], _ORDER[event["ph"]]))
    for event in events:
        event["ts"] = _microseconds(event["ts"])
    left_out = len(timeline.graph.tasks) - len(shown) - len(timeline.fused)
    rows = [_line(event) for event in [*_names(simulation, simulated), *events]]
    # importers that read in pieces want the long list last
    head = f'"displayTimeUnit":"ms",\n"otherData":{_line(_facts(simulation, left_out))}'
    return f'{{{head},\n"traceEvents":[\n' + ",\n".join(rows) + "\n]}\n"


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _microseconds(nanoseconds: int) -> int | float:
    """Microseconds that are the same nanoseconds again where an importer truncates."""
    if nanoseconds % 1000 == 0:
        return nanoseconds // 1000
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)


def _process(role: int) -> int:
    return 10 * (role + 1)


def _place(task: Task) -> dict[str, int]:
    return {"pid": _process(task.role), "tid": _process(task.role) + task.queue}


def _shown(timeline: TaskTimes) -> dict[int, tuple[int, int]]:
    """Start and length of every task that is an event. [ns]"""
    result = {}
    for number, (start, end) in enumerate(zip(timeline.starts, timeline.ends, strict=True)):
        first, last = _nanoseconds(start), _nanoseconds(end)
        if last > first and number not in timeline.fused:
            result[number] = (first, last - first)
    return result


# names


def _facts(simulation: Simulation, left_out: int) -> dict[str, Any]:
    """What was simulated."""
    keys = (
        "model",
        "cluster",
        "gpus",
        "global_batch_size",
        "precision",
        "strategy",
        "schedule",
        "micro_batches",
        "runtime",
        "step_model",
        "step_time_s",
        "throughput_samples_per_s",
        "notes",
    )
    summary = simulation.summary()
    facts = {key: summary[key] for key in keys}
    return {**facts, "tasks_of_no_time_left_out": left_out}


def _names(simulation: Simulation, simulated: SimulatedStep) -> Iterator[Event]:
    """What processes and threads are called, and their order."""
    subject = simulation.subject
    title = f"{subject.setting.model.name}, {subject.name}, {simulation.runtime.name}"
    yield from _named("process", STEP_PROCESS, STEP_PROCESS, f"step: {title}", 0)
    yield from _named("thread", STEP_PROCESS, STEP_THREAD, "step", 0)
    if simulation.input is not None:
        yield from _named("thread", STEP_PROCESS, INPUT_THREAD, "input", 1)
    for number, role in enumerate(simulated.roles):
        first, count = role.first_device, role.num_devices
        gpus = f"GPU {first}" if count == 1 else f"GPUs {first}-{first + count - 1}"
        once = "" if count == 1 else f" (simulated once for {count})"
        process = _process(number)
        yield from _named("process", process, process, f"{role.name}: {gpus}{once}", number + 1)
        for queue, name in THREADS.items():
            yield from _named("thread", process, process + queue, name, int(queue))


def _named(what: str, process: int, thread: int, name: str, index: int) -> Iterator[Event]:
    for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": index})):
        yield {"ph": "M", "name": f"{what}_{key}", "pid": process, "tid": thread, "args": args}


# slices


def _step_events(simulation: Simulation, simulated: SimulatedStep) -> Iterator[Event]:
    """The step that was measured, and the loading of the next batch beside it."""
    start = _nanoseconds(simulated.start)
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
        length = _nanoseconds(seconds)
        if length:
            yield {
                "ph": "X",
                "name": name,
                "cat": "input" if thread == INPUT_THREAD else "step",
                "pid": STEP_PROCESS,
                "tid": thread,
                "ts": start,
                "dur": _microseconds(length),
                "args": args,
            }


def _task_events(timeline: TaskTimes, shown: Mapping[int, tuple[int, int]]) -> Iterator[Event]:
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
            "dur": _microseconds(length),
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


def _arrows(timeline: TaskTimes, shown: Mapping[int, tuple[int, int]]) -> Iterator[Event]:
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


# memory


def _memory_events(timeline: TaskTimes, role: int) -> Iterator[Event]:
    """Memory of a role by holder, whenever it has changed. [B]"""
    log = timeline.ledger.log[role]
    now = {key: size for key, size in timeline.graph.roles[role].fixed_memory.items() if size}
    for _, _, holder, _ in log:
        now.setdefault(holder, 0.0)

    def state(time: int) -> Event:
        held = {holder: max(round(size), 0) for holder, size in now.items()}
        process = _process(role)
        name = "memory [bytes]"
        return {"ph": "C", "name": name, "pid": process, "tid": process, "ts": time, "args": held}

    live: dict[Any, float] = {}
    last, rising, changed = 0, False, True
    for seconds, key, holder, size in log:
        time = _nanoseconds(seconds)
        # of several changes at one time, the highest state and the last one
        if changed and (time > last or (rising and not size)):
            yield state(last)
            changed = False
        now[holder] += size if size else -live.pop(key)
        if size:
            live[key] = size
        last, rising, changed = time, bool(size), True
    yield state(last)
    if _nanoseconds(timeline.end) > last:
        yield state(_nanoseconds(timeline.end))


def _peaks(simulated: SimulatedStep) -> Iterator[Event]:
    """When each role holds the most."""
    for number, role in enumerate(simulated.roles):
        process = _process(number)
        yield {
            "ph": "i",
            "s": "p",
            "name": f"peak memory: {format_bytes(role.memory.total)}",
            "cat": "memory",
            "pid": process,
            "tid": process,
            "ts": _nanoseconds(role.memory_time),
            "args": {
                "moment": role.memory.moment,
                "bytes": round(role.memory.total),
                "holders": {h: round(s) for h, s in role.memory.holders.items() if s},
            },
        }
