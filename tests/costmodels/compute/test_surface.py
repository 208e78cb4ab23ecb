"""Fitted surfaces: laws, and published measurements."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_works import V100, Gpu, conv
from msgspec.structs import replace

from costmodels import compute
from costmodels.compute import ComputeModel, TimeSource, Work
from costmodels.compute.coefficients import family_names, find_fit, load_family
from costmodels.compute.surface import Surface, surface_time
from costmodels.compute.work import DENSE_DIRECTIONS

PEAKS = ("fp32", "tf32", "fp16", "bf16", "fp8")
V100_PCIE = Gpu(name="Tesla V100-PCIE-32GB", peak_flops={"fp32": 14e12})


DATA = Path(compute.__file__).parent / "data"


def all_surfaces() -> list[tuple[str, str, str, str, Surface]]:
    return [
        (name, *key, fit.value)
        for name in family_names()
        for key, fit in load_family(name).fits.items()
        if isinstance(fit.value, Surface)
    ]


SHAPE_DIMS = ("samples", "channels", "filters", "extent")


def grown(operation: str, direction: str, dim: str, sizes: np.ndarray) -> Work:
    """Work that grows in one dim and is middling in the others."""
    values: dict[str, Any] = dict.fromkeys(SHAPE_DIMS, 40) | {dim: sizes}
    extents = (values.pop("extent"),) * (2 if operation == "conv" else 1)
    return Work(
        operation=operation,
        direction="forward" if direction == "any" else direction,
        in_extents=extents,
        out_extents=extents,
        kernel=(3, 3) if operation == "conv" else (),
        **values,
    )


@pytest.mark.parametrize("dim", SHAPE_DIMS)
def test_more_local_work_never_takes_less_time(dim: str) -> None:
    sizes = np.arange(1, 400)
    for family, operation, direction, precision, surface in all_surfaces():
        work = grown(operation, direction, dim, sizes)
        seconds = surface_time(surface, work, Gpu(peak_flops=dict.fromkeys(PEAKS, 1e14)), precision)
        where = f"{family} {operation} {direction} {precision}"
        assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all(), where
        assert seconds[-1] > seconds[0], where


def test_a_kernel_cut_small_does_not_shrink_in_proportion() -> None:
    model = ComputeModel(V100, "fp32")
    parts = np.array([1, 2, 4, 8, 16, 32, 64])
    seconds, _ = model.time(conv(samples=64 / parts))
    ideal = seconds[0] / parts
    assert seconds[-1] > 1.5 * ideal[-1]
    # Small cuts of a large kernel are nearly free of loss.
    assert seconds[1] < 1.15 * ideal[1]


def deep(extent: int, **changes: Any) -> Work:
    """A 3x3 convolution deep in a network, one sample on one of many GPUs."""
    local: dict[str, Any] = {
        "samples": 1,
        "channels": 320,
        "filters": 320,
        "in_extents": (extent,) * 2,
        "out_extents": (extent,) * 2,
    }
    return conv(**(local | changes))


# Published rows of the like (NeuSight, MIT: V100, PyTorch's heuristics). [samples, channels,
# extent, filters; ms]
SMALL = [
    ((1, 806, 5, 219), 0.409),
    ((2, 348, 6, 1693), 0.384),
    ((6, 280, 6, 1164), 0.370),
    ((3, 730, 8, 381), 0.459),
    ((13, 304, 8, 514), 0.351),
]


@pytest.mark.parametrize(("shape", "milliseconds"), SMALL)
def test_small_convolutions_take_as_long_as_published(
    shape: tuple[int, int, int, int], milliseconds: float
) -> None:
    samples, channels, extent, filters = shape
    extents = (extent,) * 2
    work = conv(
        samples=samples,
        channels=channels,
        filters=filters,
        in_extents=extents,
        out_extents=extents,
    )
    # The publisher's own level: a factor and what its way of timing adds to every kernel.
    document = tomllib.loads((DATA / "v100.toml").read_text(encoding="utf-8"))
    (source,) = [
        source
        for entry in document["surface"]
        if (entry["operation"], entry["direction"], entry["precision"])
        == ("conv", "forward", "fp32")
        for source in entry["sources"]
        if source["name"].startswith("NeuSight")
    ]
    plain = ComputeModel(V100_PCIE, "fp32").time(work)[0][0]
    seconds = source["offset_us"] * 1e-6 + source["slower_by"] * plain
    assert milliseconds / 2 < seconds * 1e3 < milliseconds * 2


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
@pytest.mark.parametrize("winograd", [False, True])
def test_cutting_space_below_a_tile_saves_nothing(direction: str, winograd: bool) -> None:
    model = ComputeModel(V100, "fp32", winograd=winograd)
    four, eight, sixteen = (
        model.time(deep(extent, direction=direction))[0][0] for extent in (4, 8, 16)
    )
    # A sixteenth of the arithmetic: one multiprocessor goes through all channels all the same.
    assert four > sixteen / 2
    assert four <= eight <= sixteen
    # Arithmetic alone would take 2 us at the peak.
    assert four > 50e-6
    shallow = deep(4, direction=direction, channels=160, filters=160)
    assert four > 1.5 * model.time(shallow)[0][0]


def test_cutting_channels_of_a_pointwise_convolution_wastes_more_than_cutting_samples() -> None:
    model = ComputeModel(V100, "fp32")
    shape: dict[str, Any] = {"kernel": (1, 1), "channels": 64, "filters": 256}
    whole = conv(samples=32, **shape)
    by_samples = model.time(replace(whole, samples=np.array(2.0)))[0]
    by_channels = model.time(replace(whole, channels=np.array(4.0)))[0]
    assert by_channels > 1.5 * by_samples


def test_few_channels_are_padded_on_tensor_cores_only() -> None:
    three, eight = conv(channels=3), conv(channels=8)
    half = find_fit("v100", "conv", "forward", "fp16")
    single = find_fit("v100", "conv", "forward", "fp32")
    assert half is not None
    assert isinstance(half.value, Surface)
    assert single is not None
    assert isinstance(single.value, Surface)
    compute_only = replace(half.value, bandwidth=1e9)
    assert surface_time(compute_only, three, V100, "fp16") == pytest.approx(
        surface_time(compute_only, eight, V100, "fp16")
    )
    slow = replace(single.value, winograd=0.0, bandwidth=1e9)
    assert surface_time(slow, three, V100, "fp32") < surface_time(slow, eight, V100, "fp32")


def test_winograd_speeds_up_stride_one_3x3_alone() -> None:
    fast, plain = ComputeModel(V100, "fp32"), ComputeModel(V100, "fp32", winograd=False)
    wide = conv(channels=256, filters=512, in_extents=(28, 28), out_extents=(28, 28))
    assert plain.time(wide)[0] > 1.5 * fast.time(wide)[0]
    pointwise = replace(wide, kernel=(1, 1))
    assert plain.time(pointwise)[0] == fast.time(pointwise)[0]
    strided = replace(wide, stride=(2, 2), out_extents=(np.array(14.0),) * 2)
    assert plain.time(strided)[0] == fast.time(strided)[0]


# Published figures (DeepBench, Apache-2.0: V100, CUDA 10.1, cuDNN 7.6.2). [ms]
DEEPBENCH = [
    ("fp32", (16, 256, 28, 512, 3), (0.801, 0.859, 0.766)),
    ("fp32", (16, 128, 56, 256, 3), (0.900, 0.901, 0.936)),
    ("fp32", (16, 64, 112, 128, 3), (1.246, 1.209, 1.928)),
    ("fp32", (8, 64, 56, 256, 1), (0.086, 0.084, 0.143)),
]


@pytest.mark.parametrize(("precision", "shape", "milliseconds"), DEEPBENCH)
def test_published_kernel_times_come_out(
    precision: str, shape: tuple[int, ...], milliseconds: tuple[float, ...]
) -> None:
    samples, channels, extent, filters, size = shape
    model = ComputeModel(V100, precision)
    for direction, expected in zip(DENSE_DIRECTIONS, milliseconds, strict=True):
        work = Work(
            operation="conv",
            direction=direction,
            samples=samples,
            channels=channels,
            filters=filters,
            in_extents=(extent,) * 2,
            out_extents=(extent,) * 2,
            kernel=(size, size),
        )
        seconds, source = model.time(work)
        assert seconds[0] * 1e3 == pytest.approx(expected, rel=0.4)
        assert source[0] == TimeSource.SURFACE


def test_500_candidates_take_as_many_calls_as_five() -> None:
    model = ComputeModel(V100, "fp32")

    def calls(count: int) -> int:
        work, made = conv(samples=np.arange(1, count + 1)), 0

        def tally(frame: object, event: str, argument: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(tally)
        try:
            model.time(work)
        finally:
            sys.setprofile(None)
        return made

    model.time(conv())  # coefficients are read once
    assert calls(500) == calls(5)
