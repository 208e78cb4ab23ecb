"""Tests of attention as one kernel: its work, its surface, its backward pass."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.published.flash_attention import FEATURES, FLASH_ATTENTION_3, LENGTHS, TOKENS
from costmodels.cluster import load_device
from costmodels.compute import ComputeModel, TimeSource, Work
from costmodels.errors import InputError


def attention(
    *,
    direction: str = "forward",
    products: float = 64,
    queries: float = 4096,
    keys: float = 4096,
    width: float = 128,
    visible: float = 0.5,
    shared: float = 1,
) -> Work:
    """Attention of some heads."""
    return Work(
        operation="attention",
        direction=direction,
        samples=np.asarray(products),
        channels=np.asarray(width),
        filters=np.asarray(width),
        in_extents=(np.asarray(keys),),
        out_extents=(np.asarray(queries),),
        groups=np.asarray(shared),
        visible=visible,
    )


def seconds(device: str, work: Work, precision: str = "bf16") -> float:
    """Modelled time. [s]"""
    return float(ComputeModel(load_device(device), precision).time(work)[0][0])


def test_backward_multiplies_two_and_a_half_times_as_much() -> None:
    assert attention().flops == 64 * 4096 * 2048 * 4 * 128
    assert attention(direction="backward").flops == 2.5 * attention().flops
    with pytest.raises(InputError, match="direction of a attention"):
        attention(direction="backward_data")


def test_shared_keys_are_read_once() -> None:
    everyone, shared = (attention(shared=s).bytes_moved("bf16") for s in (1, 8))
    assert everyone == 2 * 64 * (4096 + 4096) * 256
    assert shared == 2 * 64 * (4096 + 512) * 256


@pytest.mark.parametrize("name", ["products", "queries", "keys", "width", "visible"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("device", ["a100-80gb", "h100"])
def test_more_attention_never_takes_less_time(device: str, direction: str, name: str) -> None:
    values = {"visible": np.linspace(0.05, 1, 39)}.get(name, np.geomspace(1, 20000, 80).round())
    times = [seconds(device, attention(direction=direction, **{name: v})) for v in values]
    assert all(before <= after * (1 + 1e-12) for before, after in pairwise(times))


@pytest.mark.parametrize(("direction", "causal", "width"), FLASH_ATTENTION_3)
def test_published_rates_of_another_kernel_are_met_for_long_sequences(
    direction: str, causal: bool, width: int
) -> None:
    errors = []
    rates = FLASH_ATTENTION_3[direction, causal, width]
    for length, rate in zip(LENGTHS, rates, strict=True):
        work = attention(
            direction=direction,
            products=TOKENS // length * (FEATURES // width),
            queries=length,
            keys=length,
            width=width,
            visible=0.5 if causal else 1.0,
        )
        errors.append(seconds("h100", work) / (float(work.flops) / (rate * 1e12)) - 1)
    assert max(map(abs, errors[3:])) < (0.25 if width == 64 else 0.15)
    # what was fitted also read its keys from a cache in pages, which short ones feel
    assert 0 < np.mean(errors[:3]) < 0.4


def test_without_a_surface_its_products_run_one_after_the_other() -> None:
    model = ComputeModel(load_device("v100-32gb"), "fp32")
    for direction in ("forward", "backward"):
        work = attention(direction=direction)
        parts = [model.time(product)[0] for product in work.products()]
        time, source = model.time(work)
        assert time == pytest.approx(np.sum(parts, axis=0))
        assert source == TimeSource.SURFACE
    assert [work.direction for work in attention(direction="backward").products()] == [
        *("backward_data", "backward_data"),
        *("backward_weight", "backward_weight"),
    ]


def test_fused_attention_beats_its_products() -> None:
    model = ComputeModel(load_device("a100-80gb"), "bf16")
    fused, source = model.time(attention())
    apart = sum(float(model.time(product)[0][0]) for product in attention().products())
    assert source == TimeSource.SURFACE
    assert fused[0] < apart


def test_the_backward_pass_says_how_it_was_derived() -> None:
    known = ComputeModel(load_device("h100"), "bf16").describe()
    assert known["attention forward"].startswith("fitted surface")
    assert "backward as forward at 0.86 of its rate" in known["attention backward"]
    assert known["attention backward"].startswith("derived surface")
