"""Run an execution graph: when each task starts and ends, and what each role holds meanwhile.

The executor of Proteus (VI): queues run beside each other; a computation slows down while
gradients or parameters travel, and they with it, by a factor 1 + gamma for the part that overlaps;
messages share the links they have in common, level by level. Feature communication does not slow
computation: what it could overlap with mostly waits for it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from costmodels.simulation.execution import ASYNCHRONOUS, ExecutionGraph, Queue
from costmodels.simulation.ledger import Ledger
from costmodels.simulation.sharing import Sharing

_QUEUES = tuple(int(queue) for queue in Queue)
_COMPUTE, _GRADIENT = int(Queue.COMPUTE), int(Queue.GRADIENT)
_ASYNC = tuple(int(queue) for queue in ASYNCHRONOUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What slows operations down while they run.

    Parameters
    ----------
    overlap_factor
        Gamma: how much longer computation and gradient communication take while both run.
    sharing
        Whether messages share links; otherwise each has them to itself.
    """

    overlap_factor: float = 0.0
    sharing: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskTimes:
    """When every task ran.

    Parameters
    ----------
    graph
        What was run.
    starts, ends
        Of each task; fused gradients share theirs. [s]
    ledger
        Memory of every role.
    fused
        For each gradient that travelled with another one, that one.
    """

    graph: ExecutionGraph
    starts: list[float]
    ends: list[float]
    ledger: Ledger
    fused: dict[int, int]

    @property
    def end(self) -> float:
        """When the last task ends. [s]"""
        return max(self.ends, default=0.0)


def execute(graph: ExecutionGraph, behaviour: Behaviour, ledger: Ledger | None = None) -> TaskTimes:
    """Run all tasks.

    Parameters
    ----------
    graph
        The tasks.
    behaviour
        What slows them down.
    ledger
        What keeps account of memory; a plain one by default.
    """
    run = _Run(graph, behaviour, ledger or Ledger(graph.roles, graph.tasks))
    run.start_all()
    while run.events:
        run.step()
    left = [task.name for task, end in zip(graph.tasks, run.ends, strict=True) if math.isnan(end)]
    assert not left, f"tasks wait for each other: {left[:5]}"
    return TaskTimes(
        graph=graph, starts=run.starts, ends=run.ends, ledger=run.ledger, fused=run.fused
    )


