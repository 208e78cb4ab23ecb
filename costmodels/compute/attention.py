"""Seconds of attention that runs as one kernel and keeps its scores on chip.

The queries of each head are cut into tiles of 128 rows; a tile goes through all keys that its
queries see (Dao 2023, "FlashAttention-2", section 3). Tiles are spread over the streaming
multiprocessors in waves, as those of a matrix product are (see `surface`), but a tile is as wide as
a head, and its keys are never split among multiprocessors: the device is busy for all of them, and
then for a part of the longest one, but at least for the longest. Every score costs the products of
the two features and its softmax, which is counted as further features.

The backward pass goes through the keys in the same way and makes 2.5 times the products where
queries and values are as wide as each other (Dao 2023, section 3.1.2). Before it a kernel sums up
output times its gradient; after it one casts the gradient of the queries, which is added up in
single precision. These move bytes only.

Assumes that tiles of scores which a mask hides are skipped, and that the mask is causal where it
hides any: the last query sees twice the keys that one sees on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodels.compute.roofline import BANDWIDTH_FRACTION, DeviceLike
from costmodels.compute.surface import Surface, smooth_maximum, surface_time
from costmodels.compute.work import ELEMENT_SIZE, Work
from costmodels.units.tables import parse_toml

FloatArray = NDArray[np.float64]

_TILE_ROWS: Final = 128.0

BACKWARD_RATE: Final = 0.63 / 0.73
"""Rate of the products of the backward pass over that of the forward pass: on A100, backward
reaches up to 63 % of the peak and forward up to 73 % (Dao 2023, section 4.1)."""

_BACKWARD_KERNELS: Final = 3.0
# Bytes that an element of the queries' gradient costs in single precision: cleared, and read.
_ACCUMULATED_BYTES: Final = 8.0


def attention_time(surface: Surface, work: Work, device: DeviceLike, precision: str) -> FloatArray:
    """Time of one pass of attention. [s]

    Parameters
    ----------
    surface
        Coefficients of the forward pass.
    work
        Local work of the candidates.
    device
        Device that runs it.
    precision
        Key of the device's `peak_flops`.
    """
    (queries,), (keys,) = work.out_extents, work.in_extents
    slots = device.num_sms * surface.blocks_per_sm
    waves = work.samples * np.ceil(queries / _TILE_ROWS) / slots
    mean, most = keys * work.visible, keys * np.minimum(1.0, 2.0 * work.visible)
    depth = np.maximum(
        waves * (mean + surface.epilogue_depth) + surface.quantisation * most,
        most + surface.epilogue_depth,
    )
    scores = (depth + surface.prologue_depth) * slots * _TILE_ROWS
    features = work.channels + work.filters
    rate = surface.efficiency * device.peak_flops[precision]
    arithmetic = 2.0 * scores * (features + surface.softmax_width) / rate
    kernels, around = surface.kernels, np.zeros(1)
    if work.direction == "backward":
        more = (3.0 * work.channels + 2.0 * work.filters) / features
        arithmetic = arithmetic * more / BACKWARD_RATE
        kernels *= _BACKWARD_KERNELS
        size = ELEMENT_SIZE[precision]
        values, gradients = (work.samples * queries * x for x in (work.filters, work.channels))
        moved = 2.0 * size * values + (_ACCUMULATED_BYTES + size) * gradients
        around = moved / (BANDWIDTH_FRACTION * device.memory_bandwidth)
    memory = work.bytes_moved(precision) / (surface.bandwidth * device.memory_bandwidth)
    seconds = smooth_maximum(arithmetic, memory, surface.sharpness) + around
    result: FloatArray = kernels * device.kernel_latency + seconds
    return result


ATTENTION_KERNELS: Final = ("flash-1", "flash-2")
"""Kernels whose rates against the measured ones are known."""


@cache
def _kernels() -> Mapping[str, Mapping[str, Any]]:
    path = resources.files("costmodels.compute") / "kernels" / "attention.toml"
    tables: Mapping[str, Any] = parse_toml(path.read_text(encoding="utf-8"), "attention.toml")
    return tables


def kernel_rate(kernel: str, family: str | None, direction: str) -> float:
    """Rate of a kernel of attention against the measured one of a device family.

    Parameters
    ----------
    kernel
        One of `ATTENTION_KERNELS`.
    family
        The device family; None where it is not known.
    direction
        "forward" or "backward".
    """
    rates = _kernels()[kernel].get(family or "", (1.0, 1.0))
    return float(rates[0 if direction == "forward" else 1])


def fitted_time(surface: Surface, work: Work, device: DeviceLike, precision: str) -> FloatArray:
    """Time of one pass of work that multiplies, attention or not. [s]

    Parameters
    ----------
    surface, work, device, precision
        As of `attention_time` and of `surface_time`.
    """
    timed = attention_time if work.operation == "attention" else surface_time
    return timed(surface, work, device, precision)
