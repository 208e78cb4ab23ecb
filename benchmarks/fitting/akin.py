"""Devices that nothing was measured on, and what stands in for them: a chip of their kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from benchmarks.fitting.files import SurfaceEntry
from costmodels.compute.surface import Surface

AKIN = {
    "h100": ("a100", "v100"),
    "h200": ("h100", "a100", "v100"),
    "b200": ("h200", "a100", "v100"),
    "k80": ("p100",),
    "rtx_8000": ("v100",),
    "2080_ti": ("v100",),
    "m60": ("m40",),
    "a30": ("a100",),
    "1080": ("1080_ti",),
    **dict.fromkeys(("2080", "2070", "titan_v"), ("v100",)),
    **dict.fromkeys(("3080", "3070", "4090"), ("3090",)),
    **dict.fromkeys(("a10", "a40", "a5000", "l4", "l40s", "rtx6000_ada"), ("a6000",)),
}
# Devices that take all from those that they are akin to.
AKIN_ONLY = (
    *("1080", "2070", "2080", "2080_ti", "titan_v", "m60", "a30", "3080", "3070", "4090"),
    *("a10", "a40", "a5000", "l4", "l40s", "rtx6000_ada"),
)
# Share of the peak that matrix products reach on Kepler: 2.90 of 3.95 TFLOP/s on a Tesla K20X.
KEPLER_PRODUCT = 0.734
_KEPLER_NOTE = (
    "P100's surface at {ratio:.2f} of its efficiency: matrix products reach 2.90 of 3.95 TFLOP/s "
    "on a Tesla K20X of the same multiprocessors (NVIDIA Tesla K20X product page, 2012), 73 % of "
    "the peak; without Winograd's algorithm, whose fused kernels need Maxwell; the errors are "
    "P100's"
)
_TURING_NOTE = (
    "T4's, of the same multiprocessors, whose tensor cores sum up in single precision at the full "
    "rate; the errors are T4's"
)


def turing(entries: Sequence[SurfaceEntry]) -> list[SurfaceEntry]:
    """RTX 8000: what was measured on a T4, whose tensor cores run at the same rate a clock."""
    return [dataclasses.replace(entry, derived=True, comment=_TURING_NOTE) for entry in entries]


def kepler(entries: Sequence[SurfaceEntry]) -> list[SurfaceEntry]:
    """K80: Pascal's kernels at the share of the peak that Kepler's products reach."""
    product = next(e.value for e in entries if e.operation == "linear")
    assert isinstance(product, Surface), "products have surfaces"
    ratio = KEPLER_PRODUCT / product.efficiency
    found = []
    for entry in entries:
        if entry.operation != "matmul" and isinstance(entry.value, Surface):
            share = entry.value.efficiency * ratio
            value = replace(entry.value, efficiency=share, winograd=0.0)
            note = _KEPLER_NOTE.format(ratio=ratio)
            found.append(dataclasses.replace(entry, value=value, derived=True, comment=note))
    return found
