"""One number that multiplies computation: a device's kernels, and the launches of its host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from costmodels.cluster import Device
from costmodels.compute import ComputeModel, Work
from costmodels.step.machine import Machine


class CalibratedCompute(ComputeModel):
    """A compute model whose times are all multiplied by one factor."""

    def __init__(self, inner: ComputeModel, factor: float) -> None:
        super().__init__(inner.device, inner.precision, tables=inner.tables)
        self._inner, self._factor = inner, factor
        # fixed costs of kernels that others take from the device are computation, too
        latency = inner.device.kernel_latency * factor
        self.device = replace(cast(Device, inner.device), kernel_latency=latency)

    def time(self, work: Work) -> tuple[Any, Any]:
        """Time of each candidate, and the `Source` of each time. [s]"""
        seconds, source = self._inner.time(work)
        return seconds * self._factor, source


def calibrated_machine(machine: Machine, factor: float) -> Machine:
    """A machine whose kernels take a factor longer, and whose host to launch them.

    Who waits for launches has a slower host, who does not notices nothing of it: steps of one
    device follow the factor.
    """
    if factor == 1.0:
        return machine
    training = replace(machine.training, launch_time=machine.training.launch_time * factor)
    compute = CalibratedCompute(machine.compute, factor)
    return replace(machine, compute=compute, training=training)