class _Run:
    """State of an execution. Work of a task is counted in seconds at full pace."""

    def __init__(self, graph: ExecutionGraph, behaviour: Behaviour, ledger: Ledger) -> None:
        self.graph, self.tasks = graph, graph.tasks
        self.slow = 1.0 / (1.0 + behaviour.overlap_factor)
        self.sharing = Sharing() if behaviour.sharing else None
        self.ledger = ledger
        count = len(graph.tasks)
        self.waiting = [len(task.after) for task in graph.tasks]
        self.dependents: list[list[int]] = [[] for _ in range(count)]
        self.lines: list[list[deque[int]]] = [[deque() for _ in _QUEUES] for _ in graph.roles]
        for number, task in enumerate(graph.tasks):
            for before in task.after:
                self.dependents[before].append(number)
            self.lines[task.role][task.queue].append(number)
        self.active: list[list[int]] = [[-1] * len(_QUEUES) for _ in graph.roles]
        self.starts, self.ends = [math.nan] * count, [math.nan] * count
        self.work = [0.0] * count  # left of the present part
        self.pace = [1.0] * count
        self.since = [0.0] * count
        self.share = [1.0] * count
        self.version = [0] * count
        self.flowing = [False] * count
        self.transfer = [task.transfer for task in graph.tasks]
        self.fused: dict[int, int] = {}
        self.travelling: dict[int, list[int]] = {}  # with the first gradient of a reduction
        # reductions of fused gradients that wait for the queue: first gradient, when agreed on
        self.agreed: list[deque[tuple[int, float]]] = [deque() for _ in graph.roles]
        self.events: list[tuple[float, int, int, int]] = []  # time, order, task or role, version
        self.order = 0
        self.now = 0.0
        self.wake: list[float] = [math.nan] * len(graph.roles)

    def start_all(self) -> None:
        for role in range(len(self.graph.roles)):
            for queue in _QUEUES:
                self._try(role, queue)

    def step(self) -> None:
        """The next event: a task has finished a part of its work, or gradients are looked for."""
        time, _, number, version = heapq.heappop(self.events)
        if version < 0:
            role = number
            if self.wake[role] == time:
                self.wake[role], self.now = math.nan, time
                self._fuse(role)
            return
        if version != self.version[number]:
            return
        self.now = time
        task = self.tasks[number]
        if not self.flowing[number] and self.transfer[number] > 0.0:
            self._flow(number)
            return
        self._end(number)
        if number in self.travelling:
            for other in self.travelling.pop(number):
                self.ends[other] = time
                self._release(other)
        if task.queue == _GRADIENT:
            self._reduce(task.role)
        self._try(task.role, task.queue)

    def _try(self, role: int, queue: int) -> None:
        """Start the first task of a queue, if the queue is free and the task is ready."""
        line = self.lines[role][queue]
        if not line or self.waiting[line[0]]:
            return
        task = self.tasks[line[0]]
        if self.graph.fusion is not None and queue == _GRADIENT and task.group >= 0:
            cycle = self.graph.fusion.cycle
            if math.isnan(self.wake[role]):
                ticks = math.ceil(self.now / cycle - 1e-9) if cycle > 0.0 else 0.0
                self.wake[role] = max(ticks * cycle, self.now)
                self._push(self.wake[role], role, -1)
        elif self.active[role][queue] < 0:
            self._start(line.popleft(), task.seconds)

    def _fuse(self, role: int) -> None:
        """Put all gradients that are ready together, in as many buffers as it takes."""
        fusion, line = self.graph.fusion, self.lines[role][_GRADIENT]
        assert fusion is not None
        while line and not self.waiting[line[0]] and self.tasks[line[0]].group >= 0:
            first = line.popleft()
            group, size = self.tasks[first].group, self.tasks[first].num_bytes
            others = []
            while line and not self.waiting[line[0]]:
                task = self.tasks[line[0]]
                if task.group != group or size + task.num_bytes > fusion.limit:
                    break
                size += task.num_bytes
                others.append(line.popleft())
            self.work[first], self.transfer[first] = fusion.cost(group, size)
            self.fused.update(dict.fromkeys(others, first))
            self.travelling[first] = others
            self.agreed[role].append((first, self.now + fusion.negotiation))
        self._reduce(role)

    def _reduce(self, role: int) -> None:
        """Start the next reduction of fused gradients, if the queue is free."""
        if self.agreed[role] and self.active[role][_GRADIENT] < 0:
            first, agreed = self.agreed[role].popleft()
            for other in self.travelling[first]:
                self.starts[other] = self.now
            self._start(first, max(agreed - self.now, 0.0) + self.work[first])

    def _start(self, number: int, seconds: float) -> None:
        task = self.tasks[number]
        role, queue = task.role, task.queue
        self.active[role][queue] = number
        self.starts[number] = self.now
        self.ledger.start(number, task, self.now)
        self.work[number], self.since[number] = seconds, self.now
        self._repace(role, queue)
        self._schedule(number)

    def _flow(self, number: int) -> None:
        """The bytes of a message start to flow."""
        self.flowing[number] = True
        self.work[number], self.since[number] = self.transfer[number], self.now
        if self.sharing is not None:
            self._shares(self.sharing.add(number, self.tasks[number].loads))
        self._schedule(number)

    def _end(self, number: int) -> None:
        task = self.tasks[number]
        self.ends[number] = self.now
        self.version[number] += 1
        self.active[task.role][task.queue] = -1
        if self.sharing is not None and self.flowing[number]:
            self._shares(self.sharing.remove(number))
        self.ledger.end(number, task, self.now)
        self._repace(task.role, task.queue)
        self._release(number)

    def _release(self, number: int) -> None:
        """What waited for a task may start."""
        for after in self.dependents[number]:
            self.waiting[after] -= 1
            if not self.waiting[after]:
                task = self.tasks[after]
                self._try(task.role, task.queue)

    def _shares(self, paces: object) -> None:
        assert isinstance(paces, dict)
        for number, pace in paces.items():
            self._advance(number)
            self.share[number] = pace
            self._schedule(number)

    def _advance(self, number: int) -> None:
        """Count the work done so far."""
        self.work[number] -= (self.now - self.since[number]) * self.pace[number]
        self.since[number] = self.now

    def _repace(self, role: int, queue: int) -> None:
        """A queue has become busy or free: others of its role run slower or faster."""
        if self.slow == 1.0:
            return
        active = self.active[role]
        if queue == _COMPUTE:
            touched = [active[q] for q in _ASYNC] + [active[_COMPUTE]]
        elif queue in _ASYNC:
            touched = [active[_COMPUTE]] + [active[q] for q in _ASYNC]
        else:
            return
        for number in touched:
            if number >= 0:
                self._advance(number)
                self._schedule(number)

    def _schedule(self, number: int) -> None:
        """Announce the end of the present part of a task at its present pace."""
        task = self.tasks[number]
        active = self.active[task.role]
        pace = self.share[number] if self.flowing[number] else 1.0
        if task.queue == _COMPUTE:
            overlapped = any(active[q] >= 0 for q in _ASYNC)
        else:
            overlapped = task.queue in _ASYNC and active[_COMPUTE] >= 0
        if overlapped:
            pace *= self.slow
        self.pace[number] = pace
        self.version[number] += 1
        left = max(self.work[number], 0.0) / pace
        self._push(self.now + left, number, self.version[number])

    def _push(self, time: float, number: int, version: int) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, number, version))
