"""What no step of a global choice takes less than, and no device of it holds less than.

They know the splits of a choice and their communication, the exchange of gradients, updates and
memory; docs/joint-search.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from planner.joint.as_cut import BoundsAsCut
from planner.joint.borders import interleaved, least_message, passed_on, tied_message
from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds, pipelined
from planner.joint.estimate import ROUNDING, Estimates
from planner.joint.exchange_bounds import (
    after_first,
    gathered_after,
    passes_beside_exchanges,
    passes_in_turn,
    reductions,
    slowed_by_gathers,
)
from planner.joint.host_bounds import copied_in_passes, copies_in_all
from planner.joint.hybrid import shard_sizes
from planner.joint.memory_bounds import MemoryBounds
from planner.joint.micro_batch import MicroBatch
from planner.joint.offload import HostRates, most_waiting, offloaded
from planner.joint.stage_bounds import BoundsOfStages
from planner.request.parts import Degrees
from planner.request.setting import Setting
from planner.simulation.run import waiting_time

Floats = NDArray[np.float64]


class ChoiceBounds(Struct, kw_only=True, eq=False, dict=True):
    """Bounds of choices by what they cannot avoid.

    Parameters
    ----------
    setting
        The question.
    estimates
        What choices cost.
    floors
        What computation alone takes at least.
    partly
        Whether a choice that computes blocks again stands for all numbers of blocks.
    hybrid
        Whether a choice with shards on all ranks of a weight stands for shards on fewer of them.
    """

    setting: Setting
    estimates: Estimates
    floors: PipelineBounds
    partly: bool = False
    hybrid: bool = False
    series: dict[tuple[Degrees, int, bool, bool], tuple[float, Floats]] = field(
        default_factory=dict
    )
    known: dict[Choice, float] = field(default_factory=dict)

    def members(self, choice: Choice) -> list[Choice]:
        """The choices that the bound of one holds for, wherever it is cut."""
        if not self._stands_for_more(choice):
            return [choice]
        counts = range(1, self._most_again(choice))
        return [*(replace(choice, again=count) for count in counts), choice]

    def _most_again(self, choice: Choice) -> int:
        """Blocks of the stage that has the most of them, wherever it is cut. [items]"""
        cuts = self.estimates.cuts
        if cuts.by_shares or not cuts.first:  # a stage may have no block at all
            return self.estimates.most_again(
                replace(choice, blocks=()) if choice.blocks else choice
            )
        return len(cuts.pieces) - choice.parts + 1 if choice.parts > 1 else len(cuts.first)

    def _stands_for_more(self, choice: Choice) -> bool:
        free = self.partly and not (choice.offload or choice.again)
        return free and choice.inside.recompute == "full" and self._most_again(choice) > 1

    def shards(self, choice: Choice) -> list[Choice]:
        """A choice, and those with its shards on fewer ranks."""
        if not self.hybrid or not choice.zero:
            return [choice]
        inside = self.estimates.insides(choice.zero).of(choice.inside, choice.samples)
        sizes = shard_sizes(choice, inside, self.estimates.exchanges)
        return [choice, *(replace(choice, shard_size=size) for size in sizes)]

    def of(
        self, choice: Choice, *, fitting: bool = True, alone: bool = False, may_wait: bool = False
    ) -> float:
        """What no step of a choice takes less than, of those that fit +inf where none does. [s]

        Parameters
        ----------
        choice
            The choice.
        fitting
            Whether those that do not fit do not matter.
        alone
            Whether its weights are cut as it says, and not over fewer ranks.
        may_wait
            Whether the bound is to hold with some of it in the memory of the hosts, too.
        """
        insides = self.estimates.insides(choice.zero)
        inside = insides.of(choice.inside, choice.samples)
        room = self.setting.cluster.device.memory
        if fitting and self.memory.of(choice, inside) > room:
            return math.inf
        if alone:
            return self._least(choice, inside, [choice])
        if may_wait:
            return self._least(choice, inside, self.shards(choice), may_wait=True)
        if choice not in self.known:
            self.known[choice] = self._least(choice, inside, self.shards(choice))
        return self.known[choice]

    def _least(
        self, choice: Choice, inside: MicroBatch, ways: Sequence[Choice], *, may_wait: bool = False
    ) -> float:
        """As `of`, whether it fits or not.

        Parameters
        ----------
        choice, inside
            The choice, and what a micro-batch of it costs.
        ways
            Those that cut its weights over as many ranks as matter.
        may_wait
            As of `of`.
        """
        slowed, more = min(slowed_by_gathers(self.estimates, way, inside) for way in ways), 0.0
        if self._stands_for_more(choice):
            kept = self._kept(choice)
            slowed = min(slowed, *(slowed_by_gathers(self.estimates, way, kept) for way in ways))
            more = self._least_again(choice, kept, inside)
            inside = kept
        pp, count = choice.pp, choice.micro_batches
        total, in_turn = inside.total_spent(filled=choice.fills_bubbles) + more, self.floors.chain
        message = least_message(self.estimates, choice, self._kept(choice))
        tied = tied_message(self.estimates, choice, self._kept(choice))
        # stages in series end with the first layer, whose gradient is left then
        in_series = in_turn or pp == 1
        # what waits in the hosts may be updated there
        away = [replace(way, offload=most_waiting(way)) for way in ways] if may_wait else ways
        ends = min(after_first(self.estimates, way, inside) for way in away)
        rest = tied + ends * in_series
        if choice.fills_bubbles:
            chain, last = count * total / pp, inside.total_apart
        else:
            chain = pipelined(total, pp, choice.chunks, count, chain=in_turn, message=message)
            last = total - inside.total_least_forward
            chain += rest * in_series * (choice.chunks == 1)
        if choice.chunks > 1:
            series = interleaved(self.estimates, choice, inside, message, chain=in_turn)
            chain = max(chain, series + rest * in_series)
        updates = 0.0 if may_wait else self._updates(choice, inside)
        after = updates + min(gathered_after(self.estimates, way, inside) for way in away)
        found = max(chain, (count * total + after) / pp)
        # no gradient travels before its last pass that makes any, of several stages before all
        # forward passes and all but so many backward passes
        last = last * pp if choice.chunks > 1 else last
        travels = min(reductions(self.estimates, way, inside) for way in ways) + 2.0 * tied
        begin = message * (pp - 1) / 2.0
        found = max(found, begin + (count * total - last + travels + after) / pp)
        if self.estimates.exchanges.gradients(choice.zero).each_micro_batch:
            first = inside.total_least_forward
            every = (count - 1) * (travels - 2.0 * tied) + travels
            found = max(found, begin + (first + every + after) / pp)
        if choice.offload:
            found = max(found, copies_in_all(self.estimates, choice, inside) / pp)
            ahead = count * inside.total_least_forward
            out, back = copied_in_passes(self.estimates, choice, inside)
            beside = max(ahead, out) + max(count * total - ahead, back)
            found = max(found, (beside + after) / pp)
        once = float(inside.least_before.sum()) if choice.fills_bubbles else total
        found = max(found + slowed, passed_on(choice, once, message, chain=in_turn) + rest)
        beside = min(passes_beside_exchanges(self.estimates, way, inside) for way in ways)
        found = max(found, beside + after / pp)
        found += waiting_time(count * inside.total_computed / pp, self.setting.gpus)
        if not self.floors.chain:
            least = min(self.as_cut.of(way, self._kept(way)) for way in away)
            found = max(found, self._in_series(choice), least)
        if choice.pp == choice.micro_batches == 1 and not (choice.offload or may_wait):
            if choice.inside.recompute != "none":
                # what is computed again only adds to passes, but may fill what they wait
                inside = replace(self._kept(choice), gaps=(0.0, 0.0))
            found = max(
                found, min(passes_in_turn(self.estimates, w, inside, updates) for w in ways)
            )
        return found * (1.0 - ROUNDING)

    def of_stages(self, choice: Choice, least: float, limit: float = math.inf) -> float:
        """The most that is known of a choice, stage by stage, which takes longer than `of`. [s]

        Parameters
        ----------
        choice, least
            The choice, and what is known already. [s]
        limit
            What takes longer does not matter. [s]
        """
        most = self._most_again(choice) if self._stands_for_more(choice) else 0
        found = self.in_stages.of(choice, most_again=most, limit=limit / (1.0 - ROUNDING))
        return max(least, found * (1.0 - ROUNDING))

    def by_shards(self, least: float, choice: Choice) -> list[tuple[float, Choice]]:
        """What each of the choices takes at least that a bound holds for, as of `shards`. [s]

        Parameters
        ----------
        least, choice
            The bound, and the choice that it is of.
        """
        ways = self.shards(choice)
        return (
            [(least, choice)]
            if len(ways) == 1
            else [(self.of(way, alone=True), way) for way in ways]
        )

    def _in_series(self, choice: Choice) -> float:
        """What layers take that wait for each other, with nothing computed again. [s]"""
        pp, count = choice.pp, choice.micro_batches
        kept = self._kept(choice)
        every = self._sums(choice, kept, apart=False)
        if not choice.fills_bubbles:
            return self.floors.staged(every, pp, choice.chunks, count)
        return self.floors.filled(every, self._sums(choice, kept, apart=True), pp, count)

    @cached_property
    def memory(self) -> MemoryBounds:
        """What devices hold at least."""
        return MemoryBounds(self.estimates)

    @cached_property
    def as_cut(self) -> BoundsAsCut:
        """What stages take at least as they are simulated."""
        return BoundsAsCut(self.estimates)

    @cached_property
    def in_stages(self) -> BoundsOfStages:
        """What stages of blocks take at least."""
        return BoundsOfStages(self.estimates, self.memory, chain=self.floors.chain)

    def _sums(self, choice: Choice, kept: MicroBatch, *, apart: bool) -> tuple[float, Floats]:
        """Sums of computation, as of `PipelineBounds.sums`; apart without that of weights. [s]"""
        key = (choice.split, choice.samples, choice.zero > 2, apart)
        if key not in self.series:
            rows = kept.computed - kept.apart if apart else kept.computed
            self.series[key] = self.floors.sums(rows[None])[0]
        return self.series[key]

    def _kept(self, choice: Choice) -> MicroBatch:
        """A micro-batch of which nothing is computed again."""
        return self.estimates.insides(choice.zero).of(choice.split, choice.samples)

    def offloaded(self, choice: Choice, seconds: float) -> list[tuple[float, Choice]]:
        """What a choice takes at least that fits with some of it in the memory of the hosts. [s]

        Parameters
        ----------
        choice
            Without.
        seconds
            What takes as long does not matter. [s]
        """
        rows = ((self.with_hosts(other, seconds), other) for other in offloaded(choice))
        return [row for row in rows if row[0] < seconds]

    def _least_again(self, choice: Choice, kept: MicroBatch, again: MicroBatch) -> float:
        """What blocks computed again take at least, so that all of the rest fits. [s]

        The mean of the groups holds no more than a device has. What is too much must go, and where
        it takes the least time of all blocks, nothing is saved for less.

        Parameters
        ----------
        choice, kept, again
            The choice, and its micro-batch where nothing, and where every block is computed again.
        """
        device = self.setting.cluster.device
        room = choice.pp * (device.memory - device.reserved_memory)
        short = float(self.memory.standing(choice, kept).sum() + kept.kept.sum()) - room
        blocks = self.estimates.insides(choice.zero).sums_of_blocks
        filled = choice.fills_bubbles
        more = again.least_spent(filled=filled) - kept.least_spent(filled=filled)
        each: list[float] = blocks.sums(more).clip(min=0.0).tolist()
        saved: list[float] = blocks.sums(kept.kept - again.kept).tolist()
        ratios = (time / size for time, size in zip(each, saved, strict=True) if size > 0.0)
        # one of each stage that has any is computed again in any case; the head may be alone
        cuts = self.estimates.cuts
        alone = len(cuts.pieces) > len(cuts.first)
        stages = 1 if cuts.by_shares else max(choice.parts - alone, 1)
        return max(max(short, 0.0) * min(ratios, default=0.0), stages * min(each))

    def with_hosts(self, choice: Choice, most: float) -> float:
        """As `of`, by copies alone where these take too long; without any, whether it fits or not.

        Parameters
        ----------
        choice, most
            The choice, and what a step may take. [s]
        """
        if not choice.offload:
            return self.of(choice, fitting=False)
        inside = self.estimates.insides(choice.zero).of(choice.inside, choice.samples)
        copies = copies_in_all(self.estimates, choice, inside) / choice.pp * (1.0 - ROUNDING)
        return copies if copies > most else self.of(choice)

    def _updates(self, choice: Choice, inside: MicroBatch) -> float:
        """Updates of all stages. [s]"""
        if "optimizer" in choice.offload:
            rates = HostRates.of(self.setting, self.setting.gpus // choice.pp)
            return float(self.estimates.copies(choice, inside).updated.sum()) * rates.update
        if not choice.zero:
            return float(inside.update.sum())
        return float((inside.update / self._ranks(choice, inside)).sum())

    def _ranks(self, choice: Choice, inside: MicroBatch) -> Floats:
        """Ranks that hold the weight of each layer. [items]"""
        return self.estimates.ranks(choice, inside)
