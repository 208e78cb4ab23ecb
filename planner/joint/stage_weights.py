"""What the weights of the stages of one cut hold, and what exchanges of their gradients take.

Neither recomputation nor the number of samples changes any of that: choices that differ in these
alone share it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.exchanges import Exchanges, Gradients
from planner.joint.gathers import RunsOfUnits, Travel
from planner.joint.micro_batch import MicroBatch
from planner.joint.unit_travels import travels_of_units
from planner.joint.units import Units

Floats = NDArray[np.float64]


class StageWeights:
    """The weights of all stages; rows are chunks, columns groups of devices.

    Parameters
    ----------
    choice
        Stages and shards; whatever else it says does not matter.
    inside
        The layers.
    starts, units
        The first layer of each stage, and the units of layers.
    exchanges
        What messages take.
    """

    def __init__(
        self,
        choice: Choice,
        inside: MicroBatch,
        starts: Sequence[int],
        units: Units,
        exchanges: Exchanges,
    ) -> None:
        self.inside, self.starts, self.units, self.exchanges = inside, starts, units, exchanges
        self.pp, self.shard_size = choice.pp, choice.shard_size
        self.shape = (choice.chunks, choice.pp)
        # layers that share a weight, its owner first, and their stages, of unlike groups
        stages = np.searchsorted(starts, exchanges.shared, side="right") - 1
        pairs = zip(exchanges.shared, stages.reshape(-1, 2).tolist(), strict=True)
        self.shared = [pair for pair in pairs if pair[1][0] % self.pp != pair[1][1] % self.pp]
        held = np.add.reduceat(inside.held, starts, axis=1)
        held = held.reshape(6, len(inside.cuts), *self.shape)
        # of each group, by how weights are cut; (cuts, groups)
        whole = held + self._shared_copies(inside)
        groups = whole.sum(axis=2)
        self.parameters: Floats = groups[0]
        # of two stages, as large as the largest: simulated, passes of no more are under way at once
        self.unfinished: Floats = np.minimum(2.0 * whole[0].max(axis=1), groups[0])
        self.weights: Floats = groups[1]
        self.gradients: Floats = groups[2]
        self.state: Floats = groups[3]
        self.update: Floats = groups[4]
        # gradients of each stage, and in how many messages; (cuts, chunks, groups)
        self.travels: Floats = held[2]
        self.buffered: Floats = whole[2].sum(axis=0)
        self.buckets: Floats = np.maximum(np.round(held[5] + 0.5), 1.0)
        ranks = [[exchanges.ranks(self.pp, cut, self.shard_size)] for cut in inside.cuts]
        # that share the same weight among each other
        self.ranks: Floats = np.array(ranks, dtype=float).reshape(-1, 1)
        self.size = float(exchanges.setting.machine.training.activation_size)
        self._reduced: dict[tuple[str, float, bool], tuple[Floats, Floats]] = {}
        self._standing: dict[tuple[int, tuple[str, ...]], Floats] = {}
        self._updates: dict[bool, Floats] = {}
        self._buffers: dict[float, Floats] = {}
        self._gathered: Floats | None = None
        self._beside: Floats | None = None
        self._runs: RunsOfUnits | None = None

    def _shared_copies(self, inside: MicroBatch) -> Floats:
        """What stages hold of weights that a layer of theirs shares with one of another group.

        Parameters
        ----------
        inside
            The layers, of which the first one that has a weight holds it.
        """
        rows = inside.held.reshape(6, len(inside.cuts), -1)
        found = np.zeros((*rows.shape[:2], *self.shape))
        seen = set[tuple[int, int]]()
        for (owner, _), (_, stage) in self.shared:
            chunk, group = divmod(stage, self.pp)
            if (owner, group) not in seen:
                seen.add((owner, group))
                found[:, :, chunk, group] += rows[:, :, owner]
        return found

    def standing(self, choice: Choice) -> Floats:
        """Weights, gradients and optimizer state of each group. [B]"""
        key = (choice.zero, choice.offload)
        if key not in self._standing:
            rows = self.gradients / (self.ranks if choice.zero > 1 else 1.0)
            if "weights" not in choice.offload:
                rows = rows + self.weights / (self.ranks if choice.zero > 2 else 1.0)
            if "optimizer" not in choice.offload:
                rows = rows + self.state / (self.ranks if choice.zero > 0 else 1.0)
            self._standing[key] = rows.sum(axis=0)
        return self._standing[key]

    def updates(self, choice: Choice) -> Floats:
        """Updates of the weights of each group. [s]"""
        cut = choice.zero > 0
        if cut not in self._updates:
            self._updates[cut] = (self.update / (self.ranks if cut else 1.0)).sum(axis=0)
        return self._updates[cut]

    def reductions(self, choice: Choice) -> tuple[Floats, Floats]:
        """Reductions of gradients of each stage, and those that wait for its first layer. [s]"""
        gradients = self.exchanges.gradients(choice.zero)
        key = (gradients.kind, gradients.part, gradients.by_unit and choice.zero > 2)
        if key not in self._reduced:
            self._reduced[key] = (
                self._reduced_by_unit(choice)
                if gradients.by_unit
                else self._reduced_by_bucket(gradients)
            )
        return self._reduced[key]

    def sums_early(self, gradients: Gradients) -> NDArray[np.bool_]:
        """Whether each group has its gradients summed up all along its backward pass.

        What fills no bucket, such as those of norms, is summed up when the last of it is there.

        Parameters
        ----------
        gradients
            How they are reduced.
        """
        reduced = (self.travels.sum(axis=1) > 0.0) & (self.ranks > 1.0)
        if gradients.overlap:
            reduced &= (self.buckets.sum(axis=1) <= 1.0) & (not gradients.by_unit)
        found: NDArray[np.bool_] = ~np.any(reduced, axis=0)
        return found

    def _reduced_by_unit(self, choice: Choice) -> tuple[Floats, Floats]:
        """As `reductions`, where each unit of layers has its own."""
        _, near, far = self.by_unit(choice)
        scattered = near.time + far.time
        rows = np.add.reduceat(scattered, self.starts).reshape(self.shape)
        # all but the last unit are behind the backward pass already
        firsts = scattered[list(self.starts)].reshape(self.shape)
        return firsts, np.minimum(firsts, rows)

    def _reduced_by_bucket(self, gradients: Gradients) -> tuple[Floats, Floats]:
        """As `reductions`, where those of several layers travel together."""
        part, reduced = gradients.part, self.exchanges.reduced
        spent, ends = [0.0] * len(self.starts), [0.0] * len(self.starts)
        first_sizes = (self.inside.gradients[list(self.starts)] * part).tolist()
        for number, cut in enumerate(self.inside.cuts):
            known: dict[tuple[float, float, float], tuple[float, float]] = {}
            alike = zip(
                (self.travels[number] * part).ravel().tolist(),
                self.buckets[number].ravel().tolist(),
                first_sizes,
                strict=True,
            )
            message = (gradients.kind, self.pp, cut)
            for place, row in enumerate(alike):
                if row not in known:  # stages are alike
                    whole, count, first = row
                    tail = min(max(first, whole / count), whole)
                    known[row] = (
                        count * reduced(*message, whole / count, self.shard_size),
                        reduced(*message, tail, self.shard_size),
                    )
                each, end = known[row]
                spent[place] += each
                ends[place] = max(ends[place], end)
        return np.array(spent).reshape(self.shape), np.array(ends).reshape(self.shape)

    def gathered_after(self) -> Floats:
        """Updated weights, gathered where each rank has updated its part. [s]"""
        if self._gathered is None:
            whole = self.parameters * self.size
            rows = zip(whole.argmax(axis=0).tolist(), whole.sum(axis=0).tolist(), strict=True)
            cuts, time = self.inside.cuts, self.exchanges.time
            self._gathered = np.array(
                [
                    time("all_gather", self.pp, cuts[cut], size, self.shard_size)
                    for cut, size in rows
                ]
            )
        return self._gathered

    def exchange_shared(
        self, gradients: Gradients, tails: Floats, early: Floats, *, apart: bool = False
    ) -> None:
        """Let groups wait for the gradients of weights that layers of several of them share.

        Parameters
        ----------
        gradients
            How they travel.
        tails
            What gradients of each group take after its last backward pass, which grows. [s]
        early
            How much earlier than the last one each group is through with its passes. [s]
        apart
            Whether passes of weights come last, and no other gradients travel.
        """
        for (owner, sharer), stages in self.shared:
            pair = np.array(stages) % self.pp
            size = float(self.inside.gradients[owner])
            each = self.exchanges.between(self.pp, int(pair[0]), int(pair[1]), size)
            own, other = (tails - early)[pair].tolist()
            if apart:
                own -= self._after_weight(owner, int(stages[0]))
                other -= self._after_weight(sharer, int(stages[1]))
            # the gradient of a weight counts with its owner, and is summed up over both
            cut = self.inside.cuts[self.inside.cut_of[owner]]
            whole = size * gradients.part
            other += self.exchanges.reduced(gradients.kind, self.pp, cut, whole, self.shard_size)
            # what comes to the owner shares its links with what it reduces meanwhile
            meanwhile = own - max(other, own - float(tails[pair[0]]))
            ends = max(own + min(each, max(meanwhile, 0.0)), other) + each
            tails[pair] = np.maximum(tails[pair], ends + early[pair])

    def _after_weight(self, layer: int, stage: int) -> float:
        """What a pass of weights still takes once it has the gradient of one of them. [s]

        Parameters
        ----------
        layer, stage
            The place of the layer, and of its stage. [items]
        """
        apart = self.inside.apart
        # what has no such pass has its gradient before all of them
        end = layer if apart[layer] > 0.0 else [*self.starts, len(apart)][stage + 1]
        return float(apart[self.starts[stage] : end].sum())

    def by_unit(self, choice: Choice) -> tuple[Travel, Travel, Travel]:
        """As of `travels_of_units`."""
        return travels_of_units(self.exchanges, self.units, self.inside, choice)

    def runs(self, choice: Choice) -> RunsOfUnits:
        """Units that bring weights, with what runs beside what travels for them."""
        if self._runs is None:
            gathers, scatters, _ = self.by_unit(choice)
            firsts = self.units.firsts
            weighs = (gathers.time + scatters.time)[firsts] > 0.0
            self._runs = RunsOfUnits.of(self.starts, firsts, weighs)
        return self._runs

    def buffers(self, bucket: float) -> Floats:
        """Two buckets of gradients in each stage of each group. [B]

        Parameters
        ----------
        bucket
            When one is full. [B]
        """
        if bucket not in self._buffers:
            each = np.minimum(2.0 * bucket, self.buffered)
            self._buffers[bucket] = each.sum(axis=0)
        return self._buffers[bucket]

    def gathered_beside(self) -> Floats:
        """What is gathered while passes of each layer run, with gradients that are whole. [B]

        Weights of its unit and the gradients that are there by then, and beside it the weights of
        the unit that comes next in the backward pass, or the gradients of the one that was before.
        """
        if self._beside is None:
            numbers = self.units.sums(self.inside.numbers)
            ends = np.concatenate(([0.0], numbers, [0.0]))
            each = numbers + np.maximum(ends[:-2], ends[2:])
            made = self.units.from_each(self.inside.numbers)
            self._beside = (self.units.of_layers(each) + made) * self.size
        return self._beside
