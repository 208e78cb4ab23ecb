"""What a pipeline takes at least by the stretch of blocks that a group of devices has.

A stretch begins before any block and ends after any other one: all cuts into stages are rows of
stretches, each beginning where the one before it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.joint.borders import least_message, tied_message
from planner.joint.choices import Choice
from planner.joint.estimate import Estimates
from planner.joint.exchange_bounds import after_first, slowed_by_each_other, updates_by_layer
from planner.joint.exchanges_by_layer import (
    fills_by_layer,
    gathered_after_by_layer,
    gathers_by_layer,
    reductions_by_layer,
    units_ahead,
)
from planner.joint.micro_batch import MicroBatch

Floats = NDArray[np.float64]
Numbers = NDArray[np.intp]


class Stretches:
    """Stretches of blocks that groups of one stage may have: (groups, first blocks, lengths).

    Parameters
    ----------
    groups, blocks
        How many there are; every group has one block at least. [items]
    longest
        Blocks of a stretch at most. [items]
    """

    def __init__(self, groups: int, blocks: int, longest: int) -> None:
        self.group = np.arange(groups)[:, None, None]
        self.first: Numbers = self.group + np.arange(blocks - groups + 1)[:, None]
        # what would end behind the last block is no stretch
        self.end: Numbers = np.minimum(self.first + np.arange(1, longest + 1), blocks)

    def of(self, each: Floats) -> Floats:
        """What values of blocks are for all of each stretch."""
        sums = self._sums(each)
        return sums.take(self.end) - sums.take(self.first)

    def before(self, each: Floats) -> Floats:
        """The same of all blocks before each stretch."""
        return self._sums(each).take(self.first)

    def behind(self, each: Floats) -> Floats:
        """The same of all blocks behind each stretch."""
        return float(each.sum()) - self._sums(each).take(self.end)

    def slowest(self, seconds: Floats) -> float:
        """The least of all cuts of what the slowest of their stretches takes.

        Parameters
        ----------
        seconds
            Of each stretch. [s]
        """
        _, firsts, lengths = seconds.shape
        least = np.full(firsts, math.inf)
        least[0] = 0.0
        for each in seconds:
            # what a group ends with the next one begins with
            longer, least = np.maximum(least[:, None], each), np.full(firsts, math.inf)
            for more in range(min(lengths, firsts)):
                np.minimum(least[more:], longer[: firsts - more, more], out=least[more:])
        return float(least[-1])

    @staticmethod
    def _sums(each: Floats) -> Floats:
        return np.concatenate(([0.0], np.cumsum(each)))


class StretchBounds:
    """When a step is over at the earliest of which a group has a stretch of blocks.

    Parameters
    ----------
    estimates, choice, inside
        Of the question, the choice, and its micro-batch.
    pieces
        The first layer of each block.
    """

    def __init__(
        self, estimates: Estimates, choice: Choice, inside: MicroBatch, pieces: Sequence[int]
    ) -> None:
        self.choice, self.filled = choice, choice.fills_bubbles
        self.gradients = estimates.exchanges.gradients(choice.zero)
        what = (estimates, choice, inside)
        rows = (
            *(inside.least_forward, inside.least_before if self.filled else inside.least),
            *(inside.apart * self.filled, inside.computed),
            *(reductions_by_layer(*what), gathers_by_layer(*what)),
            updates_by_layer(*what) + gathered_after_by_layer(*what),
        )
        each = [np.add.reduceat(row, pieces) for row in rows]
        self.forward, self.both, self.apart, self.computed, self.reduced, *rest = each
        self.gathered, self.after = rest
        self.message = least_message(*what)
        self.last = tied_message(*what) + after_first(*what)
        # how long messages fill links of each level that gathers and reductions share
        fills = [np.add.reduceat(row, pieces, axis=1) for row in fills_by_layer(*what)]
        # and what comes before a pass begins
        units = units_ahead(estimates, choice)
        self.early = units * float(self.gathered.max())
        self.fills = *fills, units * fills[0].max(axis=1)

    def longest(self, limit: float) -> int:
        """Blocks of a stretch at most of which the passes alone do not take longer. [items]

        Parameters
        ----------
        limit
            What a step may take. [s]
        """
        count, blocks = self.choice.micro_batches, len(self.both)
        sums, most = np.concatenate(([0.0], np.cumsum(self.both))), blocks - self.choice.pp + 1
        for longer in range(2, most + 1) if limit < math.inf else ():
            if count * float((sums[longer:] - sums[:-longer]).min()) > limit:
                return longer - 1
        return most

    def of(self, stretches: Stretches, more: Floats) -> Floats:
        """Of each group, by its stretch. [s]

        Parameters
        ----------
        stretches
            What groups may have.
        more
            What is computed again of each. [s]
        """
        choice, count, group = self.choice, self.choice.micro_batches, stretches.group
        sends, behind = group * self.message, choice.pp - 1 - group
        only = self.both - self.forward
        apart, gathered = stretches.of(self.apart), stretches.of(self.gathered)
        # each pass gathers what has not come before it
        forward = np.maximum(stretches.of(self.forward), gathered - self.early)
        both = forward + np.maximum(stretches.of(only) + more, gathered - self.early)
        others = stretches.before(self.gathered) - group * self.early
        ahead = np.maximum(stretches.before(self.forward), others) + sends
        back = np.maximum(stretches.before(only), others) + sends
        others = stretches.behind(self.gathered) - behind * self.early
        rows = (stretches.behind(self.forward), stretches.behind(only))
        beyond = sum(np.maximum(row, others) for row in rows) + 2.0 * behind * self.message
        flying = choice.flying[:, None, None]
        # as of `planner.joint.as_cut`
        left = np.minimum(group + 1, count)  # passes of weights, where they fill bubbles
        through = count * both + (count - left) * apart
        through = through + ahead + (beyond - (flying - 1) * forward).clip(min=0.0)
        rounds = -(-count // flying)
        waited = (rounds - 1) * flying
        again = ahead + rounds * (beyond + both) + (count - 1 - waited) * (both - forward)
        due = rounds - 1 - np.minimum(-(-group // flying), rounds - 1)
        due = due + np.maximum(count - np.maximum(waited - group, 0) - left, 0)
        ends = np.maximum(through, again + due * apart)
        reduced, after = stretches.of(self.reduced), stretches.of(self.after)
        turns = count if self.gradients.each_micro_batch else 1
        left_over, moved = reduced, np.maximum(2.0 * count * gathered, turns * reduced)
        for row, sums, early in zip(*self.fills, strict=True):
            gathers, scatters = stretches.of(row), stretches.of(sums)
            left_over = np.maximum(left_over, scatters + np.maximum(gathers - early, 0.0))
            moved = np.maximum(moved, 2.0 * count * gathers + turns * scatters)
        last = apart if self.filled else both - forward
        late = np.maximum(left_over - last, 0.0) if self.gradients.overlap else reduced
        found = ends + np.maximum(back + self.last, left * apart + late + after)
        if self.gradients.each_micro_batch:
            found = np.maximum(found, ahead + beyond + count * reduced + after)
        computed = count * stretches.of(self.computed)
        least: Floats = np.maximum(found, slowed_by_each_other(computed, moved) + after)
        return least
