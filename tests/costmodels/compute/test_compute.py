"""Local compute times: dims of the work, surfaces, tables, and which answer is taken when."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels import compute
from costmodels.compute import ComputeModel, CostTable, TimeSource, Work
from costmodels.compute.coefficients import family_names, family_of, find_fit, load_family
from costmodels.compute.roofline import BANDWIDTH_FRACTION, PEAK_FRACTION, roofline_time
from costmodels.compute.surface import Surface, surface_time
from costmodels.compute.table import COLUMNS, REACH
from costmodels.compute.work import DENSE_DIRECTIONS, TRAFFIC
from costmodels.errors import InputError


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
V100_PCIE = Gpu(name="Tesla V100-PCIE-32GB", peak_flops={"fp32": 14e12})
DATA = Path(compute.__file__).parent / "data"


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


# --- work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("forward", (16 * 28 * 28, 128, 64 * 9)),
        ("backward_data", (16 * 56 * 56, 64, 128 * 9 / 4)),
        ("backward_weight", (128, 64 * 9, 16 * 28 * 28)),
    ],
)
def test_strided_convolution_is_an_implicit_product(
    direction: str, expected: tuple[float, float, float]
) -> None:
    product = conv(direction, out_extents=(28, 28), stride=(2, 2)).matrix_product()
    assert (product.m, product.n, product.k) == expected
    assert product.batch == 1


@pytest.mark.parametrize("direction", DENSE_DIRECTIONS)
def test_every_pass_of_a_convolution_has_the_same_flops(direction: str) -> None:
    work = conv(direction, out_extents=(28, 28), stride=(2, 2), groups=4)
    assert work.flops == pytest.approx(2 * 16 * 128 * (64 / 4) * 9 * 28 * 28)


def test_groups_split_the_product_and_not_its_rows() -> None:
    product = conv(groups=32).matrix_product()
    assert (product.batch, product.m, product.n, product.k) == (32, 16 * 56 * 56, 4, 2 * 9)


def test_a_batched_product_has_one_product_per_sample() -> None:
    heads = Work(
        operation="matmul",
        direction="forward",
        samples=96,
        channels=64,
        filters=512,
        in_extents=(512,),
        out_extents=(512,),
    )
    product = heads.matrix_product()
    assert (product.batch, product.m, product.n, product.k) == (96, 512, 512, 64)
    elements = 96 * (512 * 64 + 64 * 512 + 512 * 512)
    assert heads.bytes_moved("bf16") == 2 * elements


def test_bytes_count_every_operand_once_by_precision() -> None:
    positions, weights = 16 * 56 * 56, 64 * 128 * 9
    assert conv().bytes_moved("fp32") == 4 * (positions * (64 + 128) + weights)
    assert conv().bytes_moved("fp16") == conv().bytes_moved("fp32") / 2


def test_batch_norm_reads_its_input_twice_and_a_mask_costs_a_byte() -> None:
    shape: dict[str, Any] = {"samples": 8, "channels": 32, "filters": 32}
    shape |= {"in_extents": (10,), "out_extents": (10,)}
    elements = 8 * 32 * 10
    norm = Work(operation="batch_norm", direction="forward", **shape)
    assert norm.bytes_moved("fp32") == 3 * 4 * elements
    dropout = Work(operation="dropout", direction="forward", **shape)
    assert dropout.bytes_moved("fp16") == (2 * 2 + 1) * elements
    assert norm.flops == 0


def test_candidates_broadcast() -> None:
    work = conv(samples=np.array([4, 8, 16]), channels=np.array([64, 32, 16]))
    assert work.flops.shape == (3,)
    assert work.flops[0] == pytest.approx(work.flops[2])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"operation": "fft"}, "operation"),
        ({"direction": "backward"}, "direction"),
        ({"samples": -1}, "samples"),
        ({"samples": np.nan}, "samples"),
        ({"channels": np.ones((2, 2))}, "at most one dim"),
        ({"stride": (2,)}, "stride"),
    ],
)
def test_impossible_work_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(conv(), **changed)


# --- surfaces ---------------------------------------------------------------------------------


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
        seconds = surface_time(surface, work, V100, precision)
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


def test_500_candidates_take_well_under_a_planning_step() -> None:
    model, work = ComputeModel(V100, "fp32"), conv(samples=np.arange(1, 501))
    model.time(work)
    best = min(_timed(lambda: model.time(work)) for _ in range(20))
    assert best < 3e-3


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --- coefficients -----------------------------------------------------------------------------


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
        ("GTX 1080", None),
        ("Quadro T400", None),
        ("RTX 4090", None),
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
        "assert not {'pandas', 'scipy', 'torch', 'networkx', 'ortools'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- tables -----------------------------------------------------------------------------------


def row(seconds: object, **changed: object) -> dict[str, object]:
    values: dict[str, object] = {
        "operation": "conv",
        "direction": "forward",
        "precision": "fp32",
        "samples": 16,
        "channels": 64,
        "filters": 128,
        "in_extents": "56x56",
        "out_extents": "56x56",
        "kernel": "3x3",
        "stride": "1x1",
        "groups": 1,
        "seconds": seconds,
    }
    return values | changed


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        file.write("# device = V100\n# software = by hand\n")
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_measured_shape_is_taken_as_it_is(tmp_path: Path) -> None:
    table = CostTable.load(write(tmp_path / "t.csv", [row(1.5e-3), row(9e-3, samples=64)]))
    model = ComputeModel(V100, "fp32", tables=(table,))
    seconds, source = model.time(conv(samples=np.array([16, 64])))
    assert seconds == pytest.approx([1.5e-3, 9e-3])
    assert list(source) == [TimeSource.TABLE, TimeSource.TABLE]
    assert "software by hand" in model.describe()["table 1"]


def test_between_measured_shapes_the_ratio_to_the_model_is_interpolated(tmp_path: Path) -> None:
    plain = ComputeModel(V100, "fp32")
    ends = plain.time(conv(samples=np.array([8, 32])))[0]
    rows = [row(2 * ends[0], samples=8), row(3 * ends[1], samples=32)]
    table = CostTable.load(write(tmp_path / "t.csv", rows))
    model = ComputeModel(V100, "fp32", tables=(table,))
    seconds, source = model.time(conv(samples=np.array([9, 16, 30])))
    ratio = seconds / plain.time(conv(samples=np.array([9, 16, 30])))[0]
    assert (source == TimeSource.INTERPOLATED).all()
    assert ratio == pytest.approx([2, 6**0.5, 3], rel=0.01)
    assert (np.diff(ratio) > 0).all()


def test_a_shape_out_of_reach_is_left_to_the_surface(tmp_path: Path) -> None:
    table = CostTable.load(write(tmp_path / "t.csv", [row(1.0)]))
    model = ComputeModel(V100, "fp32", tables=(table,))
    samples = np.array([16 * REACH, 16 * REACH + 1, 16 / REACH, 16 / REACH - 1])
    expected = [
        TimeSource.INTERPOLATED,
        TimeSource.SURFACE,
        TimeSource.INTERPOLATED,
        TimeSource.SURFACE,
    ]
    assert list(model.time(conv(samples=samples))[1]) == expected


@pytest.mark.parametrize(
    "work",
    [
        conv("backward_data"),
        conv(kernel=(1, 1)),
        conv(stride=(2, 2), out_extents=(28, 28)),
        conv(groups=2),
        linear(),
    ],
    ids=["direction", "kernel", "stride", "groups", "operation"],
)
def test_another_kind_of_work_is_no_neighbour(work: Work, tmp_path: Path) -> None:
    table = CostTable.load(write(tmp_path / "t.csv", [row(1.0)]))
    with_table = ComputeModel(V100, "fp32", tables=(table,)).time(work)
    without = ComputeModel(V100, "fp32").time(work)
    assert with_table[0] == without[0]
    assert with_table[1] == without[1]


def test_the_first_table_is_trusted_most(tmp_path: Path) -> None:
    first = CostTable.load(write(tmp_path / "a.csv", [row(1e-3)]))
    second = CostTable.load(write(tmp_path / "b.csv", [row(2e-3), row(7e-3, filters=4096)]))
    model = ComputeModel(V100, "fp32", tables=(first, second))
    seconds, source = model.time(conv(filters=np.array([128, 4096])))
    assert seconds == pytest.approx([1e-3, 7e-3])
    assert list(source) == [TimeSource.TABLE, TimeSource.TABLE]


@pytest.mark.parametrize("bad", ["nan", "-1e-3", "0", "inf", "", "fast"])
@pytest.mark.parametrize("column", ["seconds", "samples", "kernel"])
def test_a_bad_cell_is_named_by_line_and_column(column: str, bad: str, tmp_path: Path) -> None:
    if column == "kernel" and not bad:
        pytest.skip("an empty kernel is a linear layer's")
    path = write(tmp_path / "t.csv", [row(1e-3), row(1e-3) | {column: bad}])
    with pytest.raises(InputError, match=f"line 5, column {column} of t.csv must be") as caught:
        CostTable.load(path)
    assert str(caught.value).count("\n") == 0


def test_a_row_that_is_no_work_is_named_by_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 4 of t\.csv"):
        CostTable.load(write(tmp_path / "t.csv", [row(1e-3, operation="fft")]))
    with pytest.raises(InputError, match="line 4, column precision"):
        CostTable.load(write(tmp_path / "t.csv", [row(1e-3, precision="int4")]))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("operation,direction\nconv,forward\n")
    with pytest.raises(InputError, match=r"lacks precision.*seconds"):
        CostTable.load(path)
