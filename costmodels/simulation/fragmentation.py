"""What an allocator holds beyond the tensors of a step, since free memory lies in pieces.

The tensors of a role are given to the allocator in the order in which a host launches its passes,
in a first step. Micro-batches are alike, so that the first ones stand for all. What is there
throughout (weights, gradients, state) came first, in segments of its own. Assumes one stream: what
another one still reads is taken as free when the host has launched its last reader, but for inputs
of reduce-scatters of runtimes that say how far ahead of the device they are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import zip_longest

from costmodels.simulation.allocator import CachingAllocator
from costmodels.simulation.execution import Queue
from costmodels.simulation.host import launches
from costmodels.simulation.operations import Local, Operation
from costmodels.simulation.schedules import BACKWARD, FORWARD, StagePass
from costmodels.simulation.updates import update_operations
from costmodels.simulation.weights import WeightWork

# Stands for the stages of the update.
_UPDATE = -1


class _Replay:
    """An allocator, and what operations are still to read."""

    def __init__(self, readers: Mapping[int, Counter[Local]], limit: float) -> None:
        self.allocator, self.limit = CachingAllocator(limit), limit
        self.readers = readers
        self.left: dict[tuple[int, int], Counter[Local]] = {}
        # inputs that the device still reads, with how many launches came before them
        self.behind: deque[float] = deque()
        self.launched, self.first = 0.0, 0

    def hold(self, operation: Operation, count: float, ahead: int) -> None:
        """Hold what a reduce-scatter reads for so many launches.

        Parameters
        ----------
        operation
            What has been launched.
        count, ahead
            Its launches, and how many may wait for the device. [items]
        """
        self.launched += count
        while self.behind and self.launched - self.behind[0] >= ahead:
            self._catch_up()
        if operation.kind == "reduce_scatter" and operation.queue == Queue.FEATURE:
            ranks = sum(operation.ranks)
            size = operation.num_bytes * ranks / (ranks - 1)
            self._allocate(("behind", self.first + len(self.behind)), size)
            self.behind.append(self.launched)

    def _catch_up(self) -> None:
        """The device is through with the oldest of what it still read."""
        self.behind.popleft()
        self.allocator.free(("behind", self.first))
        self.first += 1

    def _allocate(self, key: Hashable, size: float) -> None:
        """Allocate a tensor; where memory is short, the host waits for the device before."""
        if self.allocator.reserved + size > self.limit:
            while self.behind:
                self._catch_up()
        self.allocator.allocate(key, size)

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
        for key in operation.takes:
            self._read(part, key)
        for key, _, size in operation.makes:
            if size and not self.allocator.holds((part, key)):
                self._allocate((part, key), size)
        own = [size for size in (operation.scratch, operation.buffer) if size]
        for place, size in enumerate(own):
            self._allocate(place, size)
        for place in range(len(own)):
            self.allocator.free(place)
        for key in operation.uses:
            self._read(part, key)

    def _read(self, part: tuple[int, int], key: Local) -> None:
        self.left[part][key] -= 1
        if self.left[part][key] <= 0 and self.allocator.holds((part, key)):
            self.allocator.free((part, key))


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
        (stage, phase): work.arrivals[phase].launched
        for stage, work in works.items()
        for phase in work.program.phases
    }
    readers: dict[int, Counter[Local]] = {stage: Counter() for stage in (*works, _UPDATE)}
    for (stage, _), operations in (*launched.items(), ((_UPDATE, ""), update)):
        for operation in operations:
            readers[stage].update((*operation.takes, *operation.uses))
    replay = _Replay(readers, limit)
    for run in _first_passes(order):
        work, operations = works[run.stage], launched[run.stage, run.phase]
        ahead = work.runtime.launches_ahead if work.program.runs_ahead else 0
        adds = work.program.view.fresh_size > 0.0
        counts = launches(operations, work.program.graph, work.runtime, adds) if ahead else ()
        for operation, count in zip_longest(operations, counts):
            replay.run(run.stage, run.micro, operation)
            if ahead:
                replay.hold(operation, count, ahead)
    for operation in update:
        replay.run(_UPDATE, 0, operation)
    allocator = replay.allocator
    return float(allocator.peak if allocator.failed else allocator.reserved)
