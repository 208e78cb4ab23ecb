"""How far off estimates were of what was simulated, and what is expected of others by that."""

from __future__ import annotations

import math

from msgspec import Struct, field

from planner.joint.estimate import Estimate
from planner.joint.misfits import Misfits
from planner.planning.staged import StagedStep


class Misjudged(Struct, kw_only=True, eq=False):
    """Errors of estimates.

    Parameters
    ----------
    misfits
        What was told not to fit before it was simulated.
    off
        Of the seconds, the least of each way to lay layers on devices, with the stages of a device
        and without. [times]
    above
        By how much those of memory were above what a device holds, the most. [times]
    below
        By how much they were below it, the least of each such way. [times]
    """

    misfits: Misfits
    off: dict[tuple[object, ...], float] = field(default_factory=dict)
    above: float = 1.0
    below: dict[tuple[object, ...], float] = field(default_factory=dict)

    def learn(self, one: Estimate, found: StagedStep | None) -> None:
        """Compare an estimate with its simulation, None of what does not fit."""
        if found is not None:
            layout, off = _stages(one), found.seconds / one.seconds
            for alike in (layout, one.choice.layout):
                self.off[alike] = min(self.off.get(alike, math.inf), off)
            self.above = max(self.above, one.memory / found.peak_memory)
            short = found.peak_memory / one.memory
            self.below[layout] = min(self.below.get(layout, math.inf), short)
        elif one.choice in self.misfits.short:
            self.above = max(self.above, one.memory / self.misfits.held(one.choice))

    def expected(self, one: Estimate) -> float:
        """An estimate as far off as those of the same layout were. [s]

        Where these had other numbers of stages it may be as much faster, and half as much slower.
        """
        alike = self.off.get(one.choice.layout, 1.0)
        return one.seconds * self.off.get(_stages(one), min(alike, math.sqrt(alike)))

    def least(self, one: Estimate) -> float:
        """An estimate, or less of it where those alike were faster than they were estimated. [s]"""
        return min(one.seconds, self.expected(one))

    def memory(self, one: Estimate) -> float:
        """What it holds, where those of the same layout hold more than was estimated. [B]"""
        return one.memory * max(self.below.get(_stages(one), 1.0), 1.0)


def _stages(one: Estimate) -> tuple[object, ...]:
    """How layers lie on devices, with the stages that each of them has."""
    return *one.choice.layout, one.choice.chunks
