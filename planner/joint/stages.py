"""What the passes of the stages of one cut cost: sums of layers, and gathers beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.micro_batch import MicroBatch
from planner.joint.stage_weights import StageWeights
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
        What a pass of each group holds on top of what it leaves, with weights that are gathered.
        [B]
    weights
        What their weights cost.
    sends
        Messages from each stage but the last to the next one. [s]
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
    weights: StageWeights
    sends: Floats

    @classmethod
    def of(
        cls,
        choice: Choice,
        inside: MicroBatch,
        starts: tuple[int, ...],
        units: Units,
        weights: StageWeights,
    ) -> StageCosts:
        """The stages of a choice.

        Parameters
        ----------
        choice, inside
            The choice, and what a micro-batch of it costs.
        starts, units, weights
            As above.
        """
        shape = (choice.chunks, choice.pp)
        rows = np.add.reduceat(inside.passes, starts, axis=1).reshape(-1, *shape)
        ends = [start - 1 for start in starts[1:]]
        before = inside.held_before
        held = before[:-1] + inside.beside
        if choice.zero > 2:
            held = held + weights.gathered_beside()
        most = np.maximum.reduceat(held, starts)
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
            weights=weights,
            sends=weights.exchanges.sends(choice.pp, tuple(inside.sent[ends].tolist())),
        )

    def with_gathers(self, choice: Choice) -> tuple[Floats, Floats]:
        """Both passes of each stage where weights are gathered unit by unit. [s]"""
        forward, backward = map(self.of_stages, self.with_gathers_by_unit(choice))
        if choice.shard_size and self.weights.exchanges.gradients(choice.zero).by_unit:
            # sums over shards wait for no unit, only for each other
            sums = self.of_stages(self.weights.by_unit(choice)[2])
            beside = backward + (forward if choice.micro_batches > 1 else 0.0)
            hidden = np.minimum(sums, beside)
            backward = backward + sums - hidden + OVERLAP_FACTOR * hidden
        launched = self.launched - self.launched_forward
        return np.maximum(forward, self.launched_forward), np.maximum(backward, launched)

    def of_stages(self, values: Floats) -> Floats:
        """What values of all layers are for each stage."""
        return np.add.reduceat(values, self.starts).reshape(self.forward.shape)

    def with_gathers_by_unit(self, choice: Choice) -> tuple[Floats, Floats]:
        """Both passes of each unit, at its first layer, where weights are gathered. [s]

        Beside a unit travel the weights of the next one, and the gradients of the one before.
        """
        gathers, scatters, _ = self.weights.by_unit(choice)
        if not self.weights.exchanges.gradients(choice.zero).by_unit:
            scatters = np.zeros_like(scatters)
        firsts, order = self.units.firsts, self.units.order
        stage = np.searchsorted(self.starts, firsts, side="right")
        # backward, the unit before is the one behind; each forward pass but the first follows a
        # backward pass
        behind = np.zeros_like(gathers)
        same = stage[1:] == stage[:-1]
        behind[firsts[:-1]] = np.where(same, scatters[firsts[1:]], 0.0)
        before = np.zeros_like(gathers)
        opening = np.concatenate(([True], ~same))
        before[firsts] = np.where(opening, scatters[firsts], 0.0) * (
            1.0 - 1.0 / choice.micro_batches
        )
        rows = []
        for work, moved in (
            (self.inside.forward, gathers + before),
            (self.inside.backward, gathers + behind),
        ):
            unit = np.bincount(self.units.owners, weights=work[order], minlength=len(work))
            # what is gathered behind computation slows it down
            slowed = unit + OVERLAP_FACTOR * np.minimum(unit, moved)
            rows.append(np.maximum(slowed, moved))
        return rows[0], rows[1]
