"""What a simulated step shows: its time, how busy each queue was, and what held memory."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from costmodels.simulation.breakdown import Interval, break_down, merged, uncovered
from costmodels.simulation.execution import HOST_QUEUES, ExecutionGraph, Queue
from costmodels.simulation.executor import Behaviour, TaskTimes, execute
from costmodels.simulation.ledger import HeldTensor
from costmodels.simulation.parts import Breakdown
from costmodels.step.memory import PeakMemory

# Tensors named at the peak of a role.
NUM_HELD = 12


class RoleUse(Struct, frozen=True, kw_only=True):
    """One role in a step.

    Parameters
    ----------
    name, first_device, num_devices
        The role. [items]
    busy
        Time that each queue works, by its name. [s]
    exposed
        Time in which communication is under way and nothing is computed. [s]
    idle
        Time in which neither is: bubbles, and what other roles or background threads take. [s]
    capacity
        Memory of each of its devices. [B]
    memory, memory_time
        The most it holds, and when. [B], [s]
    held
        The largest tensors in memory then.
    received
        Bytes that each of its devices receives from others. [B]
    host_memory
        What waits for each of its devices in the memory of their host, at most. [B]
    lasting
        The most it would hold, were its allocator not to give memory back in every step. [B]
    """

    name: str
    first_device: int
    num_devices: int
    capacity: float
    busy: Mapping[str, float]
    exposed: float
    idle: float
    memory: PeakMemory
    memory_time: float
    held: tuple[HeldTensor, ...]
    received: float
    host_memory: float = 0.0
    lasting: float = 0.0

    @property
    def short(self) -> float:
        """By how much the most it holds is above the memory of its devices; negative below. [B]"""
        return self.memory.total - self.capacity


class SimulatedStep(Struct, frozen=True, kw_only=True, eq=False):
    """A simulated step.

    Parameters
    ----------
    step_time
        The step; where steps reach into each other, the time from one to the next. [s]
    start, end
        The step that was measured, on the timeline. [s]
    task_times
        When every task ran.
    roles
        Each role during the step.
    longest
        The critical path where it is known; None for that of the tasks. [s]
    told_from
        Where only the tasks of a shorter step are known, one that is shorter yet, and how many
        times more the step has of what the one of the tasks has more than that.
    """

    step_time: float
    start: float
    end: float
    task_times: TaskTimes
    roles: tuple[RoleUse, ...]
    longest: float | None = None
    told_from: tuple[SimulatedStep, float] | None = None

    @property
    def critical_path(self) -> float:
        """The longest chain of dependencies at full speed, which no step is faster than. [s]"""
        return self.task_times.graph.critical_path() if self.longest is None else self.longest

    @property
    def peak(self) -> RoleUse:
        """The role that holds the most, as seen from the memory of its devices."""
        return max(self.roles, key=lambda role: (role.short, role.memory.total))

    @property
    def lasting_short(self) -> float:
        """How much more than its memory a role would hold, gave none any back in every step. [B]"""
        return max(max(role.memory.total, role.lasting) - role.capacity for role in self.roles)

    @property
    def slowest(self) -> RoleUse:
        """The role that computes the longest."""
        return max(self.roles, key=lambda role: role.busy[Queue.COMPUTE.name.lower()])

    def break_down(self, role: int) -> Breakdown:
        """What a role, by its number, spends the step on."""
        found = break_down(self.task_times, role, self.start, self.end)
        if self.told_from is None:
            return found
        less, times = self.told_from
        return found.beyond(less.break_down(role), times)


def _clipped(task_times: TaskTimes, start: float, end: float) -> list[dict[Queue, list[Interval]]]:
    """When the queues of every role are busy between two times."""
    rows: list[dict[Queue, list[Interval]]] = [
        {q: [] for q in Queue} for _ in task_times.graph.roles
    ]
    for number, task in enumerate(task_times.graph.tasks):
        first, last = max(task_times.starts[number], start), min(task_times.ends[number], end)
        if last > first and number not in task_times.fused:
            rows[task.role][Queue(task.queue)].append((first, last))
    return rows


def _bytes_by_role(graph: ExecutionGraph) -> list[float]:
    """Bytes that each device of every role receives in the last step. [B]"""
    total = [0.0] * len(graph.roles)
    for task in graph.tasks:
        if task.step == graph.steps - 1 and task.queue not in HOST_QUEUES:
            passes = 1.0
            if graph.fusion is not None and task.group >= 0:
                passes = graph.fusion.received(task.group)
            total[task.role] += task.num_bytes * passes
    return total


def _inside_passes(task_times: TaskTimes) -> list[dict[str, float]]:
    """What the whole passes of each role do inside, and how long they take as tasks. [s]"""
    rows = [
        dict.fromkeys(("compute", "feature", "exposed", "whole"), 0.0)
        for _ in task_times.graph.roles
    ]
    for number, task in enumerate(task_times.graph.tasks):
        if task.inside is not None:
            whole = task_times.ends[number] - task_times.starts[number]
            # one that is slowed down is so in all of its parts
            longer = whole / task.seconds if task.seconds else 1.0
            row = rows[task.role]
            row["whole"] += whole
            for name in ("compute", "feature", "exposed"):
                row[name] += getattr(task.inside, name) * longer
    return rows


def measure_step(task_times: TaskTimes) -> SimulatedStep:
    """Measure the last step of an execution, or the whole of a single one."""
    graph = task_times.graph
    start, end = 0.0, task_times.end
    if graph.steps > 1:
        ends = [0.0] * graph.steps
        for task, time in zip(graph.tasks, task_times.ends, strict=True):
            ends[task.step] = max(ends[task.step], time)
        start = ends[-2]
    roles = []
    busy, received = _clipped(task_times, start, end), _bytes_by_role(graph)
    inside = _inside_passes(task_times)
    for number, role in enumerate(graph.roles):
        rows = busy[number]
        computing = merged(rows[Queue.COMPUTE])
        talking = merged([row for q in Queue if q != Queue.COMPUTE for row in rows[q]])
        within = inside[number]
        exposed = sum(uncovered(talking, computing)) + within["exposed"]
        working = sum(last - first for first, last in computing) - within["exposed"]
        times = {q.name.lower(): sum(b - a for a, b in rows[q]) for q in Queue}
        times["compute"] += within["compute"] - within["whole"]
        times["feature"] += within["feature"]
        roles.append(
            RoleUse(
                name=role.name,
                first_device=role.first_device,
                num_devices=role.num_devices,
                capacity=role.capacity,
                busy=times,
                exposed=exposed,
                idle=max(end - start - working - exposed, 0.0),
                memory=task_times.ledger.peak_memory(number),
                memory_time=task_times.ledger.time[number],
                held=task_times.ledger.largest(number, NUM_HELD),
                received=received[number],
                host_memory=role.host_memory,
                lasting=(role.lasting or 0.0) + sum(role.fixed_memory.values()),
            )
        )
    return SimulatedStep(
        step_time=end - start,
        start=start,
        end=end,
        task_times=task_times,
        roles=tuple(roles),
    )


def run_graph(graph: ExecutionGraph, behaviour: Behaviour) -> SimulatedStep:
    """Run an execution graph and measure it."""
    return measure_step(execute(graph, behaviour))
