"""The fitting and measuring scripts, on made-up data and a stand-in for torch."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.device.measure import Shape, read_shapes, rows

from costmodels.compute import CostTable
from costmodels.compute.surface import Surface, surface_time

TRUE = Surface(
    efficiency=0.6,
    tile_exponent=0.3,
    blocks_per_sm=2.0,
    quantisation=0.7,
    split_depth=256,
    prologue_depth=100,
    bandwidth=0.6,
    sharpness=3.0,
)


def test_a_fit_recovers_the_surface_that_made_the_timings() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("scipy")
    from benchmarks.fitting import data as sd
    from benchmarks.fitting.fits import PRODUCT, fit

    generator = np.random.default_rng(1)
    m, n, k = np.exp(generator.uniform(np.log(16), np.log(8192), size=(3, 600))).round()
    work = sd.product_work("linear", np.ones(1), m, n, k)
    device = sd.DEVICES["NVIDIA V100"]
    noise = np.exp(generator.normal(0, 0.05, size=600))
    offset = 20e-6
    timings = sd.Timings(
        source=sd.TimingSource(name="made up", licence="none", software="none"),
        device=device,
        precision="fp32",
        parts={"forward": work},
        seconds=offset + surface_time(TRUE, work, device, "fp32") * noise,
        held_out=generator.random(600) < 0.25,
    )
    fitted = fit([timings], {"any": PRODUCT})
    (error,) = fitted.errors
    # The noise alone has a mean absolute error of 4 %.
    assert error.held_out_error < 0.06
    assert abs(error.held_out_bias) < 0.02
    assert error.offset == pytest.approx(offset, rel=0.25)
    assert fitted.surfaces["any"].efficiency == pytest.approx(TRUE.efficiency, rel=0.1)


TICKS = itertools.count()


class StandInEvent:
    """A clock that ticks once an event, in place of a CUDA event."""

    def record(self) -> None:
        self.at = 1e-3 * next(TICKS)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: StandInEvent) -> float:
        return (other.at - self.at) * 1e3


def stand_in_torch() -> Any:
    """Just enough of torch, on numpy arrays, to time products."""
    backend = SimpleNamespace(allow_tf32=False)
    return SimpleNamespace(
        randn=lambda *dims, device, dtype: np.ones(dims, dtype),
        matmul=np.matmul,
        float32=np.float32,
        float16=np.float16,
        bfloat16=np.float32,
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=backend), cudnn=backend),
        cuda=SimpleNamespace(
            Event=lambda enable_timing: StandInEvent(),
            synchronize=lambda: None,
            empty_cache=lambda: None,
            OutOfMemoryError=MemoryError,
        ),
    )


def test_measured_rows_load_as_a_table(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.csv"
    shapes.write_text(
        "operation,samples,channels,filters,in_extents,kernel,stride,groups\n"
        "linear,8,16,32,,,,1\n"
        "matmul,4,16,32,8,,,1\n"
    )
    measured = list(rows(stand_in_torch(), read_shapes(shapes), ["fp32", "bf16"]))
    assert len(measured) == 2 * 2 * 3
    table = tmp_path / "table.csv"
    columns = list(measured[0])
    lines = [",".join(str(cells[column]) for column in columns) for cells in measured]
    table.write_text("# device = none\n" + "\n".join([",".join(columns), *lines]) + "\n")
    assert len(CostTable.load(table)) == len(measured)


def test_shapes_give_the_output_of_a_padded_convolution(tmp_path: Path) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(
        "operation,samples,channels,filters,in_extents,kernel,stride,groups\n"
        "conv,8,3,64,224x224,7x7,2x2,1\n"
        "conv,8,64,64,56x28,3x3,,1\n"
    )
    first, second = read_shapes(path)
    assert first.out_extents == (112, 112)
    assert second == Shape(
        operation="conv",
        samples=8,
        channels=64,
        filters=64,
        in_extents=(56, 28),
        kernel=(3, 3),
        stride=(1, 1),
        groups=1,
    )
    assert second.out_extents == (56, 28)


def test_an_unusable_shape_ends_the_measurement_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(
        "operation,samples,channels,filters,in_extents,kernel,stride,groups\n"
        "conv,8,3,64,224,7x7,2x2,1\n"
    )
    with pytest.raises(SystemExit, match="line 2"):
        read_shapes(path)
