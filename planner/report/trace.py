"""A simulated step as a trace in the Trace Event Format, which Perfetto and chrome://tracing open.

A role is a process and a queue a thread, so that numbers of threads are unique over all processes:
importers name a thread by its number alone. Times are whole nanoseconds, so that the events of a
queue touch but never overlap, which Perfetto would refuse. Tasks that take no time are left out and
counted in `otherData`. Gradients that travelled together are one event that lists its members.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from costmodels.errors import InputError
from costmodels.simulation.execution import HOST_QUEUES, Queue
from planner.output import write_text
from planner.report.trace_events import (
    INPUT_THREAD,
    STEP_PROCESS,
    STEP_THREAD,
    Event,
    arrow_events,
    event_times,
    memory_events,
    microseconds,
    peak_events,
    role_process,
    step_events,
    task_events,
)

if TYPE_CHECKING:
    from costmodels.simulation import SimulatedStep
    from planner.simulation.result import Simulation

THREADS = {
    Queue.COMPUTE: "computation",
    Queue.FEATURE: "feature communication",
    Queue.GRADIENT: "gradient communication",
    Queue.PARAMETER: "parameter communication",
    Queue.TO_HOST: "copies to the host",
    Queue.FROM_HOST: "copies from the host",
    Queue.HOST: "computation on the host",
}
# At one time slices come first: arrows bind to the slice that is open.
_ORDER = {"X": 0, "s": 1, "f": 1, "i": 2, "C": 3}


def save_trace(simulation: Simulation, path: str | os.PathLike[str]) -> None:
    """Write a simulated step as a trace that Perfetto and Chrome open.

    Raises
    ------
    InputError
        When a closed form was evaluated, which has no timeline.
    """
    if simulation.simulated is None:
        raise InputError(
            f"the step model {simulation.model} has no timeline to trace; use --model simulate"
        )
    write_text(path, trace_text(simulation))


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
    shown = event_times(timeline)
    events = [
        *step_events(simulation, simulated),
        *task_events(timeline, shown),
        *arrow_events(timeline, shown),
        *peak_events(simulated),
    ]
    for role in range(len(simulated.roles)):
        events += memory_events(timeline, role)
    events.sort(key=lambda event: (event["ts"], _ORDER[event["ph"]]))
    for event in events:
        event["ts"] = microseconds(event["ts"])
    left_out = len(timeline.graph.tasks) - len(shown) - len(timeline.fused)
    rows = [_line(event) for event in [*_name_events(simulation, simulated), *events]]
    # importers that read in pieces want the long list last
    head = f'"displayTimeUnit":"ms",\n"otherData":{_line(_other_data(simulation, left_out))}'
    return f'{{{head},\n"traceEvents":[\n' + ",\n".join(rows) + "\n]}\n"


def _line(value: Mapping[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _other_data(simulation: Simulation, left_out: int) -> dict[str, object]:
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


def _name_events(simulation: Simulation, simulated: SimulatedStep) -> Iterator[Event]:
    """What processes and threads are called, and their order."""
    subject = simulation.subject
    title = f"{subject.setting.model.name}, {subject.name}, {simulation.runtime.name}"
    yield from _metadata("process", STEP_PROCESS, STEP_PROCESS, f"step: {title}", 0)
    yield from _metadata("thread", STEP_PROCESS, STEP_THREAD, "step", 0)
    if simulation.input is not None:
        yield from _metadata("thread", STEP_PROCESS, INPUT_THREAD, "input", 1)
    for number, role in enumerate(simulated.roles):
        first, count = role.first_device, role.num_devices
        gpus = f"GPU {first}" if count == 1 else f"GPUs {first}-{first + count - 1}"
        once = "" if count == 1 else f" (simulated once for {count})"
        process = role_process(number)
        yield from _metadata("process", process, process, f"{role.name}: {gpus}{once}", number + 1)
        used = {task.queue for task in simulated.task_times.graph.tasks if task.role == number}
        for queue, name in THREADS.items():
            if queue in HOST_QUEUES and queue not in used:
                continue
            yield from _metadata("thread", process, process + queue, name, int(queue))


def _metadata(what: str, process: int, thread: int, name: str, index: int) -> Iterator[Event]:
    """What a process or thread is called, and its place among the others.

    Parameters
    ----------
    what
        "process" or "thread".
    process, thread
        Its numbers; those of a process are the same.
    name
        What it is called.
    index
        Its place.
    """
    for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": index})):
        yield {"ph": "M", "name": f"{what}_{key}", "pid": process, "tid": thread, "args": args}
