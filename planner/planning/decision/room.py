"""What assignments hold at their peak, many at once: which of them fit, near one that is known."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.planning.decision.simulator import SimulatedChoices
from planner.planning.memory.by_moment import memory_by_moment
from planner.planning.memory.rows import MemoryRows
from planner.planning.space.formulate import Formulation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Room(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """The memory of a device, and what assignments hold of it.

    Parameters
    ----------
    formulation
        The network on the machine.
    """

    formulation: Formulation

    @cached_property
    def rows(self) -> MemoryRows:
        """What is held at each moment, as a sum of what layers and edges hold."""
        return memory_by_moment(self.formulation)

    def off(self, trial: SimulatedChoices) -> float:
        """What an assignment holds beyond that sum as it was simulated. [B]"""
        return trial.peak_memory - float(self._sums(np.array([trial.choices]))[0])

    def beyond(self, choices: Ints, off: float) -> Floats:
        """What is held beyond what there is, by which sums are off as much; (assignments,). [B]

        Parameters
        ----------
        choices
            Candidate of each layer; (assignments, layers).
        off
            As of one that is like them. [B]
        """
        lacking: Floats = self._sums(choices) + (off - self.formulation.cluster.device.memory)
        return lacking

    def _sums(self, choices: Ints) -> Floats:
        most: Floats = self.rows.held(choices).max(axis=1)
        return most
