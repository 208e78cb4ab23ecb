"""One GPU: its memory, rates and the cost of a kernel. All devices of a cluster are alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec import Struct, structs

from costmodels.cluster.ranges import require_plausible
from costmodels.errors import (
    InputError,
    printable,
    require_name,
    require_not_negative,
    require_positive,
)
from costmodels.units import format_bytes

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")


class Device(Struct, frozen=True, kw_only=True):
    """One GPU.

    Attributes
    ----------
    name
        Name of the device.
    memory
        Memory that a process can see. [B]
    reserved_memory
        Part of it that is gone before the first tensor: CUDA context, framework, buffers of the
        communication library. [B]
    peak_flops
        Peak rate of every precision that the device has. [FLOP/s]
    memory_bandwidth
        Nominal bandwidth of the device memory. [B/s]
    num_sms
        Streaming multiprocessors.
    kernel_latency
        Fixed cost of one kernel, however small its work. [s]
    sustained
        Share of the rates that its tensor cores reach in a short test which they hold through the
        steps of a transformer, whose products keep them busy: what the limit on power leaves.
    source
        Where the figures are from.
    """

    name: str
    memory: float
    reserved_memory: float
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    num_sms: int
    kernel_latency: float
    sustained: float = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        require_name("the name of a device", self.name)
        label = f"device {self.name}"
        require_positive(f"{label}: memory", self.memory, "B")
        require_positive(f"{label}: memory_bandwidth", self.memory_bandwidth, "B/s")
        require_positive(f"{label}: num_sms", self.num_sms)
        require_not_negative(f"{label}: kernel_latency", self.kernel_latency, "s")
        require_not_negative(f"{label}: reserved_memory", self.reserved_memory, "B")
        if self.reserved_memory >= self.memory:
            raise InputError.rule(
                f"{label}: reserved_memory",
                f"be less than memory ({format_bytes(self.memory)})",
                format_bytes(self.reserved_memory),
                "lower it",
            )
        if not self.peak_flops:
            raise InputError(
                f"{label}: peak_flops must name a precision but names none; give at least one of "
                f"{', '.join(PRECISIONS)}"
            )
        for precision, rate in self.peak_flops.items():
            if precision not in PRECISIONS:
                raise InputError(
                    f"{label}: peak_flops must name known precisions but names '{precision}'; "
                    f"use {', '.join(PRECISIONS)}"
                )
            require_positive(f"{label}: peak_flops.{precision}", rate, "FLOP/s")
            require_plausible(label, f"peak_flops.{precision}", rate)
        for field in (
            *("memory", "reserved_memory", "memory_bandwidth", "num_sms", "kernel_latency"),
            "sustained",
        ):
            require_plausible(label, field, getattr(self, field))
        structs.force_setattr(self, "source", printable(self.source))
        # A mapping that the caller keeps could otherwise change under a frozen object.
        structs.force_setattr(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))

    def __reduce__(self) -> tuple[Any, ...]:
        # a proxy of a mapping can be neither copied nor sent to another process
        fields = structs.asdict(self) | {"peak_flops": dict(self.peak_flops)}
        return partial(type(self), **fields), ()

    @property
    def usable_memory(self) -> float:
        """Memory left for tensors. [B]"""
        return self.memory - self.reserved_memory
