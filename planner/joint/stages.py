"""What the stages of one cut cost: sums of layers, and exchanges of their weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.exchanges import Exchanges
from planner.joint.micro_batch import MicroBatch
from planner.joint.units import Units
from planner.simulation.run import OVERLAP_FACTOR

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCosts:
    """What the stages of a pipeline cost; rows are chunks, columns groups of devices.

    Parameters
    ----------
    inside
        The layers.
    starts, units
        The first layer of each stage, and the units of layers.
    forward, backward, computed
        On one micro-batch. [s]
    launched, launched_forward
        What the host takes to launch both passes, and the forward pass. [s]
    kept, apart, waiting
        What a micro-batch leaves for its backward pass, what backward passes of weights take by
        themselves, and what waits for these. [B], [s], [B]
    passing
        What a pass of each group holds on top of what it leaves. [B]
    parameters, weights, gradients, state, update
        Of each group, by how weights are cut; (cuts, groups). [items], [B], [s]
    travels
        Gradients of each stage, by how weights are cut; (cuts, chunks, groups). [B]
    buckets
        In so many messages; (cuts, chunks, groups). [items]
    ranks
        That share the same weight among each other, by how weights are cut. [items]
    size
        Of an element of activations. [B]
    sent
        What each stage but the last sends to the next one. [B]
    reduced
        What reductions take, once they are known, by kind.
    """

    inside: MicroBatch
    starts: tuple[int, ...]
    units: Units
    forward: Floats
    backward: Floats
    computed: Floats
    launched: Floats
    launched_forward: Floats
    kept: Floats
    apart: Floats
    waiting: Floats
    passing: Floats
    parameters: Floats
    weights: Floats
    gradients: Floats
    state: Floats
    update: Floats
    travels: Floats
    buckets: Floats
    ranks: Floats
    size: float
    sent: Floats
    reduced: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        choice: Choice,
        inside: MicroBatch,
        starts: tuple[int, ...],
        units: Units,
        exchanges: Exchanges,
    ) -> StageCosts:
        """The stages of a choice.

        Parameters
        ----------
        choice, inside
            The choice, and what a micro-batch of it costs.
        starts, units, exchanges
            As above.
        """
        shape = (choice.chunks, choice.pp)
        rows = np.add.reduceat(inside.passes, starts, axis=1).reshape(-1, *shape)
        held = np.add.reduceat(inside.held, starts, axis=1).reshape(6, len(inside.cuts), *shape)
        groups = held.sum(axis=2)
        ends = [start - 1 for start in starts[1:]]
        before = inside.held_before
        most = np.maximum.reduceat(before[:-1] + inside.beside, starts)
        passing = (most - before[[*starts[1:], -1]]).reshape(shape).max(axis=0)
        return cls(
            inside=inside,
            starts=starts,
            units=units,
            forward=np.maximum(rows[0], rows[4]),
            backward=np.maximum(rows[1], rows[3] - rows[4]),
            computed=rows[2],
            launched=rows[3],
            launched_forward=rows[4],
            kept=rows[5],
            apart=rows[6],
            waiting=rows[7],
            passing=passing.clip(min=0.0),
            parameters=groups[0],
            weights=groups[1],
            gradients=groups[2],
            state=groups[3],
            update=groups[4],
            travels=held[2],
            buckets=np.maximum(np.round(held[5] + 0.5), 1.0),
            ranks=np.array(
                [[exchanges.ranks(choice.pp, cut, choice.shard_size)] for cut in inside.cuts],
                dtype=float,
            ),
            size=float(exchanges.setting.machine.training.activation_size),
            sent=inside.sent[ends],
        )

    def standing(self, choice: Choice) -> Floats:
        """Weights, gradients and optimizer state of each group. [B]"""
        rows = self.gradients / (self.ranks if choice.zero > 1 else 1.0)
        if "weights" not in choice.offload:
            rows = rows + self.weights / (self.ranks if choice.zero > 2 else 1.0)
        if "optimizer" not in choice.offload:
            rows = rows + self.state / (self.ranks if choice.zero > 0 else 1.0)
        total: Floats = rows.sum(axis=0)
        return total

    def updates(self, choice: Choice) -> Floats:
        """Updates of the weights of each group. [s]"""
        total: Floats = (self.update / (self.ranks if choice.zero else 1.0)).sum(axis=0)
        return total

    def reductions(self, choice: Choice, exchanges: Exchanges) -> tuple[Floats, Floats]:
        """Reductions of gradients of each stage, and those that wait for its first layer. [s]

        Parameters
        ----------
        choice, exchanges
            The choice, and what messages take.
        """
        gradients = exchanges.gradients(choice.zero)
        kind = gradients.kind
        if kind in self.reduced and not gradients.by_unit:
            return self.reduced[kind]
        shape = (choice.chunks, choice.pp)
        if gradients.by_unit:
            _, near, far = self._by_unit(choice, exchanges)
            scattered = near + far
            rows = np.add.reduceat(scattered, self.starts).reshape(shape)
            # all but the last unit are behind the backward pass already
            firsts = scattered[list(self.starts)].reshape(shape)
            return firsts, np.minimum(firsts, rows)
        part = gradients.part
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
            for place, row in enumerate(alike):
                if row not in known:  # stages are alike
                    whole, count, first = row
                    tail = min(max(first, whole / count), whole)
                    message = (kind, choice.pp, cut)
                    known[row] = (
                        count * exchanges.reduced(*message, whole / count, choice.shard_size),
                        exchanges.reduced(*message, tail, choice.shard_size),
                    )
                each, end = known[row]
                spent[place] += each
                ends[place] = max(ends[place], end)
        total, last = np.array(spent).reshape(shape), np.array(ends).reshape(shape)
        self.reduced[kind] = (total, last)
        return total, last

    def gathered_after(self, choice: Choice, exchanges: Exchanges) -> Floats:
        """Updated weights, gathered where each rank has updated its part. [s]"""
        found = np.zeros(choice.pp)
        for group in range(choice.pp):
            whole = self.parameters[:, group] * self.size
            cut = self.inside.cuts[int(whole.argmax())]
            found[group] = exchanges.time("all_gather", choice.pp, cut, float(whole.sum()))
        return found

    def _by_unit(self, choice: Choice, exchanges: Exchanges) -> tuple[Floats, Floats, Floats]:
        """Gathers of weights, and what gradients take, at the first layer of each unit. [s]

        Gradients are reduced over the ranks that share weights, and summed up over others then.
        """
        inside, pp = self.inside, choice.pp
        # whatever is computed again, weights are the same
        gradients, cuts_weights = exchanges.gradients(choice.zero), choice.zero > 2
        key = (id(inside.numbers), pp, cuts_weights, gradients.kind, choice.shard_size)
        if key in exchanges.by_unit:
            return exchanges.by_unit[key]
        gathers, scatters, sums = (np.zeros(len(inside.forward)) for _ in range(3))
        for places in self.units.places:
            numbers = inside.numbers[places]
            if not numbers.any():
                continue
            cut = inside.cuts[inside.cut_of[places[int(numbers.argmax())]]]
            if exchanges.ranks(pp, cut) > 1 and cuts_weights:
                num_bytes = float(numbers.sum()) * self.size
                gathers[places[0]] = exchanges.time(
                    "all_gather", pp, cut, num_bytes, choice.shard_size
                )
            for number, other in enumerate(inside.cuts):
                mine = inside.cut_of[places] == number
                num_bytes = float(inside.gradients[places][mine].sum()) * gradients.part
                message = (gradients.kind, pp, other, num_bytes, choice.shard_size)
                scatters[places[0]] += exchanges.time(*message)
                sums[places[0]] += exchanges.summed_up(*message)
        exchanges.by_unit[key] = (gathers, scatters, sums)
        return gathers, scatters, sums

    def with_gathers(self, choice: Choice, exchanges: Exchanges) -> tuple[Floats, Floats]:
        """Both passes of each stage where weights are gathered unit by unit. [s]"""
        forward, backward = map(self.of_stages, self.with_gathers_by_unit(choice, exchanges))
        if choice.shard_size and exchanges.gradients(choice.zero).by_unit:
            # sums over shards wait for no unit, only for each other
            sums = self.of_stages(self._by_unit(choice, exchanges)[2])
            beside = backward + (forward if choice.micro_batches > 1 else 0.0)
            hidden = np.minimum(sums, beside)
            backward = backward + sums - hidden + OVERLAP_FACTOR * hidden
        launched = self.launched - self.launched_forward
        return np.maximum(forward, self.launched_forward), np.maximum(backward, launched)

    def of_stages(self, values: Floats) -> Floats:
        """What values of all layers are for each stage."""
        return np.add.reduceat(values, self.starts).reshape(self.forward.shape)

    def with_gathers_by_unit(self, choice: Choice, exchanges: Exchanges) -> tuple[Floats, Floats]:
        """Both passes of each unit, at its first layer, where weights are gathered. [s]

        Beside a unit travel the weights of the next one, and the gradients of the one before.
        """
        gathers, scatters, _ = self._by_unit(choice, exchanges)
        if not exchanges.gradients(choice.zero).by_unit:
            scatters = np.zeros_like(scatters)
        firsts, order = self.units.firsts, self.units.order
        stage = np.searchsorted(self.starts, firsts, side="right")
        # backward, the unit before is the one behind; a forward pass follows a backward pass
        behind = np.zeros_like(gathers)
        same = stage[1:] == stage[:-1]
        behind[firsts[:-1]] = np.where(same, scatters[firsts[1:]], 0.0)
        before = np.zeros_like(gathers)
        opening = np.concatenate(([True], ~same))
        before[firsts] = np.where(opening, scatters[firsts], 0.0)
        rows = []
        for work, moved in (
            (self.inside.forward, gathers + before),
            (self.inside.backward, gathers + behind),
        ):
            unit = np.bincount(self.units.owners, weights=work[order], minlength=len(work))
            # what is gathered behind computation slows it down
            rows.append(np.maximum(unit, moved) + OVERLAP_FACTOR * np.minimum(unit, moved))
        return rows[0], rows[1]

    def largest_units(self, choice: Choice, inside: MicroBatch) -> float:
        """Two units of weights as they are gathered, and the gradients of one. [B]"""
        return 3.0 * float(self.units.sums(inside.numbers).max(initial=0.0)) * self.size
