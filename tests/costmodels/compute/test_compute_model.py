"""Which coefficients a device uses, and what its times are from."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from local_works import V100, Gpu, conv, linear

from costmodels.compute import ComputeModel, TimeSource, Work
from costmodels.compute.coefficients import family_names, family_of, find_fit, load_family
from costmodels.compute.roofline import BANDWIDTH_FRACTION, PEAK_FRACTION, roofline_time
from costmodels.compute.work import TRAFFIC
from costmodels.errors import InputError


@pytest.mark.parametrize(
    ("device", "family"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("h200", "h200"),
        ("GTX TITAN X (Maxwell)", "titan_x_maxwell"),
        ("Titan X (Pascal)", "titan_x_pascal"),
        ("Titan Xp", "titan_xp"),
        ("GTX 1080 Ti", "1080_ti"),
        ("Tesla T4", "t4"),
        ("GTX 1080", "1080"),
        ("Quadro T400", None),
        ("RTX 5090", None),
    ],
)
def test_a_device_finds_its_family(device: str, family: str | None) -> None:
    assert family_of(device) == family


def test_every_fit_says_where_it_is_from() -> None:
    for name in family_names():
        for key, fit in load_family(name).fits.items():
            assert "MIT" in fit.note or "Apache-2.0" in fit.note, (name, key)
            assert "held-out" in fit.note, (name, key)
            if isinstance(fit.value, float):
                assert 0 < fit.value <= 1, (name, key)
            else:
                assert 0 < fit.value.efficiency <= 1.1, (name, key)


def test_what_only_stores_half_precision_computes_in_single() -> None:
    pascal = Gpu(
        name="Titan Xp",
        num_sms=30,
        memory_bandwidth=547.6e9,
        peak_flops={"fp32": 12.15e12, "fp16": 12.15e12},
    )
    half, single = ComputeModel(pascal, "fp16"), ComputeModel(pascal, "fp32")
    assert half.arithmetic == "fp32"
    deep = conv(channels=512, filters=512)
    (seconds,), (source,) = half.time(deep)
    assert source == TimeSource.SURFACE
    assert 0.75 * single.time(deep)[0][0] < seconds <= single.time(deep)[0][0]
    copy = Work(operation="copy", direction="forward", samples=64, channels=1e5, filters=1e5)
    assert half.time(copy)[0][0] == pytest.approx(0.5 * single.time(copy)[0][0], rel=0.05)
    # tensor cores and twice as fast vector units compute in it
    assert ComputeModel(V100, "fp16").arithmetic == "fp16"


def test_what_a_family_lacks_is_borrowed_and_marked() -> None:
    a100 = Gpu(name="A100-SXM4-40GB", num_sms=108, memory_bandwidth=1555e9)
    assert ComputeModel(a100, "fp32").time(conv())[1][0] == TimeSource.SURFACE
    assert (
        ComputeModel(a100, "fp32").time(conv("backward_data"))[1][0] == TimeSource.DERIVED_SURFACE
    )
    assert ComputeModel(a100, "bf16").time(linear())[1][0] == TimeSource.SURFACE
    assert ComputeModel(a100, "fp16").time(linear())[1][0] == TimeSource.DERIVED_SURFACE
    unknown = ComputeModel(replace(a100, name="XPU 9000"), "bf16")
    assert unknown.time(linear())[1][0] == TimeSource.DERIVED_SURFACE
    assert "transferred from a100" in unknown.describe()["linear forward"]


def test_a_family_chosen_by_hand_is_a_transfer() -> None:
    seconds, source = ComputeModel(V100, "fp32", family="p100").time(conv())
    assert source[0] == TimeSource.DERIVED_SURFACE
    assert seconds[0] != ComputeModel(V100, "fp32").time(conv())[0][0]
    with pytest.raises(InputError, match="family"):
        ComputeModel(V100, "fp32", family="abacus")


def test_memory_bound_time_is_traffic_over_a_fitted_share_of_the_bandwidth() -> None:
    fit = find_fit("v100", "activation", "forward", "")
    assert fit is not None
    assert isinstance(fit.value, float)
    shape: dict[str, Any] = {"samples": 32, "channels": 64, "filters": 64}
    shape |= {"in_extents": (56, 56), "out_extents": (56, 56)}
    work = Work(operation="activation", direction="forward", **shape)
    seconds, source = ComputeModel(V100, "fp32").time(work)
    moved = 2 * 4 * 32 * 64 * 56 * 56
    assert seconds[0] == pytest.approx(5e-6 + moved / (fit.value * 900e9))
    assert source[0] == TimeSource.SURFACE


def test_what_nobody_measured_takes_the_roofline() -> None:
    work = Work(operation="sgd_update", direction="forward", samples=25e6, channels=1, filters=1)
    seconds, source = ComputeModel(V100, "fp32").time(work)
    assert seconds[0] == pytest.approx(5e-6 + 25e6 * 20 / (BANDWIDTH_FRACTION * 900e9))
    assert source[0] == TimeSource.ROOFLINE
    big = linear(samples=8192, channels=8192)
    assert roofline_time(big, V100, "fp16") == pytest.approx(
        5e-6 + float(big.flops) / (PEAK_FRACTION * 125e12)
    )


def test_an_empty_piece_takes_no_time() -> None:
    seconds, _ = ComputeModel(V100, "fp32").time(conv(samples=np.array([0, 1])))
    assert seconds[0] == 0
    assert seconds[1] > 0


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InputError, match="fp8"):
        ComputeModel(V100, "fp8")


def test_describe_covers_every_operation() -> None:
    text = ComputeModel(V100, "fp32").describe()
    assert {f"{operation} {direction}" for operation, direction in TRAFFIC} <= set(text)
    assert "DeepBench" in text["conv forward"]
    assert "roofline" in text["loss forward"]


def test_importing_and_timing_needs_numpy_alone() -> None:
    code = (
        "import sys, costmodels.compute.model\n"
        "assert not {'pandas', 'scipy', 'torch', 'ortools'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("family", family_names())
@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_a_device_without_single_precision_has_times(family: str, precision: str) -> None:
    gpu = Gpu(name="mine", peak_flops={precision: 312e12})
    model = ComputeModel(gpu, precision, family=family)
    for direction in ("forward", "backward_data", "backward_weight"):
        assert (model.time(conv(direction, groups=2))[0] > 0).all()
