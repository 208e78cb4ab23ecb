"""Seconds of the local piece of every layer: measured where possible, modelled elsewhere.

For each candidate the best answer available is taken, in this order: a measured table's exact
entry, a fitted efficiency surface of this device, a surface transferred from measurements of
something akin, the roofline. Where there are tables, what they did not measure is corrected by what
they did (see `measured`). Every answer says which it was.

Attention for which there is no surface takes the time of the products that it is made of.

Memory-bound operations take their traffic (`Work.bytes_moved`) at a fitted share of the memory
bandwidth, plus the latency of a kernel. A piece without any output takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from enum import IntEnum
from functools import cached_property

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.cluster import HostGroup, list_devices, load_device
from costmodels.compute.attention import fitted_time, kernel_rate
from costmodels.compute.coefficients import Fit, family_of, find_fit, load_family
from costmodels.compute.measured import Measured
from costmodels.compute.roofline import (
    BANDWIDTH_FRACTION,
    PEAK_FRACTION,
    DeviceLike,
    roofline_time,
)
from costmodels.compute.surface import Surface
from costmodels.compute.table import CostTable
from costmodels.compute.work import (
    ELEMENT_SIZE,
    MULTIPLYING_OPERATIONS,
    TRAFFIC,
    Work,
    directions_of,
)
from costmodels.errors import InputError

FloatArray = NDArray[np.float64]
SourceArray = NDArray[np.int8]


class TimeSource(IntEnum):
    """Where a time comes from, from the most to the least trustworthy."""

    TABLE = 0
    INTERPOLATED = 1
    SURFACE = 2
    DERIVED_SURFACE = 3
    ROOFLINE = 4


class _Powered:
    """A device at the rates that its limit on power leaves."""

    def __init__(self, device: DeviceLike, peak_flops: Mapping[str, float]) -> None:
        self.name = device.name
        self.peak_flops = peak_flops
        self.memory_bandwidth = device.memory_bandwidth
        self.num_sms = device.num_sms
        self.kernel_latency = device.kernel_latency


class ComputeModel:
    """Time of local work on one device at one precision.

    Parameters
    ----------
    device
        Device that computes.
    precision
        `fp32`, `tf32`, `fp16`, `bf16`, or `fp8`, in which products of weights run where it is asked
        for; all else then runs in `bf16`.
    tables
        Tables measured on this device, most trusted first.
    family
        Family whose fitted surfaces to use where the device's name does not tell; everything is
        then marked as derived.
    winograd
        False for a framework that does not let its library use Winograd's algorithm, such as one
        that grants it too little workspace.
    attention_kernel
        One of `ATTENTION_KERNELS`, None for the one that was measured.
    sustained
        Share of the rates of products, and of attention, that a limit on power leaves.
    """

    def __init__(
        self,
        device: DeviceLike,
        precision: str,
        *,
        tables: tuple[CostTable, ...] = (),
        family: str | None = None,
        winograd: bool = True,
        attention_kernel: str | None = None,
        sustained: float = 1.0,
    ) -> None:
        if precision == "fp8" and not {"fp8", "bf16"} <= set(device.peak_flops):
            able = [name for name in list_devices() if "fp8" in load_device(name).peak_flops]
            raise InputError.rule(
                "the device",
                f"compute in fp8, as {', '.join(able)} do,",
                device.name,
                "choose bf16",
            )
        if precision not in device.peak_flops:
            raise InputError(
                f"device {device.name} has peak FLOP/s for {', '.join(device.peak_flops)}, not "
                f"for {precision!r}; choose one of these precisions"
            )
        self.device = device
        self.precision = precision
        # of all that is not asked for in FP8
        self.usual = "bf16" if precision == "fp8" else precision
        self.tables = tables
        self.winograd = winograd
        self.attention_kernel = attention_kernel
        rates = {name: rate * sustained for name, rate in device.peak_flops.items()}
        self._powered = _Powered(device, rates) if sustained < 1.0 else device
        own = family_of(device.name)
        self._foreign = family is not None and family != own
        self._family = family or own
        if family is not None:
            load_family(family)
        self._fits: dict[tuple[str, str, str], Fit | None] = {}
        self._deviation: float | None = 0.0
        self._slips = True

    def under(self, groups: tuple[HostGroup, ...]) -> ComputeModel:
        """The model of the devices of some groups of hosts: itself, where there is one kind."""
        return self

    @property
    def arithmetic(self) -> str:
        """The precision of products outside of FP8."""
        return self._arithmetic(self.usual)

    def _arithmetic(self, precision: str) -> str:
        """The precision of products: single where the device only stores numbers in a shorter one.

        Such a device is no faster in it than in single precision, and libraries compute in that.
        """
        rates = self.device.peak_flops
        stored = ELEMENT_SIZE[precision] < ELEMENT_SIZE["fp32"]
        slow = rates[precision] <= rates.get("fp32", 0.0)
        return "fp32" if stored and slow else precision

    @cached_property
    def measured(self) -> Measured | None:
        """What the tables say at this precision, None without any."""
        if not self.tables:
            return None
        return Measured(self.tables, self.usual, lambda work: self._modelled(work, self.usual)[0])

    def doubted(self, deviation: float | None = 0.0, *, slips: bool = True) -> ComputeModel:
        """The model where what the tables say is taken otherwise.

        Parameters
        ----------
        deviation
            By how many of the spreads of the measurements unmeasured shapes are slower than
            expected; None where they are as modelled, whatever was measured.
        slips
            Whether rows that are far off what akin ones say are taken for their own shapes.
        """
        other = copy(self)
        other._deviation, other._slips = deviation, slips
        return other

    def time(self, work: Work, *, fp8: bool = False) -> tuple[FloatArray, SourceArray]:
        """Time of each candidate, and the `TimeSource` of each time. [s]

        Parameters
        ----------
        work
            Local work of the candidates.
        fp8
            Whether it is a product in FP8, which no table measures.
        """
        seconds, source = self._modelled(work, "fp8" if fp8 else self.usual)
        seconds = np.atleast_1d(seconds)
        sources = np.full(seconds.shape, source, dtype=np.int8)
        if self.measured is not None and not fp8:
            seconds, exact, near = self.measured.times(
                work, seconds, deviation=self._deviation, slips=self._slips
            )
            sources[near] = TimeSource.INTERPOLATED
            sources[exact] = TimeSource.TABLE
        outputs = np.broadcast_to(work.outputs, seconds.shape)
        if not outputs.all():
            seconds = np.where(outputs > 0, seconds, 0.0)
        return seconds, sources

    def describe(self) -> dict[str, str]:
        """Provenance of every kind of answer this model can give, by "operation direction"."""
        text = {f"table {i}": table.describe() for i, table in enumerate(self.tables, start=1)}
        keys = [(name, way) for name in MULTIPLYING_OPERATIONS for way in directions_of(name)]
        for operation, direction in sorted(keys + list(TRAFFIC)):
            fit = self._fit(operation, direction, self.usual)
            if fit is None and operation == "attention":
                what = "products of matrices, one after the other"
            elif fit is None:
                what = (
                    f"roofline: {PEAK_FRACTION:.0%} of the peak FLOP/s, "
                    f"{BANDWIDTH_FRACTION:.0%} of the memory bandwidth"
                )
            else:
                what = f"{'derived surface' if fit.derived else 'fitted surface'}: {fit.note}"
            text[f"{operation} {direction}"] = what
        if self.precision == "fp8":
            fit = self._fit("linear", "forward", "fp8")
            assert fit is not None, "akin families stand in for all"
            what = "derived surface" if fit.derived else "fitted surface"
            text["linear in fp8"] = f"{what}: {fit.note}"
        for operation, known in self.measured.agreements().items() if self.measured else ():
            text[f"correction {operation}"] = (
                f"measured over modelled time {known.ratio:.3g}, spread {known.spread:.1%}, "
                f"{known.rows} rows"
            )
        return text

    def _fit(self, operation: str, direction: str, precision: str) -> Fit | None:
        key = (operation, direction, precision)
        if key not in self._fits:
            dense = operation in MULTIPLYING_OPERATIONS
            precision = self._arithmetic(precision) if dense else ""
            fit = find_fit(self._family, operation, direction, precision)
            if fit is not None and self._foreign:
                fit = replace(fit, derived=True)
            if fit is not None and isinstance(fit.value, Surface) and not self.winograd:
                fit = replace(fit, value=replace(fit.value, winograd=0.0))
            self._fits[key] = fit
        return self._fits[key]

    def _modelled(self, work: Work, precision: str) -> tuple[FloatArray, TimeSource]:
        fit = self._fit(work.operation, work.direction, precision)
        if fit is None and work.operation == "attention":
            parts = [self._modelled(product, precision) for product in work.products()]
            return np.sum([time for time, _ in parts], axis=0), max(how for _, how in parts)
        if fit is None:
            return roofline_time(work, self._powered, precision), TimeSource.ROOFLINE
        if isinstance(fit.value, Surface):
            seconds = fitted_time(fit.value, work, self._powered, precision)
            if work.operation == "attention" and self.attention_kernel is not None:
                rate = kernel_rate(self.attention_kernel, self._family, work.direction)
                seconds = seconds / rate
        else:
            rate = fit.value * self.device.memory_bandwidth
            seconds = self.device.kernel_latency + work.bytes_moved(precision) / rate
        return seconds, TimeSource.DERIVED_SURFACE if fit.derived else TimeSource.SURFACE
