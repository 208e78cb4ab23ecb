"""What pipelines take at least whose stages are cut in one way, between any two layers.

Layers of a stage may work beside those of another one. What a stage waits for is found by laying
out one micro-batch: a layer begins when those are through that it reads, and the one before it on
its stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from costmodels.graph import Graph
from planner.joint.choices import Choice
from planner.joint.cuts import Cuts
from planner.joint.micro_batch import MicroBatch
from planner.request.setting import Setting
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

    Attributes
    ----------
    ahead, beyond, back
        Of each stage: until it begins; from the end of its forward pass until its backward pass can
        begin; and from the end of that until all stages are through. [s]
    """

    def __init__(
        self, reads: list[list[int]], starts: Sequence[int], forward: Floats, backward: Floats
    ) -> None:
        self.reads, self.starts = reads, starts
        self.stage = np.searchsorted(starts, np.arange(len(reads)), side="right") - 1
        stages = np.arange(len(starts))
        begins, _ = self._forward(forward[:, None])
        self.ahead = begins[list(starts), 0]
        later = self.stage[:, None] > stages
        _, ends = self._forward(forward[:, None] * later)
        begins, _ = self._backward(backward[:, None] * later, ends)
        last = [*(start - 1 for start in starts[1:]), len(reads) - 1]
        self.beyond = begins[last, stages]
        earlier = self.stage[:, None] < stages
        _, ends = self._backward(backward[:, None] * earlier, np.zeros((len(reads), len(starts))))
        self.back = ends.max(axis=0)

    def _forward(self, times: Floats) -> tuple[Floats, Floats]:
        """When the forward pass of each layer begins and ends. [s]"""
        begins, ends = np.zeros_like(times), np.zeros_like(times)
        first = set(self.starts)
        for number, sources in enumerate(self.reads):
            rows = sources if number in first else [number - 1, *sources]
            if rows:
                begins[number] = ends[rows].max(axis=0)
            ends[number] = begins[number] + times[number]
        return begins, ends

    def _backward(self, times: Floats, ready: Floats) -> tuple[Floats, Floats]:
        """When the backward pass of each layer begins and ends.

        Parameters
        ----------
        times, ready
            How long it takes, and when the forward pass is through. [s]
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
                np.maximum(begins[place], ends[number], out=begins[place])
        return begins, ends


class BoundsAsCut:
    """What pipelines take at least whose stages are cut by the work of their layers.

    Parameters
    ----------
    setting
        The question.
    cuts
        Cuts its network.
    """

    def __init__(self, setting: Setting, cuts: Cuts) -> None:
        self.setting, self.cuts = setting, cuts
        self.reads = read_layers(setting.graph)
        self.known: dict[tuple[object, ...], float] = {}
        self.waits: dict[tuple[object, ...], Waits] = {}

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
        filled = choice.fills_bubbles
        alike = (choice.split, choice.samples, choice.zero > 2, choice.parts, filled)
        key = (*alike, choice.pp, choice.micro_batches)
        if key not in self.known:
            if alike not in self.waits:
                self.waits[alike] = self._waits(choice, kept)
            waiting = choice.micro_batches * kept.total_computed / choice.pp
            self.known[key] = self._least(choice, self.waits[alike], kept) + waiting_time(
                waiting, self.setting.gpus
            )
        return self.known[key]

    def _waits(self, choice: Choice, kept: MicroBatch) -> Waits:
        """What its stages wait for each other, however many micro-batches there are."""
        backward = kept.computed - kept.forward_computed
        if choice.fills_bubbles:
            backward = backward - kept.apart
        starts = self.cuts.starts(choice.parts, work=kept.balance)
        return Waits(self.reads, starts, kept.forward_computed, backward)

    def _least(self, choice: Choice, waits: Waits, kept: MicroBatch) -> float:
        """What no pipeline takes less than, without waiting for slower devices. [s]

        A group of devices works on all micro-batches. It waits for the first one to come; where it
        has one stage, for that to come back, as far as other forward passes leave it time; and in
        the end for the groups before it, whose last backward passes follow its own. Passes of
        weights that run by themselves fill that.
        """
        pp, count = choice.pp, choice.micro_batches

        def of_groups(rows: Floats) -> Floats:
            """Sums of all stages of each group."""
            sums: Floats = np.add.reduceat(rows, waits.starts).reshape(-1, pp).sum(axis=0)
            return sums

        groups = np.arange(pp)
        least = kept.least_spent(filled=choice.fills_bubbles)
        steps = count * of_groups(least) + waits.ahead[:pp]
        if choice.chunks == 1:
            flying, left = np.minimum(pp - groups, count), np.minimum(groups + 1, count)
            apart = left * of_groups(kept.apart) if choice.fills_bubbles else 0.0
            again = (flying - 1) * of_groups(kept.forward_computed)
            steps += np.maximum(waits.beyond - again, 0.0) + np.maximum(waits.back - apart, 0.0)
        return float(steps.max())
