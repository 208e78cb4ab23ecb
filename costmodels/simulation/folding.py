"""A whole pass of a stage over one micro-batch as one task, where nothing else reaches into it.

Between the messages that come before it and those that it sends, a pass runs by itself: its layers
and their collectives wait for nothing but each other. It is then run once, alone, and laid out as
one task with its time, what it leaves in memory and what it holds at most, however many
micro-batches there are. The last micro-batch is laid out operation by operation, since gradients
travel beside it. What messages between stages, and gradients of other stages of the same devices,
share with the collectives inside of a pass is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from costmodels.simulation.breakdown import break_down, merged, uncovered
from costmodels.simulation.execution import (
    ExecutionGraph,
    Inside,
    Queue,
    Role,
    Task,
    TensorKey,
)
from costmodels.simulation.executor import Behaviour, TaskTimes, execute
from costmodels.simulation.ledger import Ledger
from costmodels.simulation.operations import SENDS, Key, Made, Operation, Ref
from costmodels.simulation.schedules import WEIGHT

_BARRIER = "barrier"
# The phases of a stage with their operations.
Phases = Sequence[tuple[str, Sequence[Operation]]]
# What is held and how the holders share it.
Held = dict[TensorKey, tuple[str, float]]
# A message may begin that much of a pass before its end, for what little is then held up.
_NEAR_THE_END = 0.02


class FoldedPass(NamedTuple):
    """A pass as one operation, and the messages that it sends."""

    operation: Operation
    sends: tuple[Operation, ...]


def fold_key(stage: int, phase: str) -> Key:
    """The key of the operation that a pass is folded into."""
    return ("pass", phase, stage)


class _PartLedger(Ledger):
    """A ledger that tells the parts of an execution apart: the phases, by micro-batch number."""

    def __init__(self, roles: Sequence[Role], tasks: Sequence[Task]) -> None:
        super().__init__(roles, tasks)
        self.before: list[Held] = []
        self.most: dict[int, _Most] = {}

    def start(self, number: int, task: Task, time: float) -> None:
        """A task starts; take note where a part has never held more."""
        if task.kind == _BARRIER:
            self.before.append(dict(self.live[0]))
            return
        super().start(number, task, time)
        running = self.running[0].values()
        total = self.total[0] + sum(other.scratch + other.buffer for other in running)
        known = self.most.get(task.micro)
        if known is not None and total <= known.total:
            return
        holders = dict(self.now[0])
        for other in running:
            holders["workspace"] += other.scratch
            holders["communication buffers"] += other.buffer
        self.most[task.micro] = _Most(
            total, holders, task.kind, task.name, time, dict(self.live[0])
        )


class _Most(NamedTuple):
    """The most that a part holds: in all, by holder, in which task, when, in which tensors."""

    total: float
    holders: dict[str, float]
    kind: str
    name: str
    time: float
    held: Held


class _Alone(Struct, frozen=True, kw_only=True):
    """The passes of a stage, run one after the other by themselves.

    Parameters
    ----------
    times
        When every task ran.
    ledger
        What was held.
    bounds
        When each phase starts and ends. [s]
    """

    times: TaskTimes
    ledger: _PartLedger
    bounds: tuple[tuple[float, float], ...]


def _run_alone(phases: Phases, stage: int) -> _Alone:
    """Run the phases of a stage one after the other, each after the one before."""
    tasks: list[Task] = [Task(name="", kind=_BARRIER, role=0, queue=0, micro=0)]
    for part, (phase, operations) in enumerate(phases):
        ids: dict[Key, int] = {}
        barrier = len(tasks) - 1
        for op in operations:
            inside = (ids.get(key) for s, p, key in op.after if s == stage and p == phase)
            after = (barrier, *(number for number in inside if number is not None))
            ids[op.key] = len(tasks)
            tasks.append(_task(op, after, part))
        after = tuple(range(barrier, len(tasks)))
        tasks.append(Task(name="", kind=_BARRIER, role=0, queue=0, micro=part, after=after))
    role = Role(name="alone", first_device=0, num_devices=1)
    graph = ExecutionGraph(roles=(role,), tasks=tuple(tasks))
    ledger = _PartLedger(graph.roles, graph.tasks)
    times = execute(graph, Behaviour(), ledger)
    ends = [times.ends[n] for n, task in enumerate(tasks) if task.kind == _BARRIER]
    return _Alone(times=times, ledger=ledger, bounds=tuple(pairwise(ends)))


def _task(op: Operation, after: tuple[int, ...], part: int) -> Task:
    sent = op.key[0] in SENDS
    return Task(
        name=op.name,
        kind=op.kind,
        role=0,
        queue=int(op.queue),
        micro=part,
        seconds=0.0 if sent else op.seconds,
        transfer=0.0 if sent else op.transfer,
        loads=() if sent else op.loads,
        after=tuple(dict.fromkeys(after)),
        num_bytes=0.0 if sent else op.num_bytes,
        makes=tuple(((0, *key), holder, size) for key, holder, size in op.makes),
        takes=tuple((0, *key) for key in op.takes),
        uses=tuple((0, *key) for key in op.uses),
        scratch=op.scratch,
        buffer=op.buffer,
    )


class _Summary(NamedTuple):
    """What a pass takes, leaves and holds: by itself, whatever its layers are called. [s], [B]"""

    seconds: float
    left: Held
    most: _Most
    inside: Inside


def fold_stages(stages: Mapping[int, Phases]) -> dict[int, Mapping[str, FoldedPass]]:
    """The passes of stages as one operation each; without those that send in the middle of a pass.

    Parameters
    ----------
    stages
        The phases of each stage with their operations, in their order. Stages that differ in the
        names of their layers only are run once.
    """
    known: dict[object, tuple[list[str], list[_Summary] | None]] = {}
    found: dict[int, Mapping[str, FoldedPass]] = {}
    for stage, all_phases in stages.items():
        phases = [(phase, operations) for phase, operations in all_phases if operations]
        names = list(dict.fromkeys(_names(phases)))
        structure = _structure(phases, stage, names)
        if structure not in known:
            known[structure] = names, _summaries(phases, stage)
        first, summaries = known[structure]
        if summaries is not None:
            called = dict(zip(first, names, strict=True))
            found[stage] = _passes(phases, stage, summaries, called)
    return found


def _names(phases: Phases) -> Iterator[str]:
    """All names in the operations of a stage, in their order."""
    for _, operations in phases:
        for op in operations:
            yield op.key[1]
            yield from (key[1] for key, _, _ in op.makes)
            yield from (key[1] for key in (*op.takes, *op.uses))


def _structure(phases: Phases, stage: int, names: Sequence[str]) -> object:
    """What is equal for stages that do the same, layer by layer."""
    number = {name: place for place, name in enumerate(names)}
    rows: list[object] = []
    for phase, operations in phases:
        place = {op.key: n for n, op in enumerate(operations)}
        rows.append(phase)
        for op in operations:
            before = (place.get(key, -1) for s, p, key in op.after if (s, p) == (stage, phase))
            made = (((k[0], number[k[1]], k[2]), holder, size) for k, holder, size in op.makes)
            read = ((k[0], number[k[1]], k[2]) for k in (*op.takes, *op.uses))
            measures = (op.seconds, op.transfer, op.num_bytes, op.scratch, op.buffer)
            row = (op.key[0], op.kind, op.queue, number[op.key[1]], len(op.takes))
            rows.append((row, tuple(before), measures, tuple(made), tuple(read)))
    return tuple(rows)


def _summaries(phases: Phases, stage: int) -> list[_Summary] | None:
    """What each pass takes, leaves and holds, None where a message leaves in the middle of one."""
    alone = _run_alone(phases, stage)
    first, rows = 1, []
    for part, (_, operations) in enumerate(phases):
        start, end = alone.bounds[part]
        numbers = range(first, first + len(operations))
        for number, op in zip(numbers, operations, strict=True):
            early = end - alone.times.starts[number] > _NEAR_THE_END * (end - start)
            if op.key[0] in SENDS and early:
                return None
        most, left = alone.ledger.most[part], alone.ledger.before[part + 1]
        inside = _inside(alone, numbers, (start, end), most, left)
        rows.append(_Summary(end - start, left, most, inside))
        first += len(operations) + 1
    return rows


def _passes(
    phases: Phases, stage: int, summaries: Sequence[_Summary], called: Mapping[str, str]
) -> dict[str, FoldedPass]:
    """The passes of a stage as operations.

    Parameters
    ----------
    phases, stage
        The phases with their operations, and the number of the stage.
    summaries
        Of each phase, by the names of a stage that does the same.
    called
        What is called how here, by these names.
    """
    result: dict[str, FoldedPass] = {}
    stash: tuple[Made, ...] = ()
    for (phase, operations), summary in zip(phases, summaries, strict=True):
        sends = [op for op in operations if op.key[0] in SENDS]
        others = [op for op in operations if op.key[0] not in SENDS]
        made = _stash(summary.left, stage, phase)
        more = _transient(summary.most.holders, (*stash, *made), stage, phase)
        own = {op.key for op in operations}
        outside = (
            ref
            for op in others
            for ref in op.after
            if not (ref[:2] == (stage, phase) and ref[2] in own)
        )
        operation = Operation(
            key=fold_key(stage, phase),
            kind="backward of weight" if phase == WEIGHT else phase,
            queue=Queue.COMPUTE,
            after=tuple(dict.fromkeys(_folded(ref, stage) for ref in outside)),
            seconds=summary.seconds,
            num_bytes=sum(op.num_bytes for op in others),
            makes=(*made, *more),
            uses=tuple(key for key, _, _ in (*stash, *more)),
            inside=_inside_called(summary.inside, summary.most, called),
        )
        done: Ref = (stage, phase, operation.key)
        result[phase] = FoldedPass(
            operation, tuple(op._replace(after=(done,), uses=()) for op in sends)
        )
        stash = made
    return result


def _inside_called(inside: Inside, most: _Most, called: Mapping[str, str]) -> Inside:
    """What happens inside, by the names of another stage."""

    def rows(
        tensors: tuple[tuple[TensorKey, str, float], ...],
    ) -> Iterator[tuple[TensorKey, str, float]]:
        for (micro, what, name, which), holder, size in tensors:
            yield (micro, what, called.get(name, name), which), holder, size

    layers = {called.get(name, name): times for name, times in inside.parts.layers.items()}
    return inside._replace(
        parts=replace(inside.parts, layers=layers),
        moment=f"{most.kind} of {called.get(most.name, most.name)}",
        held=tuple(rows(inside.held)),
        left=tuple(rows(inside.left)),
    )


def _folded(ref: Ref, stage: int) -> Ref:
    """A reference to an operation of the stage, as one to the pass that it is folded into."""
    other, phase, key = ref
    mine = other == stage and key[0] not in SENDS
    return (other, phase, fold_key(stage, phase)) if mine else ref


def _stash(held: Held, stage: int, phase: str) -> tuple[Made, ...]:
    """What a pass leaves for later ones, one tensor for each holder."""
    sizes: dict[str, float] = {}
    for holder, size in held.values():
        sizes[holder] = sizes.get(holder, 0.0) + size
    return tuple(
        ((f"left by {phase}", holder, stage), holder, size) for holder, size in sizes.items()
    )


def _transient(
    holders: Mapping[str, float], stashes: Sequence[Made], stage: int, phase: str
) -> tuple[Made, ...]:
    """What the most that a pass holds is more than its stashes; less, for what it freed by then."""
    rest = dict(holders)
    for _, holder, size in stashes:
        rest[holder] -= size
    rows = ((("within", f"{phase} {holder}", stage), holder, size) for holder, size in rest.items())
    return tuple(row for row in rows if row[2])


def _inside(
    alone: _Alone, numbers: Sequence[int], bounds: tuple[float, float], most: _Most, left: Held
) -> Inside:
    """What a pass does inside.

    Parameters
    ----------
    alone
        The passes of the stage.
    numbers, bounds
        The tasks of this one, and when it starts and ends. [s]
    most, left
        The most that it holds, and what it leaves.
    """
    times, tasks = alone.times, alone.times.graph.tasks
    rows: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in numbers:
        if times.ends[number] > times.starts[number]:
            computes = tasks[number].queue == Queue.COMPUTE
            rows[computes].append((times.starts[number], times.ends[number]))
    computing, talking = merged(rows[True]), merged(rows[False])
    return Inside(
        compute=sum(last - begin for begin, last in rows[True]),
        feature=sum(last - begin for begin, last in rows[False]),
        exposed=sum(uncovered(talking, computing)),
        moment="",
        offset=most.time - bounds[0],
        held=tuple((key, holder, size) for key, (holder, size) in most.held.items()),
        left=tuple((key, holder, size) for key, (holder, size) in left.items()),
        parts=break_down(times, 0, *bounds),
    )
