"""What a closed form says of a step: every part, added up."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

CAUSES = ("gradient", "halo", "reduction", "stage")


class ClosedForm(Struct, frozen=True, kw_only=True):
    """Time of a step by a closed form.

    Parameters
    ----------
    strategy
        What the plan was recognised as.
    forward, backward, update
        Computation of the passes. [s]
    communication
        By cause, keys as in `CAUSES`: gradients; halos; activations and their gradients gathered
        or summed within a layer; what a pipeline stage sends to the next. [s]
    sources
        Time of computation by where its estimate comes from, undivided: only its shares say
        something. [s]
    """

    strategy: str
    forward: float
    backward: float
    update: float
    communication: Mapping[str, float]
    sources: Mapping[str, float]

    @property
    def total(self) -> float:
        """The whole step: closed forms hide nothing. [s]"""
        return self.forward + self.backward + self.update + sum(self.communication.values())
