"""How far off estimates were of what was simulated, and what is expected of others by that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from planner.joint.estimate import Estimate
from planner.joint.misfits import Misfits
from planner.planning.staged import StagedStep


@dataclass(slots=True, kw_only=True, eq=False)
class Misjudged:
    """Errors of estimates.

    Parameters
    ----------
    misfits
        What was told not to fit before it was simulated.
    off
        Of the seconds, the least of each way to lay layers on devices. [times]
    above
        By how much those of memory were above what a device holds, the most. [times]
    """

    misfits: Misfits
    off: dict[tuple[object, ...], float] = field(default_factory=dict)
    above: float = 1.0

    def learn(self, one: Estimate, found: StagedStep | None) -> None:
        """Compare an estimate with its simulation, None of what does not fit."""
        if found is not None:
            layout, off = one.choice.layout, found.seconds / one.seconds
            self.off[layout] = min(self.off.get(layout, math.inf), off)
            self.above = max(self.above, one.memory / found.peak_memory)
        elif one.choice in self.misfits.short:
            self.above = max(self.above, one.memory / self.misfits.held(one.choice))

    def expected(self, one: Estimate) -> float:
        """An estimate as far off as those of the same layout were. [s]"""
        return one.seconds * self.off.get(one.choice.layout, 1.0)
