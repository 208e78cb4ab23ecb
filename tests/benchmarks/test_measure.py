"""Measuring local shapes, and listing those that networks need."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.device import measure as measure_device
from benchmarks.device import shapes as measure_shapes
from benchmarks.device.measure import cells_of, read_shapes
from benchmarks.device.passes import OPERATIONS, Shape
from costmodels.cluster import load_cluster
from costmodels.compute import ComputeModel, CostTable, TimeSource, Work
from costmodels.compute.work import DENSE_DIRECTIONS, DENSE_OPERATIONS, MEMORY_DIRECTIONS
from costmodels.layers.local_work import local_work
from planner.planning.options import SearchOptions
from planner.planning.prepare import prepare
from planner.request.request import Request
from planner.request.setting import resolve

SHAPES = (
    Shape(operation="linear", samples=8, channels=16, filters=32),
    Shape(operation="linear", samples=2, channels=16, filters=32, in_extents=(4,)),
    Shape(operation="matmul", samples=4, channels=16, filters=32, in_extents=(8,)),
    *(
        Shape(
            operation="conv",
            samples=2,
            channels=4,
            filters=8,
            in_extents=(9,) * dims,
            kernel=(3,) * dims,
            stride=(2,) * dims,
            groups=groups,
        )
        for dims, groups in ((1, 1), (2, 1), (2, 4), (3, 1))
    ),
    # one row more than symmetric padding can give, and a ceiling
    Shape(
        operation="conv",
        samples=2,
        channels=4,
        filters=8,
        in_extents=(8, 18),
        out_extents=(8, 17),
        kernel=(3, 3),
    ),
    *(
        Shape(
            operation="pool",
            samples=2,
            channels=4,
            filters=4,
            in_extents=(112,) if dims == 1 else (12,) * dims,
            out_extents=(56,) if dims == 1 else (6,) * dims,
            kernel=(3,) * dims,
            stride=(2,) * dims,
        )
        for dims in (1, 2, 3)
    ),
    *(
        Shape(operation=operation, samples=2, channels=4, filters=4, in_extents=extents)
        for operation in ("batch_norm", "layer_norm", "activation", "add")
        for extents in ((), (6,), (6, 5))
    ),
)


def work(shape: Shape, direction: str) -> Work:
    return Work(
        operation=shape.operation,
        direction=direction,
        samples=np.array([float(shape.samples)]),
        channels=np.array([float(shape.channels)]),
        filters=np.array([float(shape.filters)]),
        in_extents=tuple(np.array([float(n)]) for n in shape.in_extents),
        out_extents=tuple(np.array([float(n)]) for n in shape.out_extents),
        kernel=shape.kernel,
        stride=shape.stride,
        groups=np.array([float(shape.groups)]),
    )


def made(shape: Shape) -> tuple[int, ...]:
    """Outputs of the convolution or pooling that is run, by the library's own rule."""
    rows = zip(shape.window_dims, shape.kernel, shape.stride, strict=True)
    return tuple((run + 2 * pad - k) // step + 1 for (pad, run), k, step in rows)


class TestWindows:
    @pytest.mark.parametrize("kernel", range(1, 8))
    @pytest.mark.parametrize("stride", range(1, 4))
    def test_what_is_run_makes_the_outputs_asked_for(self, kernel: int, stride: int) -> None:
        for inputs in range(1, 20):
            for outputs in range(1, 20):
                shape = Shape(
                    operation="pool",
                    samples=1,
                    channels=1,
                    filters=1,
                    in_extents=(inputs,),
                    out_extents=(outputs,),
                    kernel=(kernel,),
                    stride=(stride,),
                )
                ((padding, run),) = shape.window_dims
                assert made(shape) == (outputs,)
                assert 0 <= padding <= kernel // 2
                assert run >= 1

    @pytest.mark.parametrize(
        ("inputs", "outputs", "kernel", "stride", "run"),
        [
            (224, 112, 7, 2, (3, 224)),
            (112, 56, 3, 2, (1, 112)),
            (56, 56, 3, 1, (1, 56)),
            (56, 28, 1, 2, (0, 56)),
            (35, 33, 3, 1, (0, 35)),
            (8, 4, 2, 2, (0, 8)),
            # half of 35 inputs and of 33 outputs: the halo brings the last input
            (18, 17, 3, 1, (0, 19)),
        ],
    )
    def test_padding_is_that_of_the_usual_layers(
        self, inputs: int, outputs: int, kernel: int, stride: int, run: tuple[int, int]
    ) -> None:
        shape = Shape(
            operation="conv",
            samples=1,
            channels=1,
            filters=1,
            in_extents=(inputs,),
            out_extents=(outputs,),
            kernel=(kernel,),
            stride=(stride,),
        )
        assert shape.window_dims == [run]


class TestReading:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "shapes.csv"
        measure_shapes.write_shapes(path, SHAPES)
        assert read_shapes(path) == list(SHAPES)

    @pytest.mark.parametrize(
        "line",
        [
            "softmax,8,4,4,,,,,1",
            "batch_norm,8,4,8,5x5,,,,1",
            "add,8,4,4,5x5,5x6,,,1",
            "activation,8,4,4,5x5,,3x3,,1",
            "conv,8,4,6,5x5,,3x3,,4",
            "conv,8,4,8,5x5,5x0,3x3,,1",
            "pool,8,4,4,5x5,,3x3,2,1",
            "linear,0,4,4,,,,,1",
            "linear,8",
        ],
    )
    def test_a_shape_that_nothing_runs_is_refused(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "shapes.csv"
        path.write_text(",".join(cells_of(SHAPES[0])) + "\n" + line + "\n")
        with pytest.raises(SystemExit, match="line 2"):
            read_shapes(path)

    def test_a_missing_file_ends_in_one_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="check the path"):
            read_shapes(tmp_path / "none.csv")


class TestShapesOfNetworks:
    def test_every_candidate_finds_its_shape(self) -> None:
        setting = resolve(
            Request(source="resnet18", gpus=4, cluster="dgx-h200", global_batch_size=8)
        )
        formulation = prepare(setting, SearchOptions(cap=16)).formulation
        shapes, refused = measure_shapes.distinct(measure_shapes.works(formulation))
        assert refused == 0
        assert len(shapes) == len(set(shapes))
        seen = set()
        for layer in formulation.layers:
            candidates = formulation.spaces[layer.name].candidates
            for index in range(len(candidates)):
                one = candidates.take(np.array([index]))
                for item in local_work(layer, one, "forward"):
                    if item.operation in OPERATIONS:
                        (shape,) = measure_shapes.shapes_of(item)[0]
                        seen.add(shape)
        assert seen == set(shapes)

    def test_parts_of_groups_are_counted_and_left_out(self) -> None:
        split = Work(
            operation="conv",
            direction="forward",
            samples=np.array([1.0, 1.0, 1.0, 0.0]),
            channels=np.array([8.0]),
            filters=np.array([8.0, 6.0, 8.0, 8.0]),
            in_extents=(np.array([5.0]),),
            out_extents=(np.array([5.0]),),
            kernel=(3,),
            groups=4,
        )
        shapes, refused = measure_shapes.shapes_of(split)
        assert [shape.filters for shape in shapes] == [8]
        assert refused == 1

    def test_the_program_writes_what_the_measurement_reads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "shapes.csv"
        options = ["--model", "alexnet", "gpt2", "--gpus", "2", "--batch-per-gpu", "2"]
        monkeypatch.setattr(sys, "argv", ["measure_shapes", str(path), *options])
        measure_shapes.main()
        shapes = read_shapes(path)
        assert f"{len(shapes)} shapes" in capsys.readouterr().out
        wanted = {"conv", "pool", "linear", "layer_norm", "activation", "add"}
        assert {shape.operation for shape in shapes} == wanted


class TestOnTheProcessor:
    def test_every_pass_becomes_an_exact_entry(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("torch")
        monkeypatch.setattr(measure_device, "BATCH_SECONDS", 1e-4)
        path, out = tmp_path / "shapes.csv", tmp_path / "table.csv"
        measure_shapes.write_shapes(path, SHAPES)
        options = ["--device", "cpu", "--precision", "fp32", "--precision", "bf16"]
        monkeypatch.setattr(sys, "argv", ["measure_device", str(path), str(out), *options])
        measure_device.main()
        table = CostTable.load(out)
        assert "wall clock" in table.provenance["method"]
        with out.open(encoding="utf-8", newline="") as file:
            cells = list(csv.DictReader(line for line in file if not line.startswith("#")))
        assert len(table) == len(cells)
        device = load_cluster("dgx-h200").device
        for precision in ("fp32", "bf16"):
            model = ComputeModel(device, precision, tables=(table,))
            for shape in SHAPES:
                dense = shape.operation in DENSE_OPERATIONS
                for direction in DENSE_DIRECTIONS if dense else MEMORY_DIRECTIONS:
                    seconds, sources = model.time(work(shape, direction))
                    assert sources.tolist() == [TimeSource.TABLE], (shape, direction, precision)
                    assert math.isfinite(seconds[0])

    def test_tf32_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        options = ["--device", "cpu", "--precision", "tf32"]
        monkeypatch.setattr(sys, "argv", ["measure_device", "a", str(tmp_path / "b"), *options])
        with pytest.raises(SystemExit, match="not in tf32"):
            measure_device.main()
