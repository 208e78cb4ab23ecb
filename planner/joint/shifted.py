"""Pipelines that are cut otherwise than estimates have it: by a block more or less, or to fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from planner.joint.choices import Choice
from planner.joint.cuts import WORTH_BALANCING
from planner.joint.estimate import Estimate, Estimates
from planner.joint.fitting import with_fitting_cuts
from planner.joint.ranking import MARGIN, most_estimated
from planner.joint.simulations import MOST_WORK, Simulations
from search.problem.deadline import NO_DEADLINE, Deadline

# Moves that are simulated, the fastest by their estimates first. [items]
MOST_SHIFTED = 3
# What a move gains for others to be tried from there. [parts]
LEAST_GAIN = 1e-3
# Pipelines as they are cut that are looked at, the fastest first, [items]
MOST_LOOKED_AT = 8
# and by how much they may be slower than the fastest: moves gain about as much at most, more where
# few micro-batches leave stages waiting: 8.4 % by estimates with one in three stages (bert-large on
# 192 H100), where this allows 15 %. [parts]
NEAR, MOST_GAINED = 0.05, 0.15
# How often stages are cut otherwise, where those that were expected to fit do not. [times]
MOST_CUTS = 4
# Pipelines of fewer GPUs that are looked at, the fastest of each layout. [items]
MOST_LAYOUTS = 4


def shift_blocks(simulations: Simulations, ranked: Sequence[Estimate], bound: float) -> None:
    """Move blocks of the best pipelines to neighbouring stages while that is faster, and cheap.

    They may be nearly as fast as the best way to train, and become faster.

    Parameters
    ----------
    simulations, bound
        What was simulated, and what no choice takes less than. [s]
    ranked
        Estimates, the fastest first.
    """
    moves = _Moves(simulations=simulations, bound=bound)
    moves.climb()
    for one in _shifted_by_estimates(simulations, ranked):
        if simulations.misjudged.expected(one) < simulations.rival * (1.0 - LEAST_GAIN):
            moves.attempt(one.choice)
    moves.climb()


def climb(simulations: Simulations, bound: float) -> None:
    """Move blocks of the best pipeline alone, as `shift_blocks` does."""
    _Moves(simulations=simulations, bound=bound).climb()


class _Moves(Struct, kw_only=True, dict=True):
    """Moves that are simulated, as long as they are cheap.

    Parameters
    ----------
    simulations, bound
        As of `shift_blocks`.
    """

    simulations: Simulations
    bound: float
    work: int = 0

    def attempt(self, choice: Choice) -> bool:
        """Simulate a choice, if there is time for it."""
        self.work += self.simulations.pace.work(choice)
        if self.work > MOST_WORK or not self.simulations.has_time(choice):
            return False
        self.simulations.attempt(choice, self.bound)
        return True

    def climb(self) -> None:
        """Move a block of the best pipeline at a time, until none makes it faster."""
        simulations, before = self.simulations, math.inf
        most = simulations.rival * (1.0 + MARGIN)
        while not simulations.pace.deadline.passed:
            staged = (one for one in simulations.fitting.items() if one[0].pp > 1 == one[0].chunks)
            choice, seconds = min(staged, key=lambda one: one[1], default=(None, math.inf))
            if choice is None or seconds >= min(most, before * (1.0 - LEAST_GAIN)):
                return
            before = seconds
            # equal stages stay where others are hardly faster
            worth = seconds * (1.0 + (MARGIN if choice.blocks else -WORTH_BALANCING))
            rows = shifted(simulations.estimates, choice, simulations.pace.deadline)
            fitting = (one for one in rows if one.memory <= most_estimated(simulations.estimates))
            near = [one for one in fitting if simulations.misjudged.expected(one) < worth]
            if not all(self.attempt(one.choice) for one in near[:MOST_SHIFTED]):
                return


def _shifted_by_estimates(simulations: Simulations, ranked: Sequence[Estimate]) -> list[Estimate]:
    """Other pipelines near the best, with blocks moved as far as that is estimated to be faster.

    Takes what `shift_blocks` takes; the fastest first.
    """
    rival, expected = simulations.rival, simulations.misjudged.expected
    capacity = simulations.setting.cluster.device.memory
    near = {
        (one.choice.layout, one.choice.schedule): one
        for one in reversed(ranked)
        if one.choice.pp > 1 == one.choice.chunks
        if expected(one) < rival * (1.0 + _most_gained(one.choice))
        if one.memory <= capacity and not one.choice.offload
    }
    found = []
    starts, deadline = sorted(near.values(), key=expected), simulations.pace.deadline
    for start in deadline.before(starts[:MOST_LOOKED_AT]):
        best = _best_cut(simulations.estimates, start, expected, deadline)
        equal = not start.choice.blocks
        if expected(best) < expected(start) * (1.0 - (WORTH_BALANCING if equal else LEAST_GAIN)):
            found.append(best)
    return sorted(found, key=expected)


def _most_gained(choice: Choice) -> float:
    """By how much a pipeline may become faster with blocks moved. [parts]"""
    return min(NEAR * max(choice.pp / choice.micro_batches, 1.0), MOST_GAINED)


def with_moved_blocks(
    estimates: Estimates, rivals: Sequence[Estimate], limit: float, deadline: Deadline
) -> list[Estimate]:
    """Estimates with those of pipelines that may be fast enough with blocks moved.

    Parameters
    ----------
    estimates, rivals
        Makes them, and those that may fit, the fastest first.
    limit
        What is known to take so long. [s]
    deadline
        When to stop.

    Returns
    -------
    All of them, the fastest first.
    """
    staged: dict[object, Estimate] = {}
    for one in rivals:
        within = limit * (1.0 + _most_gained(one.choice))
        if one.choice.pp > 1 == one.choice.chunks and one.seconds <= within:
            staged.setdefault(one.choice.layout, one)
    starts = list(staged.values())[:MOST_LAYOUTS]
    moved = [_best_cut(estimates, one, lambda other: other.seconds, deadline) for one in starts]
    more = [other for other in moved if other not in starts]
    return sorted([*rivals, *more], key=lambda one: one.seconds)


def _best_cut(
    estimates: Estimates,
    start: Estimate,
    expected: Callable[[Estimate], float],
    deadline: Deadline = NO_DEADLINE,
) -> Estimate:
    """A pipeline with blocks moved as far as that is expected to be faster, and to fit.

    Parameters
    ----------
    estimates, start
        Makes them, and that of the pipeline as it is cut.
    expected
        What a way to train takes by its estimate. [s]
    deadline
        When to stop.
    """
    capacity, best = estimates.setting.cluster.device.memory, start
    while True:
        rows = shifted(estimates, best.choice, deadline)
        other = next((one for one in rows if one.memory <= capacity), best)
        if expected(other) >= expected(best) * (1.0 - LEAST_GAIN):
            return best
        best = other


def shifted(
    estimates: Estimates, choice: Choice, deadline: Deadline = NO_DEADLINE
) -> list[Estimate]:
    """Estimates of a choice with a block moved to a neighbouring stage, the fastest first.

    Parameters
    ----------
    estimates, choice
        Makes them, and the choice.
    deadline
        When to stop.
    """
    cuts = estimates.cuts
    if not cuts.are_many(choice):
        return []
    blocks = choice.blocks or (len(cuts.first) // choice.parts,) * choice.parts
    least = [1] * (len(blocks) - 1) + [0 if len(cuts.pieces) > len(cuts.first) else 1]
    found = []
    for other in deadline.before(_neighbouring_cuts(blocks)):
        if all(count >= most for count, most in zip(other, least, strict=True)):
            found.append(estimates.of(replace(choice, blocks=other)))
    return sorted(found, key=lambda one: one.seconds)


def _neighbouring_cuts(blocks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Blocks of each stage with one of them in the stage before or behind."""
    for one, other in pairwise(range(len(blocks))):
        for giving, taking in ((one, other), (other, one)):
            moved = list(blocks)
            moved[giving] -= 1
            moved[taking] += 1
            yield tuple(moved)


def cut_otherwise(
    simulations: Simulations, ranked: Sequence[Estimate], bound: float, *, partly: bool
) -> list[Estimate]:
    """Simulate pipelines that do not fit although they were expected to, with other stages.

    Parameters
    ----------
    simulations, bound
        What was simulated, and what no choice takes less than. [s]
    ranked
        What was estimated, to which these are added.
    partly
        Whether some blocks may be computed again.
    """
    found = list(ranked)
    deadline = simulations.pace.deadline
    for _ in deadline.before(range(MOST_CUTS)):
        missed = simulations.refuted(found)
        limit = simulations.rival * (1.0 + MARGIN)
        alike = [one for one in found if one.choice in missed]
        rows = with_fitting_cuts(
            simulations.estimates, alike, partly, refuted=missed, limit=limit, deadline=deadline
        )
        if not (more := [one for one in rows if one not in found]):
            break
        found = sorted([*found, *more], key=lambda one: one.seconds)
        simulations.run(more, bound, partly=partly)
    return found
