"""What a step, or a part of it, is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPUTATION = ("compute", "update", "slowdown")
COMMUNICATION = ("halo", "reduction", "shuffle", "parameter", "gradient", "host")
# What a step is made of; they sum to it.
CAUSES = (*COMPUTATION, *COMMUNICATION, "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A step of a role by cause.

    Parameters
    ----------
    causes
        The step by `CAUSES`, of communication what is exposed. [s]
    hidden
        Communication that nothing waits for, by `COMMUNICATION`. [s]
    layers
        By layer what of it is the layer's: "forward" and "backward" computation when nothing slows
        it down, and exposed "halo", "reduction" and "shuffle". [s]
    """

    causes: Mapping[str, float]
    hidden: Mapping[str, float]
    layers: Mapping[str, Mapping[str, float]]
