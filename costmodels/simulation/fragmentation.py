"""What an allocator holds beyond the tensors of a step, since free memory lies in pieces.

The tensors of a role are given to the allocator in the order in which a host launches its passes,
in a first step. Micro-batches are alike, so that the first ones stand for all. What is there
throughout (weights, gradients, state) came first, in segments of its own. Assumes one stream: what
another one still reads is taken as free when the host has launched its last reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from costmodels.simulation.allocator import CachingAllocator
from costmodels.simulation.operations import Local, Operation
from costmodels.simulation.schedules import BACKWARD, FORWARD, StagePass
from costmodels.simulation.updates import update_operations
from costmodels.simulation.weights import WeightWork

# Stands for the stages of the update.
_UPDATE = -1


class _Replay:
    """An allocator, and what operations are still to read."""

    def __init__(self, readers: Mapping[int, Counter[Local]], limit: float) -> None:
        self.allocator = CachingAllocator(limit)
        self.readers = readers
        self.left: dict[tuple[int, int], Counter[Local]] = {}

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
                self.allocator.allocate((part, key), size)
        own = [size for size in (operation.scratch, operation.buffer) if size]
        for place, size in enumerate(own):
            self.allocator.allocate(place, size)
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
        (stage, phase): work.arrivals[phase].launched()
        for stage, work in works.items()
        for phase in work.program.phases
    }
    readers: dict[int, Counter[Local]] = {stage: Counter() for stage in (*works, _UPDATE)}
    for (stage, _), operations in (*launched.items(), ((_UPDATE, ""), update)):
        for operation in operations:
            readers[stage].update((*operation.takes, *operation.uses))
    replay = _Replay(readers, limit)
    for run in _first_passes(order):
        for operation in launched[run.stage, run.phase]:
            replay.run(run.stage, run.micro, operation)
    for operation in update:
        replay.run(_UPDATE, 0, operation)
    allocator = replay.allocator
    return float(allocator.peak if allocator.failed else allocator.reserved)
