"""What pipelines take at least whose stages are cut in one way, between any two layers.

Layers of a stage may work beside those of another one. What a stage waits for is found by laying
out one micro-batch: a layer begins when those are through that it reads, and the one before it on
its stage, and what comes from another stage takes its message besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from costmodels.graph import Graph
from planner.joint.choices import Choice
from planner.joint.estimate import Estimates
from planner.joint.exchange_bounds import (
    gathered_after,
    gathers,
    reductions,
    updates_by_layer,
)
from planner.joint.micro_batch import MicroBatch
from planner.simulation.run import waiting_time

Floats = NDArray[np.float64]


def read_layers(graph: Graph) -> list[list[int]]:
    """Of each layer the places of those that it reads."""
    place = {layer.name: number for number, layer in enumerate(graph.compute_layers)}
    return [
        [place[edge.source] for edge in graph.producers[name] if edge.source in place]
        for name in place
    ]


class Waits:
    """What the stages of a pipeline wait for each other on one micro-batch, at least.

    Parameters
    ----------
    reads
        As of `read_layers`.
    starts
        The first layer of each stage.
    forward, backward
        Of each layer, the latter without what runs by itself. [s]
    messages
        From the stage of a layer to that of one that reads it, by their places; the gradient takes
        as long. [s]

    Attributes
    ----------
    ahead, beyond, back
        Of each stage: until it begins; from the end of its forward pass until its backward pass can
        begin; and from the end of that until all stages are through. [s]
    """

    def __init__(
        self,
        reads: list[list[int]],
        starts: Sequence[int],
        forward: Floats,
        backward: Floats,
        messages: Mapping[tuple[int, int], float],
    ) -> None:
        self.reads, self.starts = reads, starts
        self.stage = np.searchsorted(starts, np.arange(len(reads)), side="right") - 1
        stages, first = np.arange(len(starts)), np.array(starts)
        last = np.append(first[1:], len(reads)) - 1
        begins, _ = self._forward(
            forward[:, None], {edge: np.array([time]) for edge, time in messages.items()}
        )
        self.ahead = begins[first, 0]
        later = self.stage[:, None] > stages
        # what a stage sends before the end of its pass may be there by then
        sent = {
            (one, other): time * (later[one] | (last == one))
            for (one, other), time in messages.items()
        }
        _, ends = self._forward(forward[:, None] * later, sent)
        sent = {edge: np.full(len(stages), time) for edge, time in messages.items()}
        begins, _ = self._backward(backward[:, None] * later, ends, sent)
        self.beyond = begins[last, stages]
        earlier = self.stage[:, None] < stages
        sent = {
            (one, other): time * (earlier[other] | (first == other))
            for (one, other), time in messages.items()
        }
        nothing = np.zeros((len(reads), len(starts)))
        _, ends = self._backward(backward[:, None] * earlier, nothing, sent)
        self.back = ends.max(axis=0)

    def _forward(
        self, times: Floats, sent: Mapping[tuple[int, int], Floats]
    ) -> tuple[Floats, Floats]:
        """When the forward pass of each layer begins and ends.

        Parameters
        ----------
        times, sent
            How long it takes, and what comes from other stages, by edges. [s]
        """
        begins, ends = np.zeros_like(times), np.zeros_like(times)
        first = set(self.starts)
        for number, sources in enumerate(self.reads):
            rows = sources if number in first else [number - 1, *sources]
            if rows:
                begins[number] = ends[rows].max(axis=0)
            for source in sources:
                if (late := sent.get((source, number))) is not None:
                    np.maximum(begins[number], ends[source] + late, out=begins[number])
            ends[number] = begins[number] + times[number]
        return begins, ends

    def _backward(
        self, times: Floats, ready: Floats, sent: Mapping[tuple[int, int], Floats]
    ) -> tuple[Floats, Floats]:
        """When the backward pass of each layer begins and ends.

        Parameters
        ----------
        times, ready
            How long it takes, and when the forward pass is through. [s]
        sent
            As of `_forward`.
        """
        begins, ends = ready.copy(), np.zeros_like(times)
        for before, start in pairwise([*self.starts, len(self.reads)]):
            # a stage goes back when its whole forward pass is through
            begins[start - 1] = np.maximum(begins[start - 1], ready[before:start].max(axis=0))
        first = set(self.starts)
        for number in reversed(range(len(self.reads))):
            ends[number] = begins[number] + times[number]
            rows = self.reads[number]
            for place in rows if number in first else [number - 1, *rows]:
                late = sent.get((place, number))
                there = ends[number] if late is None else ends[number] + late
                np.maximum(begins[place], there, out=begins[place])
        return begins, ends


class BoundsAsCut:
    """What pipelines take at least whose stages are cut by the work of their layers.

    Parameters
    ----------
    estimates
        Cuts the network, and knows what messages and exchanges take.
    """

    def __init__(self, estimates: Estimates) -> None:
        self.estimates, self.setting, self.cuts = estimates, estimates.setting, estimates.cuts
        self.reads = read_layers(self.setting.graph)
        self.known: dict[tuple[object, ...], Floats] = {}
        self.waits: dict[tuple[object, ...], Waits] = {}
        self.travels: dict[tuple[object, ...], tuple[Floats, Floats, Floats]] = {}

    def of(self, choice: Choice, kept: MicroBatch) -> float:
        """What no step of a choice takes less than, 0 where its stages are of blocks. [s]

        Parameters
        ----------
        choice
            The choice.
        kept
            Its micro-batch of which nothing is computed again.
        """
        if choice.pp == 1 or self.cuts.first:
            return 0.0
        alike = (choice.split, choice.samples, choice.zero > 2, choice.parts, choice.schedule)
        if alike not in self.waits:
            self.waits[alike] = self._waits(choice, kept)
        waits = self.waits[alike]
        key = (*alike, choice.pp, choice.micro_batches)
        if key not in self.known:
            self.known[key] = self._through(choice, waits, kept)
        ends = self.known[key] + self._tails(choice, waits, kept)
        if choice.chunks == 1:
            ends = np.maximum(ends, self._exchanged(choice, waits, kept))
        found = float(ends.max())
        waiting = choice.micro_batches * kept.total_computed / choice.pp
        return found + waiting_time(waiting, self.setting.gpus)

    def _waits(self, choice: Choice, kept: MicroBatch) -> Waits:
        """What its stages wait for each other, however many micro-batches there are."""
        backward = kept.computed - kept.forward_computed
        if choice.fills_bubbles:
            backward = backward - kept.apart
        starts = self.cuts.starts(choice.parts, work=kept.balance)
        stage = np.searchsorted(starts, np.arange(len(self.reads)), side="right") - 1
        group, between = stage % choice.pp, self.estimates.exchanges.between
        edges = ((one, other) for other, sources in enumerate(self.reads) for one in sources)
        messages = {
            (one, other): between(choice.pp, group[one], group[other], float(kept.sent[one]))
            for one, other in edges
            if group[one] != group[other]
        }
        return Waits(self.reads, starts, kept.forward_computed, backward, messages)

    def _through(self, choice: Choice, waits: Waits, kept: MicroBatch) -> Floats:
        """When the last pass of each group that others wait for ends at the earliest. [s]

        A group of devices works on all micro-batches. It waits for the first one to come, and where
        it has one stage, for that to come back, as far as other forward passes leave it time. With
        all that it may have under way, it begins another one when the first of them is back. Where
        passes of weights run by themselves, some are left.
        """
        count, filled = choice.micro_batches, choice.fills_bubbles
        least = _of_groups(choice, waits, kept.least_spent(filled=filled))
        through: Floats = count * least + waits.ahead[: choice.pp]
        if choice.chunks > 1:
            return through
        groups = np.arange(choice.pp)
        forward = _of_groups(choice, waits, kept.forward_computed)
        apart = _of_groups(choice, waits, kept.apart) * filled
        backward = _of_groups(choice, waits, kept.computed) - forward - apart
        flying, left = choice.flying, np.minimum(groups + 1, count)
        through += np.maximum(waits.beyond - (flying - 1) * forward, 0.0) - left * apart
        rounds = -(-count // flying)
        after = (rounds - 1) * flying  # micro-batches before the last one that is waited for
        turns = waits.ahead + rounds * (forward + waits.beyond + backward)
        turns += (count - 1 - after) * backward
        # one of weights that is due comes before another forward pass
        due = rounds - 1 - np.minimum(-(-groups // flying), rounds - 1)
        turns += (due + np.maximum(count - np.maximum(after - groups, 0) - left, 0)) * apart
        found: Floats = np.maximum(through, turns)
        return found

    def _tails(self, choice: Choice, waits: Waits, kept: MicroBatch) -> Floats:
        """What follows in each group at least: passes before it, gradients, and the update. [s]

        Gradients of its weights travel when its last pass that makes any has begun.
        """
        travels, _, after = self._travels(choice, waits, kept)
        last = _of_groups(choice, waits, kept.computed - kept.forward_computed)
        if choice.chunks > 1:
            # all forward passes come before, and all but so many backward passes
            late: Floats = np.maximum(travels - choice.pp * last, 0.0) + after
            return late
        apart = _of_groups(choice, waits, kept.apart)
        last = apart if choice.fills_bubbles else last
        left = np.minimum(np.arange(choice.pp) + 1, choice.micro_batches) * choice.fills_bubbles
        later = np.maximum(left * apart, left * apart - last + travels) + after
        found: Floats = np.maximum(waits.back, later)
        return found

    def _exchanged(self, choice: Choice, waits: Waits, kept: MicroBatch) -> Floats:
        """When each group is through at the earliest where exchanges take the longest. [s]

        Those of one kind travel one after the other, after every micro-batch.
        """
        travels, gathered, after = self._travels(choice, waits, kept)
        each = self.estimates.exchanges.gradients(choice.zero).each_micro_batch
        reduced = waits.beyond + (choice.micro_batches if each else 1) * travels
        taken = np.maximum(reduced, 2.0 * choice.micro_batches * gathered)
        found: Floats = waits.ahead + taken + after
        return found

    def _travels(
        self, choice: Choice, waits: Waits, kept: MicroBatch
    ) -> tuple[Floats, Floats, Floats]:
        """Reductions of the gradients of each group after a micro-batch, its gathers before a pass,
        and its update with what follows. [s]
        """
        key = (id(waits), choice.pp, choice.zero, choice.shard_size, choice.offload)
        if key not in self.travels:
            stages = waits.stage % choice.pp
            masks = [stages == stage for stage in range(choice.pp)]
            travels, gathered, after = (
                np.array([exchange(self.estimates, choice, kept, mask) for mask in masks])
                for exchange in (reductions, gathers, gathered_after)
            )
            updates = updates_by_layer(self.estimates, choice, kept)
            after = after + _of_groups(choice, waits, updates)
            self.travels[key] = travels, gathered, after
        return self.travels[key]


def _of_groups(choice: Choice, waits: Waits, rows: Floats) -> Floats:
    """Sums over all stages of each group of devices.

    Parameters
    ----------
    choice, waits
        The choice, and its stages.
    rows
        Of each layer.
    """
    sums: Floats = np.add.reduceat(rows, waits.starts).reshape(-1, choice.pp).sum(axis=0)
    return sums
