"""What the passes of the stages of one cut cost: sums of layers, and gathers beside them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.gathers import Around, BesideUnits, Travel, passes_beside, slowed_beside
from planner.joint.micro_batch import MicroBatch
from planner.joint.stage_weights import StageWeights
from planner.joint.units import Units
from planner.simulation.run import OVERLAP_FACTOR

Floats = NDArray[np.float64]


class StageCosts(Struct, frozen=True, kw_only=True, eq=False):
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
    awaited
        What passes of weights wait for where they do not run by themselves. [s]
    passing
        What a pass of each stage holds on top of what it leaves, with weights that are gathered.
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
    awaited: Floats
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
        if choice.fills_bubbles:
            # what later layers leave for their passes of weights is there beside what earlier ones
            # keep for their backward passes
            left = inside.waiting.cumsum()
            sizes = np.diff([*starts, len(left)])
            held = held + np.repeat(left[[*ends, -1]], sizes) - left
        most = np.maximum.reduceat(held, starts)
        passing = (most - before[[*starts[1:], -1]]).reshape(shape)
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
            awaited=rows[7],
            waiting=rows[8],
            passing=passing.clip(min=0.0),
            weights=weights,
            sends=weights.exchanges.sends(choice.pp, tuple(inside.sent[ends].tolist())),
        )

    def with_gathers(self, choice: Choice) -> tuple[Floats, Floats, Around]:
        """Both passes of each stage where weights are gathered, and what is around them. [s]"""
        both = self._beside(choice)
        launched = (self.launched_forward, self.launched - self.launched_forward)
        took, lead = [], []
        for beside, least in zip(both, launched, strict=True):
            seconds = self._of_units(beside.took)
            took.append(np.maximum(seconds, least))
            lead.append(took[-1] - np.maximum(seconds - self._of_units(beside.lead), least))
        forward, backward = took
        late = [self._of_units(beside.late) for beside in both]
        gathers, _, sums = self.weights.by_unit(choice)
        none, behind = np.zeros_like(forward), np.zeros(choice.pp)
        if self.weights.exchanges.gradients(choice.zero).by_unit:
            many = choice.micro_batches > 1
            longer = late if many else (0.0, -self._of_units(both[1].opening))
            ends = forward + longer[0], backward + longer[1]
            behind = self.gradients_behind(choice, *ends)
            room = ends[1] + ends[0] * many
            hidden = np.minimum(self.of_stages(sums.time), room)
            backward = backward + OVERLAP_FACTOR * hidden.clip(min=0.0)
        first = self.weights.runs(choice).opens * gathers.time[self.units.firsts]
        around = Around(
            lead=(lead[0], lead[1], none),
            late=(late[0], late[1], none),
            opening=self._of_units(first)[0],
            behind=behind,
        )
        return forward, backward, around

    def gradients_behind(self, choice: Choice, forward: Floats, backward: Floats) -> Floats:
        """What gradients of each group take behind its last pass, as others leave no room. [s]

        They wait for no pass, and no pass for them: only for links, and in turn.

        Parameters
        ----------
        choice
            The choice.
        forward, backward
            What passes of each stage take on one micro-batch. [s]
        """
        if not self.weights.exchanges.gradients(choice.zero).by_unit:
            return np.zeros(choice.pp)
        gathers, scatters, sums = self.weights.by_unit(choice)
        many = choice.micro_batches > 1
        times, room = 1.0 + many, backward + forward * many
        busy = times * gathers.busy + scatters.busy + sums.busy
        needed = [self.of_stages(one) - room for one in (scatters.time + sums.time, *busy)]
        behind = choice.micro_batches * np.maximum.reduce(needed)
        late = (behind - self.weights.reductions(choice)[1]).clip(min=0.0)
        return np.asarray(late.sum(axis=0))

    def of_stages(self, values: Floats) -> Floats:
        """What values of all layers are for each stage."""
        return np.add.reduceat(values, self.starts).reshape(self.forward.shape)

    def _of_units(self, values: Floats) -> Floats:
        """What values of all units are for each stage."""
        return self.of_stages(self._at_firsts(values))

    def _at_firsts(self, values: Floats) -> Floats:
        """What values of all units are for layers: at the first one of each."""
        found = np.zeros(self.units.num_layers)
        found[self.units.firsts] = values
        return found

    def with_gathers_by_unit(self, choice: Choice) -> tuple[Floats, Floats]:
        """Both passes of each unit, at its first layer, beside its own weights and gradients. [s]

        Where weights come from the host, and gradients go there, none of them comes early.
        """
        gathers, scatters = self._travels(choice)
        forward, backward = map(self.units.at_firsts, (self.inside.forward, self.inside.backward))
        # gradients of the first unit of a stage still travel beside the forward pass that follows
        opens = self._at_firsts(self.weights.runs(choice).opens.astype(np.float64))
        behind = scatters.times(opens * (1.0 - 1.0 / choice.micro_batches))
        moved = gathers.time + scatters.time
        return (
            slowed_beside(forward, gathers.beside(behind), gathers.time),
            slowed_beside(backward, moved, moved),
        )

    def _travels(self, choice: Choice) -> tuple[Travel, Travel]:
        """Gathers of each unit, and its gradients where they travel unit by unit."""
        gathers, scatters, _ = self.weights.by_unit(choice)
        by_unit = self.weights.exchanges.gradients(choice.zero).by_unit
        return gathers, scatters if by_unit else scatters.times(np.zeros(1))

    def _beside(self, choice: Choice) -> tuple[BesideUnits, BesideUnits]:
        """Both passes of each unit where weights are gathered."""
        gathers, scatters = self._travels(choice)
        firsts, work = self.units.firsts, (self.inside.forward, self.inside.backward)
        return passes_beside(
            self.weights.runs(choice),
            (self.units.sums(work[0]), self.units.sums(work[1])),
            gathers.at(firsts),
            scatters.at(firsts),
            choice.micro_batches,
        )
