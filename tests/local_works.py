"""Local works of a device, to be timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from costmodels.compute import Work


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The attributes of a device that the compute models rely on; V100 SXM2 by default."""

    name: str = "Tesla V100-SXM2-16GB"
    peak_flops: dict[str, float] = field(
        default_factory=lambda: {"fp32": 15.7e12, "fp16": 125e12, "bf16": 125e12, "tf32": 62e12}
    )
    memory_bandwidth: float = 900e9
    num_sms: int = 80
    kernel_latency: float = 5e-6


V100 = Gpu()


def conv(direction: str = "forward", **changed: Any) -> Work:
    values: dict[str, Any] = {
        "samples": 16,
        "channels": 64,
        "filters": 128,
        "in_extents": (56, 56),
        "out_extents": (56, 56),
        "kernel": (3, 3),
    }
    return Work(operation="conv", direction=direction, **(values | changed))


def linear(direction: str = "forward", **changed: Any) -> Work:
    values: dict[str, Any] = {"samples": 4096, "channels": 1024, "filters": 4096}
    return Work(operation="linear", direction=direction, **(values | changed))
