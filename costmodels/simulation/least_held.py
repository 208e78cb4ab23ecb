"""What the devices of a role hold at least, whatever waits for what while a step runs.

A device computes one operation at a time, in a fixed order. When one of them begins, all before it
have ended, and so has what they waited for; none after it has begun, nor what waits for these. So
tensors that were made before and are read by it or later are in memory then, and the most that
these come to is no more than what a ledger of the step shows: nearly always just that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Local, Operation, Ref
from costmodels.simulation.pace import most_in_flight
from costmodels.simulation.schedules import BACKWARD, FORWARD, WEIGHT, StagePass
from costmodels.simulation.updates import update_operations
from costmodels.simulation.weights import WeightWork


class HeldInPass(NamedTuple):
    """What a micro-batch of a stage holds at least. [B]

    Parameters
    ----------
    most
        In some moment of a pass.
    left
        From its end to the beginning of the next pass of the stage over the same micro-batch.
    """

    most: float
    left: float


class _Life:
    """The computations of a micro-batch between which a tensor is in memory, by their place.

    Attributes
    ----------
    born
        The first one before which the tensor is made, or which makes it.
    until
        The last one that begins before its last reader has ended.
    size
        The least that any of its makers makes. [B]
    holder
        What it counts as.
    """

    __slots__ = ("born", "holder", "size", "until")

    def __init__(self, holder: str) -> None:
        self.born, self.until, self.size, self.holder = math.inf, -1, math.inf, holder


class StageLives:
    """When the tensors of a micro-batch of a stage are in memory, at least.

    Parameters
    ----------
    work
        On the weights of the stage.
    known
        Tensors of the same micro-batch that count already, to which those of the stage are added.

    Attributes
    ----------
    computed
        All computations of its passes, in their order.
    """

    def __init__(self, work: WeightWork, known: set[Local] | None = None) -> None:
        number = work.program.number
        rows: list[Operation] = []
        index: dict[Ref, int] = {}
        ends: dict[str, int] = {}
        for phase in (FORWARD, BACKWARD, WEIGHT):
            for operation in work.arrivals[phase].launched:
                index[number, phase, operation.key] = len(rows)
                rows.append(operation)
            ends[phase] = len(rows)
        place = list(accumulate((op.queue == Queue.COMPUTE for op in rows), initial=0))
        before = [
            [at for ref in op.after if (at := index.get(ref, i)) < i] for i, op in enumerate(rows)
        ]
        lives = _lives(rows, place, before)
        known = set() if known is None else known
        self._lives = [
            one for key, one in lives.items() if key not in known and one.born <= one.until
        ]
        known.update(lives)
        self.computed = [op for op in rows if op.queue == Queue.COMPUTE]
        self._ends = {phase: place[end] for phase, end in ends.items()}

    def held(self, left_out: str = "") -> list[float]:
        """What is held in each computation. [B]

        Parameters
        ----------
        left_out
            Whose tensors do not count, one of `costmodels.step.memory.HOLDERS`.
        """
        change = [0.0] * (len(self.computed) + 1)
        for one in self._lives:
            if one.holder != left_out:
                change[int(one.born)] += one.size
                change[one.until + 1] -= one.size
        rows = zip(accumulate(change), self.computed, strict=False)
        return [held + op.scratch + op.buffer for held, op in rows]

    def passes(self) -> dict[str, HeldInPass]:
        """What is held in each pass."""
        found: dict[str, HeldInPass] = {}
        held, start = self.held(), 0
        for phase, end in self._ends.items():
            left = sum(one.size for one in self._lives if one.born < end <= one.until)
            found[phase] = HeldInPass(max(held[start:end], default=0.0), left)
            start = end
        return found


def _lives(
    rows: Sequence[Operation], place: Sequence[int], before: Sequence[Sequence[int]]
) -> dict[Local, _Life]:
    """When the tensors of a micro-batch are in memory, as far as the order of computation tells.

    Parameters
    ----------
    rows
        The operations of all passes, in their order.
    place
        Of each of them the number of computations before it. [items]
    before
        Those that each waits for, of this stage and micro-batch.
    """
    computes = [op.queue == Queue.COMPUTE for op in rows]
    # the first computation that waits for an operation, and the last that it waits for
    first: list[float] = [place[i] if computes[i] else math.inf for i in range(len(rows))]
    for i in range(len(rows) - 1, -1, -1):
        for at in before[i]:
            first[at] = min(first[at], first[i])
    last: list[int] = []
    for i in range(len(rows)):
        if computes[i]:
            last.append(place[i])
        else:
            last.append(max((last[at] for at in before[i]), default=-1))
    lives: dict[Local, _Life] = {}
    for i, operation in enumerate(rows):
        for key, holder, size in operation.makes:
            if size > 0.0:
                one = lives.setdefault(key, _Life(holder))
                one.born, one.size = min(one.born, first[i]), min(one.size, size)
    for i, operation in enumerate(rows):
        for keys, until in (
            # what is taken is gone when its reader begins
            (operation.takes, last[i] - computes[i]),
            (operation.uses, last[i]),
        ):
            for key in keys:
                if key in lives:
                    lives[key].until = max(lives[key].until, until)
    return lives


def least_of_role(works: Sequence[WeightWork], order: Sequence[StagePass]) -> float:
    """What a role holds at least beside what it holds throughout, in some moment of a step. [B]

    Parameters
    ----------
    works
        On the weights of its stages.
    order
        Its passes, in their order.
    """
    known: set[Local] = set()
    held = {work.program.number: StageLives(work, known).passes() for work in works}
    # a stage without weights has none to update in its host
    most = max((op.scratch + op.buffer for _, op in update_operations(works)), default=0.0)
    left: dict[tuple[int, int], float] = {}
    under_way, flying = 0.0, most_in_flight(order)
    # the passes of the first micro-batches: later ones repeat what these hold
    for run in (run for run in order if run.micro <= flying):
        mine, part = held[run.stage][run.phase], (run.stage, run.micro)
        under_way -= left.get(part, 0.0)
        most = max(most, under_way + mine.most)
        left[part] = mine.left
        under_way += mine.left
    return most
