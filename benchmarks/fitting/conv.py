"""Fits of FP32 convolutions: what teaches the level, and what the shape dependence.

DeepBench and Aceso time shapes of whole networks and set the level. NeuSight reaches down to the
few output positions that are left when a layer is cut over many GPUs, and shows how time depends on
the shape there. The same kernels run forward and backward-data, so both share how tiles occupy the
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from benchmarks.fitting import data as sd
from benchmarks.fitting.fits import CONV, CONV_PLAIN, LEVEL, PRODUCT, Fitted, fit
from costmodels.compute.surface import UNSPLIT, Surface

DIRECTIONS = ("forward", "backward_data", "backward_weight")
# These let PyTorch choose algorithms by heuristics, not by trying them.
HEURISTIC = frozenset({sd.NEUSIGHT.name, sd.ACESO.name})
P100, T4 = "NVIDIA Tesla P100", "NVIDIA T4"
# With fewer channels or filters NeuSight's heuristics pick kernels that waste most of their tiles,
# which a library that searches does not.
DEEP = 64
# Without split contractions, efficiency and prologue would trade against each other without end.
CONV_MOST = {"efficiency": 1.0, "prologue_depth": 128.0}


def conv_forward(tables: Path, searched: list[sd.Timings], gpu: str) -> Fitted:
    """Forward convolutions of libraries that searched, with NeuSight's small shapes.

    NeuSight's rows reach down to 25 output positions, which no other source does, and show that
    the contraction is not split there: a tile of few positions is contracted by one
    multiprocessor alone.
    """
    base = Surface(**dict.fromkeys(PRODUCT, 1.0), alignment=1)
    base = replace(base, split_depth=UNSPLIT)
    names = tuple(name for name in CONV if name != "split_depth")
    return fit(
        searched + sd.neusight_conv(tables, gpu, least=DEEP),
        {"forward": names},
        fixed={"forward": base},
        slower=HEURISTIC,
        most=CONV_MOST,
        even=True,
    )


def conv_deepbench(
    tables: Path,
    gpu: str,
    precision: str,
    base: Surface,
    occupied: dict[str, Surface],
    pcie: str | None,
) -> Iterator[Fitted]:
    """One fit per direction; small shapes as NeuSight has them, of this device or of P100.

    The surfaces that tell how tiles occupy a device are kept in `occupied`.
    """
    timings = {d: sd.deepbench_conv(tables, gpu, precision, d) for d in DIRECTIONS}
    if precision != "fp32":
        for d in DIRECTIONS:
            yield fit(timings[d], {d: CONV_PLAIN}, fixed={d: base})
        return
    if pcie:
        forward = conv_forward(tables, timings["forward"], pcie)
        occupied[gpu] = forward.surfaces["forward"]
        yield forward
    # Maxwell and Pascal run the same kernels.
    tiles = occupied.get(gpu) or occupied[P100]
    for d in ("backward_data",) if pcie else ("forward", "backward_data"):
        yield fit(timings[d], {d: LEVEL}, fixed={d: tiles})
    yield fit(
        timings["backward_weight"], {"backward_weight": CONV}, fixed={"backward_weight": base}
    )
