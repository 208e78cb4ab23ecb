"""What is run for each local shape, and that what is measured of it is found again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch_extra import require

require("torch")

import torch

from costmodels.cluster import load_cluster
from costmodels.compute import ComputeModel, CostTable, TimeSource
from costmodels.compute.work import directions_of
from costmodels.errors import InputError
from planner.tables.profile.passes import calls_of
from planner.tables.profile.place import find_place, use_precision
from planner.tables.profile.shape import ALIKE, Shape
from planner.tables.profile.store import open_profile
from planner.tables.profile.timing import Timing, time_call

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
        for operation in (*ALIKE[:-1], "global_pool")
        for extents in ((), (6,), (6, 5))
        if extents or operation != "global_pool"
    ),
    *(
        Shape(
            operation="pad",
            samples=2,
            channels=4,
            filters=4,
            in_extents=(6,) * dims,
            out_extents=(8,) * (dims - 1) + (7,),
        )
        for dims in (1, 2, 3)
    ),
    Shape(operation="linear", samples=6, channels=8, filters=12, groups=4),
    Shape(
        operation="attention",
        samples=8,
        channels=4,
        filters=6,
        in_extents=(6,),
        groups=2,
        visible=7 / 12,
    ),
    Shape(operation="sgd_update", samples=10, channels=1, filters=1),
    Shape(operation="adam_update", samples=10, channels=1, filters=1),
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


REFUSED = (
    {"operation": "concat", "samples": 8, "channels": 4, "filters": 4},
    {"operation": "batch_norm", "samples": 8, "channels": 4, "filters": 8, "in_extents": (5, 5)},
    {"operation": "conv", "samples": 8, "channels": 4, "filters": 6, "groups": 4},
    {"operation": "linear", "samples": 8, "channels": 4, "filters": 6, "kernel": (3, 3)},
    {"operation": "pool", "samples": 8, "channels": 4, "filters": 4, "in_extents": (5,)},
    {
        "operation": "pad",
        "samples": 8,
        "channels": 4,
        "filters": 4,
        "in_extents": (5,),
        "out_extents": (4,),
    },
    {
        "operation": "attention",
        "samples": 8,
        "channels": 4,
        "filters": 4,
        "in_extents": (8,),
        "visible": 0.3,
    },
)


@pytest.mark.parametrize("options", REFUSED)
def test_a_shape_that_nothing_runs_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Shape(**options)


class TestOnTheProcessor:
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_every_pass_becomes_an_exact_entry(self, tmp_path: Path, precision: str) -> None:
        place = find_place("cpu", 1)
        profile = open_profile(str(tmp_path / "table.json"), place.provenance)
        dtype = use_precision(precision)
        with torch.no_grad():
            for shape in SHAPES:
                for direction, call in calls_of(torch, shape, dtype, "cpu").items():
                    timing = time_call(call, place.batch, 1e-5)
                    profile.times[shape, precision, direction] = timing
        profile.save()
        table = CostTable.load(profile.path)
        assert table.provenance["threads"] == str(torch.get_num_threads())
        model = ComputeModel(load_cluster("dgx-h200").device, precision, tables=(table,))
        for shape in SHAPES:
            directions = directions_of(shape.operation)
            if shape.operation.endswith(("_update", "pad")):
                directions = ("forward",)
            for direction in directions:
                seconds, sources = model.time(shape.work(direction))
                assert sources.tolist() == [TimeSource.TABLE], (shape, direction)
                assert math.isfinite(seconds[0])

    def test_what_was_measured_is_what_is_read_again(self, tmp_path: Path) -> None:
        place = find_place("cpu", 1)
        profile = open_profile(str(tmp_path / "table.json"), place.provenance)
        profile.times = {
            (shape, "fp32", "forward"): Timing(seconds=0.25 + n, spread=0.5)
            for n, shape in enumerate(SHAPES)
        }
        profile.left_out[SHAPES[0], "bf16"] = "out of memory"
        profile.save()
        again = open_profile(profile.path, place.provenance)
        assert again.times == profile.times
        assert again.left_out == profile.left_out
        assert again.text() == profile.text()

    def test_a_block_lies_in_the_middle_of_its_room(self) -> None:
        shape = Shape(
            operation="pad",
            samples=2,
            channels=3,
            filters=3,
            in_extents=(4, 5),
            out_extents=(6, 5),
        )
        padded = calls_of(torch, shape, torch.float32, "cpu")["forward"]()
        assert tuple(padded.shape) == (2, 3, 6, 5)
        assert calls_of(torch, shape, torch.float32, "cpu").keys() == {"forward"}

    def test_groups_are_products_of_their_own(self) -> None:
        shape = Shape(operation="linear", samples=5, channels=8, filters=12, groups=4)
        calls = calls_of(torch, shape, torch.float32, "cpu")
        assert tuple(calls["forward"]().shape) == (4, 5, 3)
        assert tuple(calls["backward_data"]().shape) == (4, 5, 2)
        assert tuple(calls["backward_weight"]().shape) == (4, 3, 2)

    def test_attention_backward_is_that_of_its_forward(self) -> None:
        shape = Shape(
            operation="attention",
            samples=8,
            channels=4,
            filters=4,
            in_extents=(6,),
            groups=2,
            visible=7 / 12,
        )
        with torch.no_grad():
            calls = calls_of(torch, shape, torch.float32, "cpu")
            gradients = calls["backward"]()
        assert [tuple(one.shape) for one in gradients] == [
            (1, 8, 6, 4),
            (1, 4, 6, 4),
            (1, 4, 6, 4),
        ]

    def test_a_profile_of_a_shape_that_nothing_runs_is_refused(self, tmp_path: Path) -> None:
        place = find_place("cpu", 1)
        profile = open_profile(str(tmp_path / "table.json"), place.provenance)
        for shape in (SHAPES[0], Shape(operation="linear", samples=6, channels=8, filters=12)):
            profile.times[shape, "fp32", "forward"] = Timing(seconds=0.25, spread=0.5)
        profile.save()
        document = json.loads(Path(profile.path).read_text())
        document["rows"][1][document["columns"].index("groups")] = 5
        Path(profile.path).write_text(json.dumps(document))
        with pytest.raises(InputError, match=r"row 2 of .*table.json is of 5 groups that divide"):
            open_profile(profile.path, place.provenance)
