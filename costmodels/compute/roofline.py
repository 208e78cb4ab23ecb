"""The roofline: what a pass costs where nothing was measured or fitted.

Seconds are the kernel latency plus the larger of arithmetic at a fraction of the peak and traffic
at a fraction of the memory bandwidth (Williams et al. 2009, "Roofline: an insightful visual
performance model"). The two fractions are round figures for well-shaped kernels; how far a small
or odd local piece falls below them is what the fitted surfaces know and the roofline does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodels.compute.work import Work

FloatArray = NDArray[np.float64]

PEAK_FRACTION: Final = 0.5
BANDWIDTH_FRACTION: Final = 0.7


class DeviceLike(Protocol):
    """What the compute models need to know of a device; `Device` of the cluster has it."""

    @property
    def name(self) -> str:
        """Name of the device."""
        ...

    @property
    def peak_flops(self) -> Mapping[str, float]:
        """Peak rate of every precision. [FLOP/s]"""
        ...

    @property
    def memory_bandwidth(self) -> float:
        """Nominal bandwidth of the memory. [B/s]"""
        ...

    @property
    def num_sms(self) -> int:
        """Streaming multiprocessors. [items]"""
        ...

    @property
    def kernel_latency(self) -> float:
        """Fixed cost of one kernel. [s]"""
        ...


def roofline_time(work: Work, device: DeviceLike, precision: str) -> FloatArray:
    """Time of one pass by the roofline. [s]

    Parameters
    ----------
    work
        Local work of the candidates.
    device
        Device that runs it.
    precision
        Key of the device's `peak_flops`.
    """
    compute = work.flops / (PEAK_FRACTION * device.peak_flops[precision])
    memory = work.bytes_moved(precision) / (BANDWIDTH_FRACTION * device.memory_bandwidth)
    return device.kernel_latency + np.maximum(compute, memory)
