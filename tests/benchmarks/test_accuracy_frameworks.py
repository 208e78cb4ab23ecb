"""What ran a measured row: framework, fusion, layout, launches; and what rows are aimed at."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.aims import aim_rows, cause_of, cause_rows
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.machines import read_words
from benchmarks.accuracy.rows import described_row
from benchmarks.accuracy.words import framework_of
from costmodels.simulation import load_runtime

ROW = {
    "source": "somebody",
    "model": "ResNet-50",
    "gpu": "V100 16GB",
    "gpus": "1",
    "framework": "PyTorch 1.12",
    "strategy": "dp",
    "precision": "amp",
    "batch_per_gpu": "128",
    "metric": "throughput",
    "value": "800",
    "unit": "images/s",
}


@pytest.mark.parametrize(
    ("changes", "fuses", "channels_last"),
    [
        ({}, (), False),
        ({"framework": "PyTorch 1.12 nhwc"}, (), True),
        ({"framework": "NGC MXNet 21.05 , NGC PyTorch 21.05"}, ("activation", "add"), True),
        ({"framework": "NGC MXNet", "precision": "fp32"}, (), True),
        ({"framework": "MXNet 1.6 gluon-cv Horovod"}, (), False),
        ({"framework": "OneFlow 0.2.0"}, ("activation", "add"), True),
        ({"framework": "TensorFlow 2.3"}, (), True),
        ({"framework": "tf_cnn_benchmarks TF1.15 XLA"}, ("activation", "add", "bias"), True),
        ({"framework": "TensorFlow 1.15", "notes": "batch 224 & without xla"}, (), True),
        (
            {"framework": "TensorFlow 1.15", "notes": "batch 224 & with xla", "precision": "fp32"},
            ("activation", "add", "bias"),
            True,
        ),
    ],
)
def test_frameworks_fuse_and_lay_out_as_they_do(changes, fuses, channels_last) -> None:
    row = described_row({**ROW, **changes})
    assert row.runtime.fusions(row.precision) == fuses
    assert row.runtime.channels_last is channels_last


def test_a_row_is_calibrated_by_its_own_framework_layout_and_fusion_only() -> None:
    families = {
        described_row({**ROW, "framework": name}).family
        for name in ("PyTorch 1.12", "PyTorch nhwc", "NGC MXNet", "TensorFlow 2", "TF 2 XLA")
    }
    assert len(families) == 5


def test_launches_are_those_of_the_framework() -> None:
    assert described_row(ROW).runtime.launch_time == load_runtime("ddp").launch_time
    assert described_row({**ROW, "framework": "NGC MXNet"}).runtime.launch_time == 0.0
    name, changes = framework_of("something new", "something new")
    assert (name, changes) == ("something new", ())


def test_detectors_of_nvidia_are_captured_since_mlperf_1() -> None:
    lists = "NGC MXNet 22.05 , NGC PyTorch 22.05 , NGC TensorFlow 22.05-tf1"
    row = {**ROW, "model": "Mask R-CNN R50-FPN", "framework": lists}
    late = described_row({**row, "source": "MLPerf Training v2.0 somebody"})
    early = described_row({**row, "source": "MLPerf Training v0.7 x", "framework": "PyTorch"})
    assert late.runtime.launch_time == 0.0 < early.runtime.launch_time
    assert late.runtime.fusions("fp16") == early.runtime.fusions("fp16") == ("activation",)
    assert late.run.options["input_size"] == 1088
    other = described_row({**row, "framework": "TensorFlow2 (Horovod)"})
    assert other.run.options["input_size"] == 1344


def test_one_process_for_all_gpus_is_a_runtime() -> None:
    strategy = "dp nn.DataParallel (single process scatter/gather)"
    row = described_row({**ROW, "gpus": "4", "strategy": strategy, "interconnect": "NVLink"})
    assert row.runtime.name == "data-parallel"
    assert row.runtime.one_process


def test_rows_that_gave_a_constant_enter_no_score() -> None:
    row = {
        **ROW,
        "source": "ryujaehun/pytorch-gpu-benchmark results",
        "model": "mobilenet_v2",
        "gpu": "A100-SXM4-40GB",
    }
    assert "launch time" in described_row(row).doubt
    assert not described_row({**row, "gpu": "GeForce RTX 2080 Ti"}).doubt


def test_libraries_older_than_the_gpu_know_no_tf32() -> None:
    old = {**ROW, "gpu": "A100 SXM4 40GB", "framework": "tf_cnn_benchmarks", "notes": "TF2_3"}
    assert described_row({**old, "precision": "tf32/fp32"}).precision == "fp32"
    assert "older than the GPU" in described_row({**old, "precision": "fp16"}).doubt
    assert described_row({**old, "gpu": "V100 16GB", "precision": "fp16"}).doubt == ""


def test_the_size_of_images_may_be_stated() -> None:
    row = described_row({**ROW, "model": "efficientnet_b4", "notes": "img 320; layout nhwc"})
    assert row.run.options["input_size"] == 320


def cell(kind: str, predicted: float, label: str = "resnet50") -> Cell:
    return Cell(
        group="", label=label, kind=kind, gpus=2, measured=1.0, predicted=predicted, parts={}
    )


def test_aims_tell_rows_with_a_row_on_one_gpu_from_others() -> None:
    cells = [cell("calibrated", 1.04), cell("one GPU", 0.8), cell("not calibrated", 1.02)]
    own, rest, near = aim_rows(cells)
    assert own[1:] == ("1", "4.0%", "at most 6%", "met")
    assert rest[1:] == ("2", "11.0%", "at most 10%", "missed")
    assert near[1:] == ("3", "66.7%", "at least 92%", "missed")
    ((count, mean, cause),) = cause_rows(cells)
    assert (count, mean) == ("1", "-20.0%")
    assert cause == "not known"


def test_every_cause_can_be_met_and_says_something() -> None:
    causes = read_words("causes")["causes"]
    assert len({entry["cause"] for entry in causes}) == len(causes)
    assert "grouped" in cause_of("ResNeXt101-32x4d, 8 x V100", 8)
