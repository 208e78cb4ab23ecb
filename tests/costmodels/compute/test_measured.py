"""What measured shapes say of others: the laws of the correction."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from local_works import V100, conv, linear

from costmodels.compute import ComputeModel, CostTable, TimeSource, Work
from costmodels.compute.table import Row

MODEL = ComputeModel(V100, "fp32")
SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)
OTHERS = {
    "direction": conv("backward_data"),
    "kernel": conv(kernel=(1, 1)),
    "stride": conv(stride=(2, 2), out_extents=(28, 28)),
    "groups": conv(groups=2),
    "far": conv(samples=4096),
    "linear": linear(),
    "memory-bound": Work(
        operation="activation",
        direction="forward",
        samples=32,
        channels=64,
        filters=64,
        in_extents=(56, 56),
        out_extents=(56, 56),
    ),
}


def modelled(work: Work) -> float:
    return float(MODEL.time(work)[0][0])


def table(works: list[Work], ratio: Callable[[int], float]) -> CostTable:
    rows = [
        Row(place=f"line {n + 2}", precision="fp32", work=work, seconds=modelled(work) * ratio(n))
        for n, work in enumerate(works)
    ]
    return CostTable("t.csv", {}, rows)


def corrected(*tables: CostTable) -> ComputeModel:
    return ComputeModel(V100, "fp32", tables=tables)


def factor(model: ComputeModel, work: Work) -> float:
    return float(model.time(work)[0][0]) / modelled(work)


def convs(samples: tuple[int, ...] = SAMPLES, **shape: Any) -> list[Work]:
    return [conv(samples=n, **shape) for n in samples]


def part(model: ComputeModel, work: Work, ratio: float) -> float:
    """What part of the logarithm of a ratio a work is corrected by."""
    return float(np.log(factor(model, work)) / np.log(ratio))


@pytest.mark.parametrize("ratio", [0.5, 1.15, 40.0])
@pytest.mark.parametrize(("count", "least"), [(4, 0.75), (8, 0.85), (128, 0.995)])
def test_where_all_rows_agree_everything_takes_their_ratio(
    ratio: float, count: int, least: float
) -> None:
    works = [conv(samples=n) for n in range(1, count + 1)]
    model = corrected(table(works, lambda n: ratio))
    parts = [part(model, work, ratio) for work in OTHERS.values()]
    assert min(parts) > least
    assert max(parts) < 1.0 + 1e-9
    assert model.measured is not None
    known = model.measured.agreement()
    assert known is not None
    assert (known.rows, known.ratio) == (count, pytest.approx(ratio))
    assert known.spread == pytest.approx(0.0, abs=1e-9)
    assert model.measured.outliers == ()


def test_a_model_that_is_right_is_left_as_it_is() -> None:
    model = corrected(table(convs(), lambda n: 1.0))
    for work in OTHERS.values():
        assert factor(model, work) == pytest.approx(1.0, rel=1e-12)


def test_one_row_says_less_the_farther_a_shape_is_from_it() -> None:
    model = corrected(table([conv()], lambda n: 1.15))
    names = ("far", "kernel", "direction", "linear", "memory-bound")
    parts = [part(model, OTHERS[name], 1.15) for name in names]
    assert parts == sorted(parts, reverse=True)
    assert 0.15 < parts[-1] < parts[0] < 0.75
    assert part(model, conv(samples=17), 1.15) > 0.99
    # that it carries over is not known: the spread is all of it
    assert model.measured is not None
    known = model.measured.agreement()
    assert known is not None
    assert known.spread == pytest.approx(np.log(1.15))


def test_rows_that_vary_say_less_of_others_than_rows_that_agree() -> None:
    draws = np.random.default_rng(3).normal(0.0, 0.4, 8)
    draws -= draws.mean()
    sure = corrected(table(convs(), lambda n: 1.5))
    unsure = corrected(table(convs(), lambda n: 1.5 * float(np.exp(draws[n]))))
    assert part(unsure, linear(), 1.5) < 0.8 * part(sure, linear(), 1.5)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("wrong", [1e-4, 1e3])
def test_nonsense_alone_corrects_nothing_else(name: str, wrong: float) -> None:
    model = corrected(table([conv()], lambda n: wrong))
    assert factor(model, OTHERS[name]) == 1.0
    assert factor(model, conv()) == pytest.approx(wrong)
    assert model.measured is not None
    assert model.measured.outliers == ("line 2 of t.csv (conv forward)",)
    assert model.measured.agreement() is None


@pytest.mark.parametrize("wrong", [1e-4, 0.1, 10.0, 1e3])
@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_slip_among_others_corrects_nothing_else(wrong: float, place: int) -> None:
    model = corrected(table(convs(), lambda n: wrong if n == place else 1.15))
    assert factor(model, conv(samples=SAMPLES[place])) == pytest.approx(wrong)
    for work in (*OTHERS.values(), conv(samples=3 * SAMPLES[place])):
        assert 1.1 < factor(model, work) < 1.151
    assert model.measured is not None
    assert model.measured.outliers == (f"line {place + 2} of t.csv (conv forward)",)
    doubted = model.doubted(slips=False)
    assert factor(doubted, conv(samples=SAMPLES[place])) == pytest.approx(1.15, rel=0.01)


def test_a_kind_that_is_slow_as_a_whole_is_no_slip() -> None:
    slow = [linear(samples=n) for n in (512, 1024)]
    works = [*convs(), *slow]
    model = corrected(table(works, lambda n: 6.0 if n >= len(SAMPLES) else 1.0))
    assert model.measured is not None
    assert model.measured.outliers == ()
    assert factor(model, linear(samples=8192)) > 3.0
    assert factor(model, conv(samples=4096)) == pytest.approx(1.0, rel=0.05)


def test_what_is_measured_is_taken_whatever_others_say() -> None:
    model = corrected(table(convs(), lambda n: 1.0 + 0.1 * n))
    for n, work in enumerate(convs()):
        seconds, source = model.time(work)
        assert seconds[0] == modelled(work) * (1.0 + 0.1 * n)
        assert source[0] == TimeSource.TABLE


def test_the_nearest_level_counts_most() -> None:
    """A shape of the block, then its operation, then its kind, then the device."""
    works = [
        *convs(),
        *convs(kernel=(1, 1)),
        *[linear(samples=n) for n in (256, 512, 1024, 2048, 4096)],
    ]
    model = corrected(table(works, lambda n: 2.0 if n < 8 else 1.5 if n < 16 else 1.1))
    found = [
        factor(model, work)
        for work in (
            conv(samples=24),
            conv(samples=24, stride=(2, 2), out_extents=(28, 28)),
            linear(samples=8192),
        )
    ]
    assert found[0] == pytest.approx(2.0, rel=0.01)
    assert found[1] == pytest.approx(1.7, rel=0.05)
    assert found[2] == pytest.approx(1.1, rel=0.06)


def test_a_trend_with_size_is_followed() -> None:
    works = convs()
    model = corrected(table(works, lambda n: 3.0 - 0.25 * n))
    other = {"kernel": (5, 5)}
    small, large = (factor(model, conv(samples=n, **other)) for n in (1, 128))
    assert small > 1.2 * large


def test_noise_is_averaged_over_akin_rows() -> None:
    draws = np.random.default_rng(0).normal(0.0, 0.1, 200)
    works = [conv(samples=4 + n, kernel=(1, 1)) for n in range(200)]
    model = corrected(table(works, lambda n: 1.15 * float(np.exp(draws[n]))))
    for work in OTHERS.values():
        if work.kernel != (1, 1):
            assert factor(model, work) == pytest.approx(1.15, rel=0.05)
    assert model.measured is not None
    known = model.measured.agreement("conv")
    assert known is not None
    assert known.spread == pytest.approx(0.1, rel=0.25)


def test_shapes_deviate_by_the_spread_far_from_rows_and_not_beside_them() -> None:
    draws = np.random.default_rng(1).normal(0.0, 0.1, 8)
    model = corrected(table(convs(), lambda n: float(np.exp(draws[n]))))
    assert model.measured is not None
    known = model.measured.agreement("conv")
    assert known is not None
    plain = model.doubted(None)
    for work in OTHERS.values():
        assert factor(plain, work) == 1.0
    assert factor(plain, conv(samples=16)) == pytest.approx(float(np.exp(draws[4])))
    slow, fast = model.doubted(1.0), model.doubted(-1.0)
    kernel = OTHERS["kernel"]
    assert factor(slow, kernel) / factor(model, kernel) == pytest.approx(np.exp(known.spread))
    assert factor(fast, kernel) / factor(model, kernel) == pytest.approx(np.exp(-known.spread))
    beside = conv(samples=17)
    assert factor(slow, beside) / factor(model, beside) == pytest.approx(1.0, rel=0.001)


def test_rows_of_another_precision_say_nothing() -> None:
    rows = [Row(place="line 2", precision="fp16", work=conv(), seconds=1.0)]
    model = corrected(CostTable("t.csv", {}, rows))
    assert model.measured is not None
    assert len(model.measured) == 0
    assert factor(model, conv()) == 1.0


def test_a_large_table_is_quick() -> None:
    works = [
        conv(samples=1 + n % 50, filters=16 + n % 97, kernel=(1 + n % 3, 3)) for n in range(10_000)
    ]
    rows = [
        Row(place=f"line {n}", precision="fp32", work=w, seconds=1e-3) for n, w in enumerate(works)
    ]
    model = corrected(CostTable("t.csv", {}, rows))
    start = time.process_time()
    for _ in range(20):
        model.time(conv(samples=np.arange(1, 200), kernel=(5, 5)))
    assert time.process_time() - start < 3.0


@pytest.mark.parametrize("repeats", [2, 5])
def test_what_is_given_again_says_no_more(repeats: int) -> None:
    """A table given twice corrected all other shapes by what one slip in it said."""
    once = corrected(table([conv()], lambda n: 30.0))
    tables = [table([conv()], lambda n: 30.0) for _ in range(repeats)]
    in_one = table([conv()] * repeats, lambda n: 30.0)
    for again in (corrected(*tables), corrected(in_one)):
        for work in (conv(), *OTHERS.values()):
            assert factor(again, work) == pytest.approx(factor(once, work))
        assert again.measured is not None
        assert again.measured.widest_repeat == 1.0


def test_several_times_of_one_shape_count_by_their_mean_in_any_order() -> None:
    """The first of them was taken, and the order of rows changed the step."""
    for ratios in ((1.0, 4.0), (4.0, 1.0)):
        model = corrected(table([conv()] * 2, ratios.__getitem__))
        assert factor(model, conv()) == pytest.approx(2.0)
        assert model.measured is not None
        assert model.measured.widest_repeat == pytest.approx(4.0)


def test_of_several_tables_the_first_has_a_say_of_a_shape() -> None:
    model = corrected(table([conv()], lambda n: 1.2), table([conv()], lambda n: 3.0))
    assert factor(model, conv()) == pytest.approx(1.2)
