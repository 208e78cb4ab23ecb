"""Pipelines cut so that each stage fits, where the cut that balances their work does not.

The first stages hold more micro-batches under way than the last ones: with fewer blocks they fit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.estimate import Estimate, Estimates
from planner.joint.fewer_again import FILLED
from planner.joint.passes import under_way
from search.problem.deadline import NO_DEADLINE, Deadline

Floats = NDArray[np.float64]
# Ways to train of which such a cut is looked for, the fastest first. [items]
MOST_REFINED = 64
# Cuts that are estimated, each with what was left out of the one before. [items]
MOST_CUTS = 4
# Numbers of blocks computed again with which more of them may go to the first stages. [items]
MOST_COUNTS = 4
# The heaviest stage of a cut is at most that part heavier than that of the best cut.
EXACT = 1e-3


def with_fitting_cuts(
    estimates: Estimates,
    ranked: Sequence[Estimate],
    partly: bool,
    *,
    refuted: AbstractSet[Choice] = frozenset(),
    limit: float = math.inf,
    deadline: Deadline = NO_DEADLINE,
) -> list[Estimate]:
    """Estimates with those of stages that are cut so that they fit, the fastest first.

    Parameters
    ----------
    estimates
        Makes them.
    ranked
        Those of all choices, the fastest first.
    partly
        Whether some blocks of each stage may be computed again, where nothing else is.
    refuted
        What does not fit, whatever is estimated.
    limit
        Steps that take longer do not matter. [s]
    deadline
        When to stop.
    """
    cuts, capacity = estimates.cuts, estimates.setting.cluster.device.memory
    found = list(ranked)
    if not cuts.first or cuts.by_shares:
        return found
    fitting = (one for one in ranked if one.memory <= capacity and one.choice not in refuted)
    best = min(limit, min((one.seconds for one in fitting), default=math.inf))
    staged = (one for one in ranked if one.choice.pp > 1 == one.choice.chunks)
    rows = (estimates.too_large.get(one.choice, one) for one in staged)
    heavy = (one for one in rows if one.memory > capacity or one.choice in refuted)
    for one in deadline.before(sorted(heavy, key=lambda row: row.seconds)[:MOST_REFINED]):
        if one.seconds >= best:
            break
        # what does not fit after all must hold less than it is estimated to
        room = capacity if one.memory > capacity else FILLED[-1] * one.memory
        for other in _fitting(estimates, one, room, partly=partly):
            if other.choice not in refuted:
                found.append(other)
                best = min(best, other.seconds)
    return sorted(found, key=lambda row: row.seconds)


def _fitting(
    estimates: Estimates, one: Estimate, room: float, *, partly: bool
) -> Iterator[Estimate]:
    """Estimates of a choice that fit as it is cut otherwise, with some blocks computed again too.

    Parameters
    ----------
    estimates, one
        Makes them, and that of the choice as it is usually cut.
    room
        What a device may hold. [B]
    partly
        As of `with_fitting_cuts`.
    """
    whole = _cut_to_fit(estimates, one.choice, room)
    if whole is not None:
        yield whole
    if not partly or one.choice.inside.recompute != "none":
        return
    inside = dataclasses.replace(one.choice.inside, recompute="full")
    again = replace(one.choice, inside=inside)
    most = len(estimates.cuts.first) - again.pp
    least, low, high = _besides(estimates), 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if Loads.of(estimates, replace(again, again=middle)).cut(again.pp, room - least):
            high = middle
        else:
            low = middle + 1
    for count in range(low, min(low + MOST_COUNTS, most + 1)):
        other = _cut_to_fit(estimates, replace(again, again=count), room)
        if other is not None:
            yield other


class Loads(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """What blocks of a choice take and hold; sums of all before each one, and of all in the end.

    Parameters
    ----------
    work, again
        Both passes of a micro-batch, and what they take more where it is computed again. [s]
    standing, kept, waiting
        What stays, what a micro-batch leaves for its backward pass, and for that of weights. [B]
    saved
        What it leaves less where it is computed again. [B]
    count
        Blocks of each stage that are. [items]
    flying
        As of `under_way`.
    """

    work: Floats
    again: Floats
    standing: Floats
    kept: Floats
    waiting: Floats
    saved: Floats
    count: int
    flying: list[tuple[Floats, Floats]]

    @classmethod
    def of(cls, estimates: Estimates, choice: Choice) -> Loads:
        """Those of the blocks of a choice, and of what comes after them."""
        insides = estimates.insides(choice.zero)
        whole = insides.of(choice.inside, choice.samples)
        kept = insides.of(choice.split, choice.samples) if choice.again else whole
        pieces = estimates.cuts.pieces

        def sums(rows: Floats) -> Floats:
            return np.append(0.0, np.cumsum(np.add.reduceat(rows, pieces)))

        return cls(
            work=sums(kept.forward + kept.backward),
            again=sums(whole.backward - kept.backward),
            standing=sums(kept.standing(choice, estimates.ranks(choice, kept))),
            kept=sums(kept.kept),
            waiting=sums(kept.waiting),
            saved=sums(kept.kept - whole.kept),
            count=choice.again,
            flying=under_way(choice),
        )

    def stage(self, number: int, begin: int, ends: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """What a stage takes that begins with a block, and holds, by where it ends. [s], [B]

        Parameters
        ----------
        number, begin
            The stage, and its first block.
        ends
            The first block after it, each a case.
        """
        some = np.minimum(begin + self.count, ends)
        work = self.work[ends] - self.work[begin] + self.again[some] - self.again[begin]
        kept = self.kept[ends] - self.kept[begin] - (self.saved[some] - self.saved[begin])
        waiting = self.waiting[ends] - self.waiting[begin]
        under = np.max(
            [flying[number] * kept + left[number] * waiting for flying, left in self.flying], axis=0
        )
        return work, self.standing[ends] - self.standing[begin] + under

    def cut(self, parts: int, room: float) -> tuple[int, ...]:
        """Pieces of each stage so that all fit and the heaviest one has the least work, if any can.

        Parameters
        ----------
        parts, room
            Stages, and what each may hold. [items], [B]
        """
        found = self._filled(parts, math.inf, room)
        if not found:
            return ()
        low, high = float(self.work[-1]) / parts, self.stages(found)[0]
        while high > low * (1.0 + EXACT):
            middle = (low + high) / 2.0
            trial = self._filled(parts, middle, room)
            if trial:
                found, high = trial, self.stages(trial)[0]
            else:
                low = middle
        return found

    def _filled(self, parts: int, most: float, room: float) -> tuple[int, ...]:
        """Pieces of each stage, as many as it can have; empty where some are left over.

        Parameters
        ----------
        parts, most, room
            Stages, what each may take, and what it may hold. [items], [s], [B]
        """
        pieces, begin, count = [], 0, len(self.work) - 1
        for number in range(parts):
            # one piece at least is left for every stage that follows
            ends = np.arange(begin + 1, count - (parts - number) + 2)
            work, held = self.stage(number, begin, ends)
            reached = int(((work <= most) & (held <= room)).sum())
            if not reached:
                return ()
            pieces.append(reached)
            begin += reached
        return tuple(pieces) if begin == count else ()

    def stages(self, pieces: Sequence[int]) -> tuple[float, float]:
        """What the heaviest of some stages takes, and what the fullest of them holds. [s], [B]"""
        ends = np.cumsum(pieces)
        rows = [
            self.stage(number, end - size, np.array([end]))
            for number, (size, end) in enumerate(zip(pieces, ends.tolist(), strict=True))
        ]
        work, held = np.max(rows, axis=0)[:, 0].tolist()
        return work, held


def _cut_to_fit(estimates: Estimates, choice: Choice, room: float) -> Estimate | None:
    """The estimate of a choice that fits as its stages are cut, the heaviest as light as can be.

    Parameters
    ----------
    estimates, choice
        Makes it, and the choice.
    room
        What a device may hold. [B]
    """
    loads, cuts = Loads.of(estimates, choice), estimates.cuts
    besides = _besides(estimates)
    for _ in range(MOST_CUTS):
        pieces = loads.cut(choice.pp, room - besides)
        if not pieces:
            return None
        blocks = (*pieces[:-1], pieces[-1] - (len(cuts.pieces) - len(cuts.first)))
        one = estimates.of(replace(choice, blocks=blocks))
        if one.memory <= room:
            return one
        # what passes hold besides depends on the cut a little
        besides = max(besides, one.memory - loads.stages(pieces)[1])
    return None


def _besides(estimates: Estimates) -> float:
    """What a device holds at least besides its stages. [B]"""
    return estimates.setting.cluster.device.reserved_memory
