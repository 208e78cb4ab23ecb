"""Numbers that multiply computation: a device's kernels, and the launches of its host."""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

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

    def time(self, work: Work, *, fp8: bool = False) -> tuple[Any, Any]:
        """Time of each candidate, and the `Source` of each time. [s]"""
        seconds, source = self._inner.time(work, fp8=fp8)
        return seconds * self._factor, source


def calibrated_machine(machine: Machine, kernels: float, launches: float = 1.0) -> Machine:
    """A machine whose kernels take a factor longer, and whose host takes one to launch them.

    Whose kernels are slow has no slow host: where one process launches for several devices, its
    launches add up while their kernels run at once.
    """
    if kernels == launches == 1.0:
        return machine
    training = replace(machine.training, launch_time=machine.training.launch_time * launches)
    compute = CalibratedCompute(machine.compute, kernels)
    return replace(machine, compute=compute, training=training)
