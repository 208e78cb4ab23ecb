"""Efficiency surfaces: seconds of dense local work by its shape, fitted to measurements.

A kernel does not shrink in proportion when its work is cut small. What it really costs is modelled
with a handful of coefficients, each of which means something:

- the output of the (implicit) matrix product is cut into tiles; tiles are spread over the
  streaming multiprocessors in waves, and a last wave that is not full costs nearly a full one;
- with fewer tiles than multiprocessors the contracted dim of a plain product can be split, down to
  a least depth; that of a convolution is not, so one multiprocessor goes through all of it and the
  time stops falling where the output is smaller than a tile;
- starting a kernel and writing out each wave of tiles take time in which nothing is multiplied, so
  a shallow contraction (few channels, 1x1 kernels) is inefficient;
- small tiles reuse less and run at a lower rate; the library picks the fastest tile size;
- a stride-1 convolution with a 3x3 or 5x5 kernel may run as Winograd's minimal filtering
  F(4x4, r x r) (Lavin and Gray 2016, "Fast algorithms for convolutional neural networks"), where
  the fit found that it pays: fewer products, but transformed copies to write and read;
- a convolution with many groups may run directly, at a low share of the vector units' peak;
- arithmetic and memory traffic overlap: a smooth maximum of the two.

Every term grows with every local extent, and so do minima, sums and smooth maxima of them: more
local work never takes less time.

Assumptions: efficiencies are shares of the device's peak and bandwidth, so one fit serves the
variants of a device family; a convolution or product is alone on the device.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.compute.roofline import DeviceLike
from costmodels.compute.work import ELEMENT_SIZE, MatrixProduct, Work

FloatArray = NDArray[np.float64]

# Rows and columns of the output tiles that libraries offer, as columns for broadcasting.
_TILE_ROWS: Final = np.array([[128.0], [64.0], [32.0], [128.0], [32.0]])
_TILE_COLUMNS: Final = np.array([[128.0], [64.0], [32.0], [32.0], [128.0]])
_TILE_AREA: Final = _TILE_ROWS * _TILE_COLUMNS
_TILE_SHARE: Final = _TILE_AREA / _TILE_AREA.max()

UNSPLIT: Final = float("inf")
"""Split depth of a contraction that is never split."""

_WINOGRAD_OUTPUT: Final = 4
_WINOGRAD_KERNELS: Final = (3, 5)


class Surface(Struct, frozen=True, kw_only=True):
    """Coefficients of one surface: a device family, operation, direction and precision.

    Attributes
    ----------
    efficiency
        Share of the peak that the largest tile reaches on a deep contraction.
    tile_exponent
        A tile of a 1/r the area runs at r**-tile_exponent of that rate.
    blocks_per_sm
        Tiles that one multiprocessor runs at the same time.
    quantisation
        0: a partly filled last wave costs its share; 1: it costs a full wave.
    split_depth
        Least contracted depth that a tile is given when the contraction is split; `UNSPLIT` if
        it never is.
    prologue_depth
        Depth of contraction that takes as long as starting the first tiles and finishing the last.
    epilogue_depth
        Depth of contraction that takes as long as writing out a wave of tiles.
    bandwidth
        Share of the nominal memory bandwidth that is reached.
    sharpness
        Exponent of the smooth maximum of arithmetic and traffic.
    strided
        Factor on the arithmetic of a convolution with a stride.
    winograd
        Rate of the products inside Winograd's algorithm relative to plain ones; 0: never used.
    transform_bandwidth
        Share of the nominal memory bandwidth that Winograd's transforms reach.
    direct
        Share of the fp32 peak of a direct grouped convolution; 0: never used.
    direct_bandwidth
        Share of the nominal memory bandwidth of a direct grouped convolution.
    alignment
        Multiple to which channels and filters are padded: what tensor cores need.
    softmax_width
        Features of a head whose products take as long as the softmax of a score (attention).
    kernels
        Kernels that one pass launches, each with the device's latency.
    """

    efficiency: float
    tile_exponent: float
    blocks_per_sm: float
    quantisation: float
    split_depth: float
    prologue_depth: float
    bandwidth: float
    sharpness: float
    epilogue_depth: float = 0.0
    strided: float = 1.0
    winograd: float = 0.0
    transform_bandwidth: float = 0.0
    direct: float = 0.0
    direct_bandwidth: float = 0.0
    alignment: int = 1
    softmax_width: float = 0.0
    kernels: float = 1.0


def product_time(
    surface: Surface, product: MatrixProduct, peak_flops: float, num_sms: int
) -> FloatArray:
    """Time of the arithmetic of matrix products with the best tile size. [s]

    Parameters
    ----------
    surface
        Coefficients.
    product
        Dims of the products.
    peak_flops
        Peak rate of the device at the precision used. [FLOP/s]
    num_sms
        Streaming multiprocessors of the device.
    """
    tiles = product.batch * np.ceil(product.m / _TILE_ROWS) * np.ceil(product.n / _TILE_COLUMNS)
    slots = num_sms * surface.blocks_per_sm
    waves = tiles / slots
    full = waves + surface.quantisation * (np.ceil(waves) - waves)
    depth = np.maximum(product.k, 1.0)
    least = np.minimum(1.0, surface.split_depth / depth)
    waves = np.where(waves >= 1.0, full, np.maximum(waves, least))
    rate = surface.efficiency * peak_flops * _TILE_SHARE**surface.tile_exponent
    wave_time = (2.0 * slots) * _TILE_AREA / rate
    depth = (depth + surface.epilogue_depth) * waves + surface.prologue_depth
    best: FloatArray = (depth * wave_time).min(axis=0)
    return best


def surface_time(surface: Surface, work: Work, device: DeviceLike, precision: str) -> FloatArray:
    """Time of one pass of dense work. [s]

    Parameters
    ----------
    surface
        Coefficients.
    work
        Local work of the candidates.
    device
        Device that runs it.
    precision
        Key of the device's `peak_flops`.
    """
    peak, num_sms = device.peak_flops[precision], device.num_sms
    memory = work.bytes_moved(precision) / (surface.bandwidth * device.memory_bandwidth)
    arithmetic = product_time(
        surface, work.matrix_product(alignment=surface.alignment), peak, num_sms
    )
    if work.stride_volume > 1:
        arithmetic = arithmetic * surface.strided
    if surface.winograd > 0 and _winograd_applies(work):
        arithmetic = np.minimum(arithmetic, _winograd_time(surface, work, device, precision))
    seconds = smooth_maximum(arithmetic, memory, surface.sharpness)
    if surface.direct > 0 and np.any(np.asarray(work.groups) > 1):
        # outside of tensor cores, whose rate is that of single precision where a device states it
        plain = device.peak_flops.get("fp32", peak)
        direct = work.flops / (surface.direct * plain)
        memory = work.bytes_moved(precision) / (surface.direct_bandwidth * device.memory_bandwidth)
        direct = np.where(np.asarray(work.groups) > 1, direct + memory, np.inf)
        seconds = np.minimum(seconds, direct)
    result: FloatArray = surface.kernels * device.kernel_latency + seconds
    return result


def smooth_maximum(a: FloatArray, b: FloatArray, sharpness: float) -> FloatArray:
    """The larger of two times that overlap, the more than it the closer they are. [s]

    Parameters
    ----------
    a, b
        Times. [s]
    sharpness
        Exponent: at 1 they add up, at infinity the larger one counts.
    """
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    # Scaled by the larger, so that no power under- or overflows.
    ratio = smaller / np.maximum(larger, np.finfo(np.float64).tiny)
    result: FloatArray = larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
    return result


def _winograd_applies(work: Work) -> bool:
    return (
        work.operation == "conv"
        and len(work.kernel) == 2
        and work.kernel[0] == work.kernel[1]
        and work.kernel[0] in _WINOGRAD_KERNELS
        and work.stride_volume == 1
    )


def _winograd_time(surface: Surface, work: Work, device: DeviceLike, precision: str) -> FloatArray:
    """Time of F(4x4, r x r): (3 + r)**2 products, and the transforms' traffic. [s]"""
    points = float((_WINOGRAD_OUTPUT + work.kernel[0] - 1) ** 2)
    patches = work.samples
    for extent in work.out_extents:
        patches = patches * np.ceil(extent / _WINOGRAD_OUTPUT)
    filters, channels = work.filters / work.groups, work.channels / work.groups
    m, n, k = {
        "forward": (patches, filters, channels),
        "backward_data": (patches, channels, filters),
        "backward_weight": (filters, channels, patches),
    }[work.direction]
    product = MatrixProduct(batch=points * np.asarray(work.groups, dtype=float), m=m, n=n, k=k)
    arithmetic = product_time(surface, product, device.peak_flops[precision], device.num_sms)
    copies = patches * (work.channels + work.filters) + work.weights / work.kernel_volume
    moved = 2.0 * points * ELEMENT_SIZE[precision] * copies
    transforms = moved / (surface.transform_bandwidth * device.memory_bandwidth)
    result: FloatArray = arithmetic / surface.winograd + transforms
    return result
