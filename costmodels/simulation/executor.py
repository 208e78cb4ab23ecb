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
from collections.abc import Mapping

from msgspec import Struct

from costmodels.simulation.execution import ASYNCHRONOUS, ExecutionGraph, Queue
from costmodels.simulation.ledger import Ledger
from costmodels.simulation.sharing import Sharing

_QUEUES = tuple(int(queue) for queue in Queue)
_COMPUTE, _GRADIENT = int(Queue.COMPUTE), int(Queue.GRADIENT)
_ASYNC = tuple(int(queue) for queue in ASYNCHRONOUS)
_ASYNC_FIRST, _COMPUTE_FIRST = (*_ASYNC, _COMPUTE), (_COMPUTE, *_ASYNC)


class Behaviour(Struct, frozen=True, kw_only=True):
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


class TaskTimes(Struct, frozen=True, kw_only=True, eq=False):
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
    run.run()
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
        # tasks whose end is new, and ~roles that are to wake, the last touched last
        self.touched: dict[int, None] = {}
        self.now = 0.0
        self.wake: list[float] = [math.nan] * len(graph.roles)

    def run(self) -> None:
        """Start what can be, then go from event to event."""
        for role in range(len(self.graph.roles)):
            for queue in _QUEUES:
                self._try(role, queue)
        self._announce()
        events, versions = self.events, self.version
        while events:
            time, _, number, version = heapq.heappop(events)
            if version < 0:
                if self.wake[number] == time:
                    self.wake[number], self.now = math.nan, time
                    self._fuse(number)
                    self._announce()
            elif version == versions[number]:
                self.now = time
                self._finish(number)
                self._announce()

    def _finish(self, number: int) -> None:
        """A task has finished a part of its work."""
        task = self.tasks[number]
        if not self.flowing[number] and self.transfer[number] > 0.0:
            self._flow(number)
            return
        self._end(number)
        if number in self.travelling:
            for other in self.travelling.pop(number):
                self.ends[other] = self.now
                self._release(other)
        if task.queue == _GRADIENT:
            self._reduce(task.role)
        if self.lines[task.role][task.queue]:
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
                self.touched[~role] = None
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
        self._touch(number)

    def _flow(self, number: int) -> None:
        """The bytes of a message start to flow."""
        self.flowing[number] = True
        self.work[number], self.since[number] = self.transfer[number], self.now
        if self.sharing is not None:
            self._shares(self.sharing.add(number, self.tasks[number].loads))
        self._touch(number)

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

    def _shares(self, paces: Mapping[int, float]) -> None:
        for number, pace in paces.items():
            self._advance(number)
            self.share[number] = pace

    def _advance(self, number: int) -> None:
        """Count the work done so far, at a pace that changes now."""
        now = self.now
        if self.since[number] != now:
            self.work[number] -= (now - self.since[number]) * self.pace[number]
            self.since[number] = now
        self._touch(number)

    def _touch(self, number: int) -> None:
        """A task has a new end, which is announced once all that happens now is known."""
        touched = self.touched
        if number in touched:
            del touched[number]
        touched[number] = None

    def _repace(self, role: int, queue: int) -> None:
        """A queue has become busy or free: others of its role run slower or faster."""
        if self.slow == 1.0:
            return
        active = self.active[role]
        if queue == _COMPUTE:
            others = _ASYNC_FIRST
        elif queue in _ASYNC:
            others = _COMPUTE_FIRST
        else:
            return
        for other in others:
            if active[other] >= 0:
                self._advance(active[other])

    def _announce(self) -> None:
        """Announce the end of the present part of each touched task at its present pace."""
        now, events, order = self.now, self.events, self.order
        for number in self.touched:
            order += 1
            if number < 0:
                heapq.heappush(events, (self.wake[~number], order, ~number, -1))
                continue
            task = self.tasks[number]
            active, queue = self.active[task.role], task.queue
            pace = self.share[number] if self.flowing[number] else 1.0
            if queue == _COMPUTE:
                for other in _ASYNC:
                    if active[other] >= 0:
                        pace *= self.slow
                        break
            elif queue in _ASYNC and active[_COMPUTE] >= 0:
                pace *= self.slow
            self.pace[number] = pace
            self.version[number] = version = self.version[number] + 1
            end = now + max(self.work[number], 0.0) / pace
            heapq.heappush(events, (end, order, number, version))
        self.order = order
        self.touched.clear()
