"""What an allocator holds beyond the tensors of a step, since free memory lies in pieces.

The tensors of a role are given to the allocator in the order in which a host launches its passes,
in a first step. Micro-batches are alike, so that the first ones stand for all. What is there
throughout (weights, gradients, state) came first, in segments of its own.

The host runs ahead of the device. What only computation reads is free again when the host has
launched its last reader; what communication reads or writes, on a stream of its own, when the
device comes to where the host was then (torch.Tensor.record_stream; Zhao et al. 2023, section 3.4:
tensors pile up where a host runs far ahead). It runs ahead by as many launches as a device queues,
and waits for what other stages send, and before it gives segments back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence

from costmodels.simulation.allocator import CachingAllocator
from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Local, Operation
from costmodels.simulation.schedules import BACKWARD, FORWARD, StagePass
from costmodels.simulation.updates import update_operations
from costmodels.simulation.weights import WeightWork

# Stands for the stages of the update.
_UPDATE = -1
# Launches that wait for a device before a host does. [items]
_QUEUED = 1024
# Kernels that an operation of a layer takes: a block of nanotron (models/llama.py) launches about
# 30 in its forward pass, for 15 operations here. [items]
_LAUNCHES = 2


class _Host:
    """When a host launches operations, and when the device has run them.

    Parameters
    ----------
    launch_time
        Of an operation. [s]
    """

    def __init__(self, launch_time: float) -> None:
        self.launch_time = launch_time
        self.now = self.device = 0.0
        self.queued: deque[float] = deque()

    def launch(self, operation: Operation) -> None:
        """Launch an operation, when the queue of launches has room for it.

        Communication is taken to hide behind computation.
        """
        if len(self.queued) == _QUEUED // _LAUNCHES:
            self.now = max(self.now, self.queued.popleft())
        self.now += self.launch_time * _LAUNCHES
        if operation.queue == Queue.COMPUTE:
            self.device = max(self.device, self.now) + operation.seconds + operation.transfer
        self.queued.append(self.device)

    def wait(self) -> None:
        """Wait for the device."""
        self.now = max(self.now, self.device)


class _Replay:
    """An allocator, and what operations are still to read.

    Parameters
    ----------
    launched
        Operations of each stage and phase.
    host
        Launches them.
    limit
        What the device has for tensors. [B]
    gathers_once
        Whether what is gathered goes into one buffer.
    """

    def __init__(
        self,
        launched: Mapping[tuple[int, str], Sequence[Operation]],
        host: _Host,
        limit: float,
        gathers_once: bool,
    ) -> None:
        self.allocator = CachingAllocator(limit, self._settle)
        self.host, self.gathers_once = host, gathers_once
        self.readers: dict[int, Counter[Local]] = {}
        self.crossing: dict[int, set[Local]] = {}
        for (stage, _), operations in launched.items():
            counter = self.readers.setdefault(stage, Counter())
            crossing = self.crossing.setdefault(stage, set())
            for operation in operations:
                counter.update((*operation.takes, *operation.uses))
                if operation.queue == Queue.FEATURE:
                    crossing.update(_touched(operation, gathers_once))
        self.left: dict[tuple[int, int], Counter[Local]] = {}
        self.late: deque[tuple[float, Hashable]] = deque()
        self.buffer = 0.0

    def run(self, stage: int, micro: int, operation: Operation) -> None:
        """An operation makes, uses and frees tensors.

        Parameters
        ----------
        stage, micro
            Whose it is.
        operation
            The operation.
        """
        part = (stage, micro)
        if part not in self.left:
            self.left[part] = Counter(self.readers[stage])
        if any(ref[0] != stage for ref in operation.after):
            self.host.wait()
        self.host.launch(operation)
        self._free_late()
        for key in operation.takes:
            self._read(part, key)
        self._make(part, operation)
        own = [size for size in (operation.scratch, operation.buffer) if size]
        for place, size in enumerate(own):
            self.allocator.allocate(place, size)
        for place in range(len(own)):
            self.allocator.free(place)
        for key in operation.uses:
            self._read(part, key)

    def _settle(self) -> None:
        self.host.wait()
        self._free_late()

    def _free_late(self) -> None:
        while self.late and self.late[0][0] <= self.host.now:
            self.allocator.free(self.late.popleft()[1])

    def _make(self, part: tuple[int, int], operation: Operation) -> None:
        gathered = self.gathers_once and operation.kind == "all_gather"
        for key, _, size in operation.makes:
            if gathered and operation.queue == Queue.FEATURE:
                self._buffer(size)
            elif size and not self.allocator.holds((part, key)):
                self.allocator.allocate((part, key), size)

    def _buffer(self, size: float) -> None:
        """The buffer of all that is gathered, which grows."""
        if size > self.buffer:
            if self.buffer:
                self.allocator.free("gathered")
            self.allocator.allocate("gathered", size)
            self.buffer = size

    def _read(self, part: tuple[int, int], key: Local) -> None:
        self.left[part][key] -= 1
        if self.left[part][key] > 0 or not self.allocator.holds((part, key)):
            return
        if key in self.crossing[part[0]]:
            # the stream of communication has it until the device comes to where the host is
            self.late.append((self.host.device, (part, key)))
        else:
            self.allocator.free((part, key))


def _touched(operation: Operation, gathers_once: bool) -> Iterator[Local]:
    """Tensors that the stream of communication reads or writes."""
    if operation.kind == "all_gather" and gathers_once:
        return
    yield from operation.uses
    yield from (key for key, _, _ in operation.makes)
    if operation.key[0] == "change gradient":
        yield "grad", operation.name, 0


def _launched(work: WeightWork, phase: str) -> list[Operation]:
    """The operations of a pass in the order of their launch: weights come when they are due."""
    gathers = {operation.makes[0][0]: operation for operation in work.gathered(phase)}
    rows: list[Operation] = []
    for operation in work.reading(phase, work.program.phases[phase]):
        rows += [gathers.pop(key) for key in operation.uses if key in gathers]
        rows.append(operation)
    return rows


def _first_passes(order: Sequence[StagePass]) -> list[StagePass]:
    """The passes of the first micro-batches: later ones repeat what these do to memory."""
    count, most = 0, 0
    for run in order:
        count += (run.phase == FORWARD) - (run.phase == BACKWARD)
        most = max(most, count)
    return [run for run in order if run.micro <= most]


def reserved_memory(
    works: Mapping[int, WeightWork], order: Sequence[StagePass], limit: float
) -> float:
    """What an allocator has from the device after a step; where that fails, what it took. [B]

    Parameters
    ----------
    works
        Of its stages.
    order
        Its passes, as its host launches them.
    limit
        What the device has for them: free segments go back before more is taken. [B]
    """
    update = [operation for _, operation in update_operations(tuple(works.values()))]
    launched = {
        (stage, phase): _launched(work, phase)
        for stage, work in works.items()
        for phase in work.program.phases
    }
    first = next(iter(works.values()))
    replay = _Replay(
        {**launched, (_UPDATE, ""): update},
        _Host(first.training.launch_time),
        limit,
        first.runtime.gathers_again,
    )
    for run in _first_passes(order):
        for operation in launched[run.stage, run.phase]:
            replay.run(run.stage, run.micro, operation)
    replay.host.wait()
    for operation in update:
        replay.run(_UPDATE, 0, operation)
    allocator = replay.allocator
    return float(allocator.peak if allocator.failed else allocator.reserved)
