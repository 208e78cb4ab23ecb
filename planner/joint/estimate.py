"""What a step of every global choice takes and holds, in closed form: which ones to simulate first.

The pipeline is taken as Narayanan et al. 2021 do (section 2.2), with the messages between stages:
the slowest group of devices works on all micro-batches, and each group waits for the others once,
in as many parts as it has chunks. A plan states what its simulation shows, not this.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from copy import copy
from functools import cache, cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.simulation import Runtime
from planner.joint.choices import LARGEST_MICRO_BATCH, Choice
from planner.joint.computation import pipelined
from planner.joint.cuts import WORTH_BALANCING, Cuts
from planner.joint.exchanged_cuts import ways_to_cut
from planner.joint.exchanges import Exchanges
from planner.joint.gathers import slowed_beside
from planner.joint.host_copies import (
    beside_copies,
    beside_passes,
    copied_update,
    held_in_host,
    weights_in_use,
)
from planner.joint.inside import Insides
from planner.joint.micro_batch import MicroBatch
from planner.joint.offload import Copies, HostRates
from planner.joint.pass_by_pass import ends_of_passes
from planner.joint.passes import activations, exchanged
from planner.joint.runtimes import choice_runtime
from planner.joint.stage_weights import StageWeights
from planner.joint.stages import StageCosts
from planner.request.parts import Degrees
from planner.request.setting import Setting
from planner.simulation.run import OVERLAP_FACTOR, waiting_time

Floats = NDArray[np.float64]
# What is estimated to hold more than a device by more does not fit: estimates of 294 offloaded
# choices of seven networks were 40 % above what was simulated at most, of what is not reserved
# (2026-11-27). [parts]
HOPELESS = 0.5
# Sums of hundreds of times, in other orders, differ by that.
ROUNDING = 1e-9


class Estimate(Struct, frozen=True, kw_only=True):
    """A global choice and what it is expected to cost.

    Parameters
    ----------
    choice
        The choice.
    seconds
        A step; with offload, of what does not fit by far, no more than its passes. [s]
    memory
        The most that a device holds. [B]
    """

    choice: Choice
    seconds: float
    memory: float


class Estimates:
    """Estimates of the choices of one question.

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which steps are simulated that cut no weights.
    """

    def __init__(self, setting: Setting, runtime: Runtime) -> None:
        self.setting, self.runtime = setting, runtime
        self.plain = Insides(setting, runtime)
        self.sharded: Insides | None = None
        self.exchanges = Exchanges(setting, runtime)
        self.cuts = Cuts(setting.graph, by_shares=runtime.stages_by_shares)
        self.stages: dict[tuple[object, ...], StageCosts] = {}
        self.weights: dict[tuple[object, ...], StageWeights] = {}
        # looked at again where what was expected to fit does not
        self.offloaded: dict[Choice, Estimate] = {}
        # of choices with equal stages, those that balance work and are faster, but do not fit
        self.too_large: dict[Choice, Estimate] = {}

    def on(self, setting: Setting) -> Estimates:
        """Those of the question for another number of GPUs, with what micro-batches cost."""
        if setting.machine.training != self.setting.machine.training:
            return Estimates(setting, self.runtime)  # one process may launch for fewer of them
        # before it is copied, so that both know what either costs
        self.insides(3)
        other = copy(self)
        vars(other).pop("host", None)  # fewer devices may share the links of a host
        other.setting, other.exchanges = setting, Exchanges(setting, self.runtime)
        other.stages, other.weights, other.offloaded, other.too_large = {}, {}, {}, {}
        return other

    def insides(self, zero: int) -> Insides:
        """What micro-batches cost, under the runtime of a stage of ZeRO."""
        if zero < 3:
            return self.plain
        if self.sharded is None:
            runtime = choice_runtime(self.runtime, zero)
            setting = self.setting.under(runtime)
            self.sharded = Insides(setting, runtime, cuts_weights=True)
        return self.sharded

    def of(self, choice: Choice) -> Estimate:
        """The estimate of a choice; where blocks do not divide, of its best numbers of blocks."""
        if not choice.offload:
            return self._best_cut(choice)
        if choice not in self.offloaded:
            self.offloaded[choice] = self._best_cut(choice)
        return self.offloaded[choice]

    def _best_cut(self, choice: Choice) -> Estimate:
        """As `of`."""
        insides = self.insides(choice.zero)
        if choice.again:
            starts = self.cuts.starts(choice.parts, choice.blocks)
            return self._estimate(choice, insides.partly(choice, starts))
        inside = insides.of(choice.inside, choice.samples)
        ways = [choice.blocks]
        if not choice.blocks:
            ways = ways_to_cut(self.cuts, self.exchanges, choice, inside)
        rows = [
            self._estimate(replace(choice, blocks=way) if way else choice, inside) for way in ways
        ]
        if choice.offload:
            # what was not timed is compared with nothing
            rows = [one for one in rows if not self._is_hopeless(one.memory)] or rows
        capacity = self.setting.cluster.device.memory
        best = _quickest(rows)
        found = _quickest([one for one in rows if one.memory <= capacity] or rows)
        if found is not best:
            self.too_large[found.choice] = best
        return found

    def most_again(self, choice: Choice) -> int:
        """Blocks of a stage at most that are computed again one by one, 0 for all at once. [items]

        Stages that are cut between any two layers have no blocks of their own.
        """
        if not (self.cuts.first or choice.parts == 1):
            return 0
        starts = self.cuts.starts(choice.parts, choice.blocks)
        return self.insides(choice.zero).most_again(starts)

    def least(self, choice: Choice) -> float:
        """What no estimate of a choice is below, wherever it is cut and whatever is computed again.

        Its passes without messages, gradients and updates, in stages that suit them best. [s]
        """
        # where weights are cut, layers take what they do otherwise, and gathers more
        inside = self.plain.known.get((choice.split, choice.samples))
        inside = inside or self.insides(choice.zero).of(choice.split, choice.samples)
        return self._passes(choice, inside)

    def known_least(self, choice: Choice) -> float:
        """As `least`, 0 where its micro-batches are not costed yet. [s]

        A sample takes no less in smaller micro-batches. Among more ranks of context parallelism
        each computes less, and what comes around them takes longer by their number at most: those
        of the next power of two stand in for others.
        """
        split, samples, cp = choice.split, choice.samples, choice.inside.cp
        for times in (1 << i for i in range(LARGEST_MICRO_BATCH.bit_length())):
            if inside := self.plain.known.get((split, samples * times)):
                return self._passes(choice, inside) / times
        ranks = 1 << (cp - 1).bit_length()
        more = self.plain.known.get((_among(split, ranks), samples)) if ranks > cp else None
        return 0.0 if more is None else self._passes(choice, more) * cp / ranks

    def _passes(self, choice: Choice, inside: MicroBatch) -> float:
        """What the passes of a choice take in stages that suit them best. [s]"""
        total, pp, count = inside.total, choice.pp, choice.micro_batches
        if choice.fills_bubbles:
            total -= inside.total_awaited
            found = max(count * total / pp, total - inside.total_apart)
        elif choice.chunks > 1:
            found = count * total / pp + total / choice.chunks * (1.0 - 1.0 / pp)
        else:
            found = pipelined(total, pp, 1, count, chain=True)
        found += waiting_time(count * inside.total_computed / pp, self.setting.gpus)
        return found * (1.0 - ROUNDING)

    def balanced(self, choice: Choice, inside: MicroBatch) -> Choice:
        """The choice with numbers of blocks that balance the work of its stages."""
        blocks = self.cuts.balanced(choice.parts, inside.forward + inside.backward)
        return replace(choice, blocks=blocks)

    def _estimate(self, choice: Choice, inside: MicroBatch) -> Estimate:
        """The estimate of a choice as it is."""
        stages = self._stages(choice, inside)
        memory = self._memory(choice, stages, inside)
        # what passes of weights need is there when they run by themselves
        forward, backward = stages.forward, stages.backward - choice.fills_bubbles * stages.awaited
        copies, around = None, None
        if choice.offload:
            if self._is_hopeless(memory):
                # nothing becomes of it: of how long it takes that its passes do is enough
                return Estimate(choice=choice, seconds=self._passes(choice, inside), memory=memory)
            copies = self.copies(choice, inside)
            if held_in_host(choice, stages, copies, self.host) > self.host.memory:
                memory = math.inf
        gradients = self.exchanges.gradients(choice.zero)
        behind: Floats | float = 0.0
        if copies is not None:
            # these leave no room around passes
            forward, backward = beside_copies(choice, stages, copies, self.host)
            behind = stages.gradients_behind(choice, forward, backward)
        elif choice.zero == 3 or gradients.by_unit:
            forward, backward, around = stages.with_gathers(choice)
            behind = around.behind
        if gradients.each_micro_batch and not gradients.by_unit:
            moved, _ = stages.weights.reductions(choice)
            backward = slowed_beside(backward, moved, moved)
        passes, in_turn = (forward, backward, stages.apart), self.runtime.waits_for_sends
        ends = ends_of_passes(choice, *passes, stages.sends, in_turn=in_turn, around=around)
        # gradients are whole with the passes of weights
        last = stages.apart if choice.fills_bubbles else backward
        tails = self._tails(choice, stages, last, ends.max() - ends) + behind
        if copies is not None:
            tails = tails + copied_update(choice, stages, copies, self.host, gradients, last)
        seconds = float((ends + tails).max())
        computed = choice.micro_batches * stages.computed.sum(axis=0)
        computed = computed + stages.weights.updates(choice)
        seconds += waiting_time(float(computed.max()), self.setting.gpus)
        return Estimate(choice=choice, seconds=seconds, memory=memory)

    def _is_hopeless(self, memory: float) -> bool:
        """Whether what is estimated to hold so much does not fit, however far off that is."""
        return memory > self.setting.cluster.device.memory * (1.0 + HOPELESS)

    @cached_property
    def host(self) -> HostRates:
        """What the memory of the hosts and the links to it take where all devices use them."""
        return HostRates.of(self.setting, self.setting.gpus)

    def ranks(self, choice: Choice, inside: MicroBatch) -> Floats:
        """Ranks that share the weight of each layer among each other. [items]"""
        size = choice.shard_size
        sizes = [float(self.exchanges.ranks(choice.pp, cut, size)) for cut in inside.cuts]
        return np.array([*sizes, 1.0])[inside.cut_of]

    def copies(self, choice: Choice, inside: MicroBatch) -> Copies:
        """What is copied between devices and the memory of their hosts."""
        ranks = self.ranks(choice, inside)
        return Copies.of(choice, inside, ranks, self.host.sent, self.plain.units)

    def _stages(self, choice: Choice, inside: MicroBatch) -> StageCosts:
        cut = (choice.pp, choice.chunks, choice.blocks, choice.again, choice.fills_bubbles)
        key = (choice.inside, choice.samples, *cut, choice.zero > 2, choice.shard_size)
        if key not in self.stages:
            starts = self.cuts.starts(choice.parts, choice.blocks, inside.balance)
            units = self.insides(choice.zero).sums
            weights = self._weights(choice, inside, starts)
            self.stages[key] = StageCosts.of(choice, inside, starts, units, weights)
        return self.stages[key]

    def _weights(self, choice: Choice, inside: MicroBatch, starts: tuple[int, ...]) -> StageWeights:
        """The weights of stages, whatever is computed again and however many samples there are.

        Parameters
        ----------
        choice, inside
            The choice, and what a micro-batch of it costs.
        starts
            The first layer of each stage.
        """
        key = (inside.weighs, choice.zero > 2, choice.pp, choice.shard_size, starts)
        if key not in self.weights:
            units = self.insides(choice.zero).sums
            self.weights[key] = StageWeights(choice, inside, starts, units, self.exchanges)
        return self.weights[key]

    def _tails(self, choice: Choice, stages: StageCosts, backward: Floats, early: Floats) -> Floats:
        """What gradients and the update add after the last backward pass of each group. [s]

        Parameters
        ----------
        choice, stages
            The choice, and what its stages cost.
        backward, early
            Of each stage on one micro-batch, and how much earlier than the last one each group is
            through with them. [s]
        """
        total, last = stages.weights.reductions(choice)
        overlaps = self.exchanges.gradients(choice.zero).overlap
        # a chunk is through so many passes of the later ones before the end
        rounds = min(choice.pp, choice.micro_batches)
        after = np.zeros_like(backward)
        after[1:] = rounds * backward[:-1].cumsum(axis=0)
        begin, end = -after - backward * overlaps, last - after
        exposed = np.maximum(exchanged(begin, total, end), 0.0)
        hidden = np.maximum(total.sum(axis=0) - exposed, 0.0)
        tail: Floats = exposed + OVERLAP_FACTOR * hidden
        gradients = self.exchanges.gradients(choice.zero)
        apart = choice.fills_bubbles and not total.any()
        stages.weights.exchange_shared(gradients, tail, early, apart=apart)
        if "optimizer" not in choice.offload:
            tail = tail + stages.weights.updates(choice)
        if 0 < choice.zero < 3:
            tail = tail + stages.weights.gathered_after()
        return tail

    def _memory(self, choice: Choice, stages: StageCosts, inside: MicroBatch) -> float:
        """The most that a device holds. [B]"""
        weights = stages.weights
        standing = weights.standing(choice)
        packed = self.setting.machine.training.held.buckets
        runtime = choice_runtime(self.runtime, choice.zero)
        buffers = weights.buffers(runtime.bucket or runtime.fusion or 0.0)
        if choice.zero < 3 and (self.runtime.views_buckets or packed):
            # what travels nowhere is no more than gradients that passes have not added up yet
            rows = np.where(weights.ranks > 1, weights.parameters, weights.unfinished)
            buffers = packed * rows.sum(axis=0)
        kept = activations(choice, stages.kept, stages.waiting, stages.passing)
        if "activations" in choice.offload:
            kept = np.minimum(kept, beside_passes(choice, stages))
        held = standing + kept
        if "weights" in choice.offload and choice.zero < 3:
            held = held + weights_in_use(choice, stages)
        most, updating = float((held + buffers).max()), 0.0
        if not {"optimizer", "weights"}.intersection(choice.offload):
            # by then activations are gone
            recipe = self.insides(choice.zero).setting.machine.training.held
            scratch = weights.parameters * recipe.update / (weights.ranks if choice.zero else 1.0)
            updating = float((standing + scratch.sum(axis=0) + buffers).max())
        reserved = self.setting.cluster.device.reserved_memory
        if runtime.caching:
            reserved += self.exchanges.communicators(choice, inside)
        return max(most, updating) + reserved


def _quickest(rows: Sequence[Estimate]) -> Estimate:
    """The fastest of some estimates, the simplest of those about as fast as the ones after them."""
    found = rows[0]
    for one in rows:
        if one.seconds < found.seconds * (1.0 - WORTH_BALANCING):
            found = one
    return found


@cache
def _among(split: Degrees, ranks: int) -> Degrees:
    """A split with other ranks of context parallelism."""
    return dataclasses.replace(split, cp=ranks)
