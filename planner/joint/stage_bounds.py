"""What pipelines take at least whose stages are blocks, stage by stage.

Of several stages a group the cuts are known, and passes are laid out in their order. Of one stage
a group all cuts into whole blocks come into question: the least of them is found block by block.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from planner.joint.borders import tied_message
from planner.joint.choices import Choice
from planner.joint.estimate import ROUNDING, Estimates
from planner.joint.exchange_bounds import (
    gathered_after,
    gathers,
    reductions,
    slowed_by_each_other,
    updates_by_layer,
)
from planner.joint.exchanges_by_layer import (
    fills_by_layer,
    gathers_by_layer,
    reductions_by_layer,
    units_ahead,
)
from planner.joint.memory_bounds import MemoryBounds
from planner.joint.micro_batch import MicroBatch
from planner.joint.pass_by_pass import begun_and_done
from planner.joint.stretches import StretchBounds, Stretches
from planner.joint.unequal import cuts_of
from planner.simulation.run import waiting_time

Floats = NDArray[np.float64]
# Passes that are laid out at most, some milliseconds of work, and stretches of blocks that are
# compared, some megabytes a row: of more, what all of a choice takes is its bound. [items]
MOST_LAID_OUT, MOST_STRETCHES = 8192, 1 << 18


class _Exchanged(NamedTuple):
    """What exchanges of groups of devices take at least; (groups,) each. [s]

    Parameters
    ----------
    each
        Gathers of weights in a pass of each stage but what may come before it, which may be less
        than nothing; (chunks, groups).
    reduced, gathered
        Gradients of a micro-batch, and weights before a pass.
    sums, gathers
        How long they fill the links of each level; (levels, groups).
    last, left
        Gradients that are left after the last backward pass, and what travels from its begin on.
    after
        The update, and what follows it.
    """

    each: Floats
    reduced: Floats
    gathered: Floats
    sums: Floats
    gathers: Floats
    last: Floats
    left: Floats
    after: Floats


class BoundsOfStages:
    """What pipelines of one question take at least whose stages are blocks.

    Parameters
    ----------
    estimates, memory
        What choices cost, and what devices hold at least.
    chain
        Whether no stage works on a micro-batch while another one does.
    """

    def __init__(self, estimates: Estimates, memory: MemoryBounds, *, chain: bool) -> None:
        self.estimates, self.setting, self.cuts = estimates, estimates.setting, estimates.cuts
        self.memory, self.chain = memory, chain
        self.exchanged: dict[tuple[object, ...], _Exchanged] = {}

    def of(self, choice: Choice, *, most_again: int = 0, limit: float = math.inf) -> float:
        """What no step of a choice that fits takes less than; 0 where stages are not blocks. [s]

        Parameters
        ----------
        choice
            The choice.
        most_again
            Blocks of each stage that may be computed again, fewer ones as well; 0 where as many are
            as the choice says.
        limit
            What is more than that may come out as anything else that is. [s]
        """
        cuts = self.cuts
        if not (self.chain and cuts.first) or cuts.by_shares:
            return 0.0
        if choice.pp == 1 or choice.pp > len(cuts.pieces):
            return 0.0
        if choice.chunks > 1 and 2 * choice.parts * choice.micro_batches > MOST_LAID_OUT:
            return 0.0
        if choice.chunks > 1:
            return self._interleaved(choice, most_again)
        many = choice.pp * (len(cuts.pieces) - choice.pp + 1) ** 2 > MOST_STRETCHES
        return 0.0 if many else self._of_any_cut(choice, most_again, limit)

    def _interleaved(self, choice: Choice, most_again: int) -> float:
        """As `of`, of several stages a group."""
        found, insides = math.inf, self.estimates.insides(choice.zero)
        room = self.setting.cluster.device.memory
        for starts in cuts_of(self.estimates, choice):
            inside = insides.of(choice.inside, choice.samples)
            if choice.again:
                inside = insides.partly(choice, starts)
            low, high = 1, most_again
            while low < high:
                # the fewest blocks with which it may fit
                some = replace(choice, again=(low + high) // 2)
                trial = insides.partly(some, starts)
                if self.memory.of_stages(choice, trial, starts) > room:
                    low = some.again + 1
                else:
                    high, inside = some.again, trial
            if self.memory.of_stages(choice, inside, starts) <= room:
                found = min(found, self._laid_out(choice, starts, inside))
        return found

    def _laid_out(self, choice: Choice, starts: tuple[int, ...], inside: MicroBatch) -> float:
        """What passes take in their order, and what follows them. [s]

        Parameters
        ----------
        choice, starts, inside
            The choice, the first layer of each stage, and its micro-batch.
        """
        count, pp = choice.micro_batches, choice.pp
        forward, both, computed = (
            np.add.reduceat(row, starts).reshape(-1, pp)
            for row in (inside.least_forward, inside.least, inside.computed)
        )
        borders = tuple(inside.sent[[start - 1 for start in starts[1:]]].tolist())
        sends = self.estimates.exchanges.sends(pp, borders)
        gradients = self.estimates.exchanges.gradients(choice.zero)
        rounds = count if gradients.each_micro_batch else 1
        moved = self._exchanged(choice, starts, inside)
        # each pass gathers what has not come before it
        backward = np.maximum(both - forward, moved.each)
        forward = np.maximum(forward, moved.each)
        begun, done = begun_and_done(choice, forward, backward, sends, count - rounds)
        # gradients of a weight that is shared are exchanged before they are reduced, others beside
        ends = done + moved.last
        ends[0] += tied_message(self.estimates, choice, inside)
        left = np.maximum(done - backward[0] + moved.left, begun + rounds * moved.reduced)
        ends = np.maximum(ends, left if gradients.overlap else done + moved.reduced)
        fills = 2.0 * count * moved.gathers + rounds * moved.sums
        most = np.maximum(2.0 * count * moved.gathered, rounds * moved.reduced)
        most = np.maximum(most, fills.max(axis=0, initial=0.0))
        beside = slowed_by_each_other(count * computed.sum(axis=0), most)
        found = float((np.maximum(ends, beside) + moved.after).max())
        return found + waiting_time(count * inside.total_computed / pp, self.setting.gpus)

    def _exchanged(self, choice: Choice, starts: tuple[int, ...], inside: MicroBatch) -> _Exchanged:
        """What each group exchanges of its stages."""
        key = (inside.weighs, choice.zero, choice.pp, choice.shard_size, choice.offload, starts)
        if key not in self.exchanged:
            layers = np.arange(len(inside.gradients))
            group = (np.searchsorted(starts, layers, side="right") - 1) % choice.pp
            masks = [group == number for number in range(choice.pp)]
            firsts = [layers == first for first in starts[: choice.pp]]
            what = (self.estimates, choice, inside)
            updates, units = updates_by_layer(*what), units_ahead(self.estimates, choice)
            weights, (every, sums) = gathers_by_layer(*what), fills_by_layer(*what)
            of_stages = [
                np.add.reduceat(row, starts, axis=1).reshape(len(row), choice.chunks, choice.pp)
                for row in (weights[None], reductions_by_layer(*what)[None], every, sums)
            ]
            (each,), (left,), filled, summed = of_stages
            early = units * every.max(axis=1, initial=0.0)[:, None]
            last = summed[:, 0] + np.maximum(filled[:, 0] - early, 0.0)
            self.exchanged[key] = _Exchanged(
                each=each - units * float(weights.max()),
                sums=summed.sum(axis=1),
                gathers=filled.sum(axis=1),
                left=np.maximum(left[0], last.max(axis=0, initial=0.0)),
                reduced=np.array([reductions(*what, mask) for mask in masks]),
                gathered=np.array([gathers(*what, mask) for mask in masks]),
                last=np.array([reductions(*what, first) for first in firsts]),
                after=np.array([updates[m].sum() + gathered_after(*what, m) for m in masks]),
            )
        return self.exchanged[key]

    def _of_any_cut(self, choice: Choice, most_again: int, limit: float) -> float:
        """As `of`, of one stage a group, whatever blocks it has.

        A group may have any stretch of blocks, and takes at least what is found for it: of all cuts
        the one counts whose slowest group is the fastest.
        """
        most_again = most_again or choice.again
        insides, pieces = self.estimates.insides(choice.zero), self.cuts.pieces
        inside = insides.of(choice.split if most_again else choice.inside, choice.samples)
        ends = StretchBounds(self.estimates, choice, inside, pieces)
        stretches = Stretches(choice.pp, len(pieces), ends.longest(limit))
        each = saved = 0.0
        if most_again:
            whole = insides.of(choice.inside, choice.samples)
            sums, filled = insides.sums_of_blocks.sums, choice.fills_bubbles
            more = whole.least_spent(filled=filled) - inside.least_spent(filled=filled)
            each = float(sums(more).clip(min=0.0).min())
            saved = float(sums(inside.kept - whole.kept).max())
        room = self.setting.cluster.device.memory - self.memory.reserved(choice)
        kept = np.add.reduceat(inside.kept, pieces) * ("activations" not in choice.offload)
        flying = choice.flying[:, None, None]
        standing = np.add.reduceat(self.memory.standing(choice, inside), pieces)
        short = stretches.of(standing) + flying * stretches.of(kept) - room
        # as few blocks are computed again as fit, and one if there is any
        are_blocks = np.arange(len(pieces)) < len(self.cuts.first)
        blocks = stretches.of(are_blocks.astype(np.float64))
        fewest = np.minimum(blocks, 1.0) * (most_again > 0)
        if saved > 0.0:
            fewest = np.maximum(fewest, np.ceil(short / (flying * saved) - ROUNDING))
            short = fewest - blocks
        seconds = ends.of(stretches, fewest * each)
        waiting = choice.micro_batches * inside.total_computed / choice.pp
        wait = waiting_time(waiting, self.setting.gpus)
        seconds = np.where(short > room * ROUNDING, math.inf, seconds + wait)
        return stretches.slowest(seconds)
