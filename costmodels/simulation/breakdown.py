"""What a role spends a step on: moment by moment, so that the parts add up to the step.

A moment in which the role computes is computation. In one in which it does not, computation waits
for the communication that is under way: that of features, which it always waits for, else that of
parameters, else copies from the host, else gradients, else copies to the host and what it computes.
The rest is idle: bubbles, and what other roles or background threads take. Communication beside
computation, or beside communication that is waited for, is hidden. What computation takes longer
than alone, because gradients or parameters travel, is a part of its own, so that the price of
hiding is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costmodels.simulation.execution import HOST_QUEUES, Queue, Task
from costmodels.simulation.executor import TaskTimes
from costmodels.simulation.parts import CAUSES, COMMUNICATION, Breakdown

Interval = tuple[float, float]
# Which communication computation waits for where several are under way.
_WAITED_FOR = (
    *(Queue.FEATURE, Queue.PARAMETER, Queue.FROM_HOST),
    *(Queue.GRADIENT, Queue.TO_HOST, Queue.HOST),
)
# Sums over ranks; other messages between layers change where a tensor lies.
_REDUCTIONS = ("all_reduce", "reduce_scatter")
# Of computation by its kind, what it is of a layer.
_PASSES = {"forward": "forward", "recompute": "backward", "backward": "backward"}
_PASSES["backward of weight"] = "backward"


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """Intervals in order, those that touch joined."""
    result: list[Interval] = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        elif end > start:
            result.append((start, end))
    return result


def uncovered(intervals: Sequence[Interval], covers: Sequence[Interval]) -> Iterator[float]:
    """Of each of some intervals, one after the other, what merged intervals do not cover."""
    place = 0
    for start, end in intervals:
        length, at = 0.0, start
        while place < len(covers) and covers[place][1] <= at:
            place += 1
        scan = place
        while scan < len(covers) and covers[scan][0] < end:
            length += max(covers[scan][0] - at, 0.0)
            at = max(at, covers[scan][1])
            scan += 1
        yield length + max(end - at, 0.0)


def break_down(times: TaskTimes, role: int, start: float, end: float) -> Breakdown:
    """What a role spends the time between two moments on.

    Parameters
    ----------
    times
        When every task ran.
    role
        Number of the role.
    start, end
        The moments. [s]
    """
    causes = dict.fromkeys(CAUSES, 0.0)
    hidden = dict.fromkeys(COMMUNICATION, 0.0)
    layers: dict[str, dict[str, float]] = {}
    rows = _tasks_between(times, role, start, end)
    for task, (first, last) in rows[Queue.COMPUTE]:
        length = last - first
        # a task that reaches into the step counts as far as it does
        whole = times.ends[task] - times.starts[task]
        alone = min(times.graph.tasks[task].seconds * length / whole, length)
        causes["slowdown"] += length - alone
        inside = times.graph.tasks[task].inside
        if inside is not None:
            _add_pass(causes, hidden, layers, inside.parts, alone)
            continue
        causes[_cause(times.graph.tasks[task])] += alone
        _charge(layers, times.graph.tasks[task], alone)
    covered = merged([interval for _, interval in rows[Queue.COMPUTE]])
    for queue in _WAITED_FOR:
        intervals = [interval for _, interval in rows[queue]]
        exposed = uncovered(intervals, covered)
        for (task, (first, last)), seconds in zip(rows[queue], exposed, strict=True):
            cause = _cause(times.graph.tasks[task])
            causes[cause] += seconds
            hidden[cause] += last - first - seconds
            if queue == Queue.FEATURE:
                _charge(layers, times.graph.tasks[task], seconds)
        covered = merged([*covered, *intervals])
    causes["idle"] = max(end - start - sum(causes.values()), 0.0)
    return Breakdown(causes=causes, hidden=hidden, layers=layers)


def _add_pass(
    causes: dict[str, float],
    hidden: dict[str, float],
    layers: dict[str, dict[str, float]],
    parts: Breakdown,
    seconds: float,
) -> None:
    """Add what a whole pass is made of.

    Parameters
    ----------
    causes, hidden, layers
        As of `Breakdown`. [s]
    parts
        What the pass is made of, alone.
    seconds
        How much of it counts. [s]
    """
    whole = sum(parts.causes.values())
    share = seconds / whole if whole else 0.0
    for cause, taken in parts.causes.items():
        causes[cause] += taken * share
    for cause, taken in parts.hidden.items():
        hidden[cause] += taken * share
    for name, times in parts.layers.items():
        mine = layers.setdefault(name, {})
        for what, taken in times.items():
            mine[what] = mine.get(what, 0.0) + taken * share


def _tasks_between(
    times: TaskTimes, role: int, start: float, end: float
) -> dict[int, list[tuple[int, Interval]]]:
    """By queue the tasks of a role between two moments, in their order.

    Parameters
    ----------
    times, role, start, end
        As of `break_down`.
    """
    rows: dict[int, list[tuple[int, Interval]]] = {queue: [] for queue in Queue}
    for number, task in enumerate(times.graph.tasks):
        if task.role == role:
            first, last = max(times.starts[number], start), min(times.ends[number], end)
            if last > first and number not in times.fused:
                rows[task.queue].append((number, (first, last)))
    for found in rows.values():
        found.sort(key=lambda row: row[1])
    return rows


def _cause(task: Task) -> str:
    """Which of `CAUSES` a task is, when it runs alone."""
    if task.queue == Queue.COMPUTE:
        return "update" if task.kind == "update" else "compute"
    if task.queue == Queue.GRADIENT:
        return "gradient"
    if task.queue == Queue.PARAMETER:
        return "parameter"
    if task.queue in HOST_QUEUES:
        return "host"
    if task.kind == "halo exchange":
        return "halo"
    return "reduction" if task.kind in _REDUCTIONS else "shuffle"


def _charge(layers: dict[str, dict[str, float]], task: Task, seconds: float) -> None:
    """Add time of a task to the layer that it is of.

    Parameters
    ----------
    layers
        Times of layers.
    task
        The task.
    seconds
        Its time. [s]
    """
    what = _PASSES.get(task.kind) if task.queue == Queue.COMPUTE else _cause(task)
    if what is not None:
        mine = layers.setdefault(task.name, {})
        mine[what] = mine.get(what, 0.0) + seconds
