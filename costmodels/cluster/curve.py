"""Measured time of a collective by its bytes: a piecewise linear, concave function.

The time of m bytes is `start + slope * m + sum(rate * min(m, knot))`, which grows ever slower, as
the bounds of the planner ask of every collective (see `costmodels.communication.collectives`).
"""

from __future__ import annotations

import math

from msgspec import Struct

from costmodels.errors import InputError

CURVED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""What curves are measured of; those of send_recv are exchanges of two devices."""


class CollectiveCurve(Struct, frozen=True, kw_only=True):
    """How long a collective of some devices takes.

    Parameters
    ----------
    collective
        One of `CURVED`.
    hosts, gpus
        What it is between: devices of so many hosts, the same number of each. [items]
    start, slope
        Time of no bytes, and of a further byte of the largest messages. [s], [s/B]
    knots, rates
        Sizes up to which a byte costs more, and by how much. [B], [s/B]
    """

    collective: str
    hosts: int
    gpus: int
    start: float
    slope: float
    knots: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        label = f"the curve of {self.collective}"
        if self.collective not in CURVED:
            raise InputError.rule(
                "the collective of a curve",
                f"be one of {', '.join(CURVED)}",
                self.collective,
                "correct or remove it",
            )
        if self.hosts < 1 or self.gpus < 2 or self.gpus % self.hosts:
            raise InputError.rule(
                label,
                "be of at least 2 GPUs, as many of every host",
                f"{self.gpus} on {self.hosts}",
                "correct or remove it",
            )
        if len(self.knots) != len(self.rates):
            raise InputError.rule(
                label,
                "have a rate for each knot",
                f"{len(self.rates)} for {len(self.knots)}",
                "correct or remove it",
            )
        for value in (self.start, self.slope, *self.knots, *self.rates):
            if not (math.isfinite(value) and value >= 0):
                raise InputError.rule(
                    label, "have finite figures of at least 0", value, "correct or remove it"
                )
