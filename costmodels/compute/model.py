"""Seconds of the local piece of every layer: measured where possible, modelled elsewhere.

For each candidate the best answer available is taken, in this order: a measured table's exact
entry, an interpolation inside that table, a fitted efficiency surface of this device, a surface
transferred from measurements of something akin, the roofline. Every answer says which it was.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from costmodels.compute.roofline import DeviceLike, roofline_time
from costmodels.compute.work import Work
from costmodels.errors import InputError


class Source(IntEnum):
    """Where a time comes from, from the most to the least trustworthy."""

    TABLE = 0
    INTERPOLATED = 1
    SURFACE = 2
    DERIVED_SURFACE = 3
    ROOFLINE = 4


class ComputeModel:
    """Time of local work on one device at one precision.

    Parameters
    ----------
    device
        Device that computes.
    precision
        `fp32`, `tf32`, `fp16` or `bf16`.
    tables
        `CostTable`s measured on this device, most trusted first.
    family
        Name of the device family whose fitted surfaces to use, where the device's name does
        not tell.
    """

    def __init__(
        self,
        device: DeviceLike,
        precision: str,
        *,
        tables: tuple[object, ...] = (),
        family: str | None = None,
    ) -> None:
        if precision not in device.peak_flops:
            raise InputError(
                f"device {device.name} has peak FLOP/s for {', '.join(device.peak_flops)}, not "
                f"for {precision!r}; choose one of these precisions"
            )
        self.device = device
        self.precision = precision
        self.tables = tables

    def time(self, work: Work) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Time of each candidate, and the `Source` of each time. [s]

        Parameters
        ----------
        work
            Local work of the candidates.
        """
        seconds = np.atleast_1d(roofline_time(work, self.device, self.precision))
        return seconds, np.full(seconds.shape, Source.ROOFLINE, dtype=np.int8)

    def describe(self) -> dict[str, str]:
        """Provenance of every kind of answer this model can give, by operation and direction."""
        return {"all": "roofline"}
