"""What an allocator holds beyond the tensors of a step, since free memory lies in pieces.

The tensors of a role are given to the allocator in the order in which a host launches its passes,
in a first step. Micro-batches are alike, so that the first ones stand for all. What is there
throughout (weights, gradients, state) came first, in segments of its own; where the optimizer makes
its state in the first update, it lies where activations were, and a second step shows the rest.
Assumes one stream: what another one still reads is taken as free when the host has launched its
last reader, but for inputs of reduce-scatters of runtimes that say how far ahead of the device they
are: those are free when the device is through with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from costmodels.simulation.allocator import CachingAllocator
from costmodels.simulation.execution import Queue
from costmodels.simulation.host import delayed, launches
from costmodels.simulation.operations import Key, Local, Operation
from costmodels.simulation.pace import SIMULATED, Starts, most_in_flight, until_joined
from costmodels.simulation.schedules import BACKWARD, FORWARD, StagePass
from costmodels.simulation.updates import update_operations
from costmodels.simulation.weights import WeightWork

# Stands for the stages of the update.
_UPDATE = -1
# Tensors of a stage that have a number, so that none is looked for by its name again and again.
Numbers = dict[Local, int]


class Reserved(NamedTuple):
    """What an allocator has from the device. [B]

    Parameters
    ----------
    taken, lasting
        After a step, or where that fails; and the most that it asks for in a further one, which is
        more than the device has where each of those gives free segments back.
    """

    taken: float
    lasting: float


class _Launch(NamedTuple):
    """What an operation does to memory whenever it is launched, and what its launch takes.

    Parameters
    ----------
    operation
        The operation.
    takes, makes, uses
        Tensors by their number; made ones with their size. [B]
    own
        What it has to itself while it runs. [B]
    kernels, seconds
        Its launches, and what a host that runs ahead takes for them. [items], [s]
    """

    operation: Operation
    takes: tuple[int, ...]
    makes: tuple[tuple[int, float], ...]
    uses: tuple[int, ...]
    own: tuple[float, ...]
    kernels: float
    seconds: float

    @classmethod
    def of(
        cls, operation: Operation, numbers: Numbers, kernels: float = 0.0, seconds: float = 0.0
    ) -> _Launch:
        """The launch of an operation.

        Parameters
        ----------
        operation, kernels, seconds
            As above.
        numbers
            Of the tensors of its stage; new ones are added.
        """

        def number(key: Local) -> int:
            return numbers.setdefault(key, len(numbers))

        return cls(
            operation=operation,
            takes=tuple(map(number, operation.takes)),
            makes=tuple((number(key), size) for key, _, size in operation.makes if size),
            uses=tuple(map(number, operation.uses)),
            own=tuple(size for size in (operation.scratch, operation.buffer) if size),
            kernels=kernels,
            seconds=seconds,
        )


class _Clock:
    """When a host launches operations, and when its device is through with them.

    Parameters
    ----------
    ahead
        Launches that may wait for the device. [items]
    """

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.host = self.earliest = 0.0
        self.waiting = 0.0
        self.launched: deque[tuple[float, float]] = deque()  # launches, and their end
        self.free: dict[Queue, float] = {}
        self.ends: dict[tuple[int, int, Key], float] = {}

    def launch(
        self, part: tuple[int, int], operation: Operation, count: float, seconds: float
    ) -> float:
        """Launch an operation; the time when the device is through with it. [s]

        Parameters
        ----------
        part
            Stage and micro-batch.
        operation
            The operation.
        count, seconds
            Its launches, and what the host takes for them. [items], [s]
        """
        self.waiting += count
        while self.launched and self.waiting > self.ahead:
            launches_before, end = self.launched.popleft()
            self.waiting -= launches_before
            self.host = max(self.host, end)
        self.host += seconds
        known = [self.ends.get((*part, key), 0.0) for _, _, key in operation.after]
        free = self.free.get(operation.queue, 0.0)
        begin = max(self.host, self.earliest, free, *known)
        end = begin + operation.seconds + operation.transfer
        self.free[operation.queue] = self.ends[*part, operation.key] = end
        self.launched.append((count, end))
        return end

    def wait(self) -> None:
        """The host waits until the device has nothing left to do, and what comes may begin."""
        self.host = max(self.host, self.earliest, *self.free.values())


class _Replay(CachingAllocator):
    """An allocator, and what operations are still to read."""

    def __init__(self, readers: Mapping[int, Sequence[int]], limit: float) -> None:
        super().__init__(limit)
        self.clock: _Clock | None = None
        self.readers = readers
        self.left: dict[tuple[int, int], list[int]] = {}
        # the tensors of a stage and micro-batch count on from its number
        self.width = max(map(len, readers.values()))
        self.first: dict[tuple[int, int], int] = {}
        # inputs that the device still reads, and until when
        self.behind: deque[tuple[float, int]] = deque()
        self.number = 0

    def begin_step(self, ahead: int) -> None:
        """Host and device begin a step together; so many launches may then wait for the device."""
        self.wait()
        self.left.clear()
        self.clock = _Clock(ahead) if ahead else None

    def hold(self, part: tuple[int, int], launch: _Launch) -> None:
        """Launch an operation; what a reduce-scatter reads stays until the device is through."""
        assert self.clock is not None, "only hosts that run ahead hold anything"
        operation = launch.operation
        end = self.clock.launch(part, operation, launch.kernels, launch.seconds)
        self._let_go()
        if operation.kind == "reduce_scatter" and operation.queue == Queue.FEATURE:
            ranks = sum(operation.ranks)
            size = operation.num_bytes * ranks / (ranks - 1)
            self.number += 1
            self.allocate(("behind", self.number), size)
            self.behind.append((end, self.number))

    def _let_go(self) -> None:
        """Free what the device is through with."""
        while self.clock and self.behind and self.behind[0][0] <= self.clock.host:
            self.free(("behind", self.behind.popleft()[1]))

    def catch_up(self) -> None:
        """Where memory is short, the host waits for what the device still reads."""
        if self.clock and self.behind:
            self.clock.host = max(self.clock.host, self.behind[-1][0])
            self._let_go()

    def wait(self, until: float = 0.0) -> None:
        """The host waits for the device, and at least until a time. [s]"""
        if self.clock:
            self.clock.earliest = max(self.clock.earliest, until)
            self.clock.wait()
            self._let_go()

    def run(self, part: tuple[int, int], launch: _Launch) -> None:
        """An operation of a stage and micro-batch makes, uses and frees tensors."""
        if part not in self.left:
            self.left[part] = list(self.readers[part[0]])
            self.first.setdefault(part, len(self.first) * self.width)
        first = self.first[part]
        if launch.takes:
            self._read(part, launch.takes)
        for number, size in launch.makes:
            if not self.holds(first + number):
                self.allocate(first + number, size)
        for place, size in enumerate(launch.own):
            self.allocate(~place, size)
        for place in range(len(launch.own)):
            self.free(~place)
        if launch.uses:
            self._read(part, launch.uses)

    def _read(self, part: tuple[int, int], numbers: Sequence[int]) -> None:
        left, first = self.left[part], self.first[part]
        for number in numbers:
            left[number] -= 1
            if left[number] <= 0 and self.holds(first + number):
                self.free(first + number)


def _launches_of(work: WeightWork, phase: str, numbers: Numbers) -> list[_Launch]:
    """What the host launches in a pass of a stage.

    Parameters
    ----------
    work, phase
        The stage, and the phase of the pass.
    numbers
        Of its tensors.
    """
    program, runtime = work.program, work.runtime
    operations: Sequence[Operation] = work.arrivals[phase].launched
    if not runtime.launches_ahead:
        return [_Launch.of(operation, numbers) for operation in operations]
    adds = program.view.fresh_size > 0.0
    # what a pass waits for its host at its end, the device does not compute
    operations = delayed(operations, -program.late.get(phase, 0.0))
    rows = []
    for operation, count in zip(
        operations, launches(operations, program.graph, runtime, adds), strict=True
    ):
        late = runtime.check(operation.ranks) if operation.queue == Queue.FEATURE else 0.0
        rows.append(_Launch.of(operation, numbers, count, count * program.view.launch_time + late))
    return rows


def _replay_pass(
    replay: _Replay,
    work: WeightWork,
    rows: Sequence[_Launch],
    run: StagePass,
    earliest: float,
) -> None:
    """One pass of a stage.

    Parameters
    ----------
    replay
        What its role holds.
    work, rows
        Its stage, and what the host launches.
    run
        The pass.
    earliest
        When it may start on the device, which waits for other stages. [s]
    """
    program, runtime = work.program, work.runtime
    first, last = run.stage == 0, run.stage == len(program.view.strategy.stages) - 1
    if replay.clock:
        replay.clock.earliest = earliest
    if runtime.waits_for_stages and not (first if run.phase == FORWARD else last):
        replay.wait()
    part = (run.stage, run.micro)
    for launch in rows:
        replay.run(part, launch)
        if replay.clock:
            replay.hold(part, launch)
    if runtime.waits_for_stages and run.phase == FORWARD and not last:
        replay.wait()


def reserved_memory(
    works: Mapping[int, WeightWork],
    order: Sequence[StagePass],
    limit: float,
    starts: Starts,
) -> Reserved:
    """What an allocator has from the device. [B]

    It also fails where it has all of the device before the first communicator of a kind is made:
    what it holds and does not use, it gives to nobody else.

    Parameters
    ----------
    works
        Of its stages.
    order
        Its passes, as its host launches them.
    limit
        What the device has for them: free segments go back before more is taken. [B]
    starts
        When passes may start, of runtimes whose hosts run ahead. [s]
    """
    numbers: dict[int, Numbers] = {stage: {} for stage in (*works, _UPDATE)}
    update = [
        _Launch.of(operation, numbers[_UPDATE])
        for _, operation in update_operations(tuple(works.values()))
    ]
    launched = {
        (stage, phase): _launches_of(work, phase, numbers[stage])
        for stage, work in works.items()
        for phase in work.program.phases
    }
    readers = {stage: [0] * len(known) for stage, known in numbers.items()}
    for (stage, _), rows in (*launched.items(), ((_UPDATE, ""), update)):
        for launch in rows:
            for number in (*launch.takes, *launch.uses):
                readers[stage][number] += 1
    work = next(iter(works.values()))
    runtime, stages = work.runtime, len(work.program.view.strategy.stages)
    moments = list(_moments(works.values())) if runtime.makes_state_late else []
    late = sum(moments)
    replay = _Replay(readers, limit + late)
    short = 0
    most = most_in_flight(order) * (SIMULATED if runtime.launches_ahead else 1)
    # the passes of the first micro-batches: later ones repeat what these do to memory
    runs = [run for run in order if run.micro <= most]
    for step in range(2 if moments else 1):
        replay.begin_step(runtime.launches_ahead)
        replay.wanted = 0
        for run in runs:
            rows, start = launched[run.stage, run.phase], starts.get(run, 0.0)
            if step == 0 and not runtime.waits_for_stages:
                start += until_joined(run, stages)
                if run.phase == BACKWARD and run.micro == 0 and run.stage < stages - 1:
                    replay.wait(start)
            _replay_pass(replay, works[run.stage], rows, run, start)
        if runtime.communicates_late and step == 0 and replay.wanted > replay.limit:
            short = replay.wanted
        for number, size in enumerate(moments if step == 0 else ()):
            replay.allocate(("moment", number), size)
        for launch in update:
            replay.run((_UPDATE, 0), launch)
    taken = max(replay.peak if replay.failed else replay.reserved, short) - late
    # a first step says nothing of those that follow
    return Reserved(taken, max(taken, replay.wanted - late if moments else 0.0))


def _moments(works: Iterable[WeightWork]) -> Iterator[float]:
    """What an optimizer's first update allocates for each weight. [B]"""
    for work in works:
        size = work.training.state_size - work.training.held.master
        for name, piece in work.pieces.items():
            if piece.parameters and "optimizer" not in work.offloaded:
                yield from [piece.parameters * 4.0 / work.cuts(name, "state")] * (size // 4)
