"""Rows of sources, machines and networks that nobody has seen, in the spellings that people use."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.accuracy.factors import StepTimes
from benchmarks.accuracy.machines import device_named, row_cluster
from benchmarks.accuracy.measured import RowQuestion, compare_rows
from benchmarks.accuracy.rows import (
    COLUMNS,
    TWICE,
    MeasuredRow,
    Skip,
    described_row,
    network_named,
    precision_of,
    read_rows,
    runtime_of,
)
from costmodels.cluster import Level, load_cluster, load_device

USUAL = {
    "source": "A laboratory of ours, 2024",
    "model": "ResNet50_v1.5",
    "gpu": "Tesla V100-SXM2-16GB",
    "gpus": "8",
    "gpus_per_node": "8",
    "framework": "PyTorch 2.1",
    "strategy": "DistributedDataParallel",
    "precision": "float32",
    "batch_per_gpu": "64",
    "metric": "throughput",
    "value": "2800",
    "unit": "images/s",
}


def line(**values: str) -> dict[str, str]:
    return {name: {**USUAL, **values}.get(name, "") for name in COLUMNS}


def described(**values: str) -> MeasuredRow:
    return described_row(line(**values))


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("ResNet-50", "resnet50"),
        ("resnet 101 (v1.5)", "resnet101"),
        ("resnet_v1_152", "resnet152"),
        ("Inception V3", "inception_v3"),
        ("inception-v3", "inception_v3"),
        ("GoogLeNet", "googlenet"),
        ("VGG-16", "vgg16"),
        ("DenseNet-121", "densenet121"),
        ("MobileNet v2", "mobilenet_v2"),
        ("EfficientNet-B0", "efficientnet_b0"),
        ("U-Net", "unet"),
        ("ResNet-50d", ""),
        ("ResNeXt-50", ""),
        ("Mask R-CNN R50-FPN", "mask_rcnn_resnet50"),
        ("Mask R-CNN ResNet-101", ""),
        ("RetinaNet (ResNeXt50, OpenImages 800x800)", "retinanet_resnext50_32x4d"),
        ("EfficientDet-D0", "efficientdet_d0"),
        ("SSD300 ResNet-50", "ssd300_resnet50"),
        ("nnU-Net dim 2", "nnunet-2d"),
        ("nnU-Net 3D", "nnunet-3d"),
        ("V-Net", "vnet"),
        ("EfficientNet v2-S", "efficientnet_v2_s"),
        ("BERT-Large", ""),
    ],
)
def test_networks_by_their_usual_names(text: str, network: str) -> None:
    assert network_named(text)[0] == network


def test_what_the_code_that_ran_says_completes_a_row() -> None:
    row = described(source="HKBU-HPML/ddl-benchmarks results", model="BERT-Large")
    assert (row.run.model, row.run.options["input_size"]) == ("bert-large", 64)
    assert row.run.options["optimizer"] == "adam"


def test_rows_of_other_image_sizes_are_predicted_anew() -> None:
    steps = StepTimes()
    alone = {"gpus": "1", "batch_per_gpu": "64"}
    small, large = (described(notes=f"img {size}", **alone) for size in (128, 256))
    assert steps.seconds(large) > 1.5 * steps.seconds(small)


def test_cards_that_reach_each_other_are_faster_than_through_the_memory_of_the_host() -> None:
    def bandwidth(gpu: str) -> float:
        return described(gpu=gpu, gpus="8", interconnect="PCIe").cluster.levels[0].bandwidth

    assert bandwidth("Quadro RTX 8000") > 1.5 * bandwidth("GeForce RTX 2080 Ti")
    assert bandwidth("GeForce RTX 3090") == bandwidth("GeForce RTX 2080 Ti")


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("GeForce RTX 2080 Super with Max-Q Design", "2080-super-max-q"),
        ("GeForce RTX 2080 with Max-Q Design", "2080-max-q"),
        ("GeForce RTX 2080 Ti", "2080ti"),
        ("GeForce RTX 2080", "2080"),
        ("RTX 2070 Super", ""),
        ("GTX 1080", "1080"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", ""),
        ("TITAN V", "titanv"),
        ("NVIDIA Tesla V100", "v100-16gb"),
        ("NVIDIA A100-SXM4-80GB (400W)", "a100-80gb"),
        ("A100", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H200 SXM", "h200"),
        ("Tesla T4", "t4"),
        ("NVIDIA TITAN Xp", "titanxp"),
        ("Quadro RTX 6000", "rtx8000"),
        ("GeForce RTX 2080Ti", "2080ti"),
        ("NVIDIA RTX A6000", "a6000"),
        ("p100", "p100"),
        ("RTX 6000 Ada", "rtx6000-ada"),
        ("GeForce RTX 2080 Super", ""),
        ("GTX 1080 Ti", "1080ti"),
        ("NVIDIA A10", "a10"),
        ("H100 PCIe", "h100-pcie"),
        ("Radeon VII", ""),
    ],
)
def test_devices_by_their_usual_names(text: str, device: str) -> None:
    assert device_named(text) == device


@pytest.mark.parametrize(
    ("text", "device", "precision"),
    [
        ("mixed precision", "v100-16gb", "fp16"),
        ("bfloat16", "a100-40gb", "bf16"),
        ("bf16 (AMP)", "a100-40gb", "bf16"),
        ("float32", "v100-16gb", "fp32"),
        ("FP32", "a100-40gb", "tf32"),
    ],
)
def test_precisions_by_their_usual_names(text: str, device: str, precision: str) -> None:
    assert precision_of(text, load_device(device)) == precision


def levels(gpu: str, links: str, gpus: int, per_host: int) -> tuple[Level, ...]:
    return row_cluster(gpu, links, gpus, per_host).levels


def test_cards_say_how_they_are_joined() -> None:
    nvlink = load_cluster("dgx-a100").levels[0].bandwidth
    ports = load_cluster("titanxp-pcie").levels[1].bandwidth
    assert levels("A100-SXM4-40GB", "", 8, 8)[0].bandwidth == nvlink
    assert levels("A100", "", 8, 8)[0].bandwidth == nvlink  # usual
    assert levels("A100 PCIe 40GB", "PCIe or NVLink, not stated", 8, 8)[0].bandwidth == ports
    memory = load_cluster("hkbu-10gbe").levels[0].bandwidth
    assert levels("RTX 3090", "", 4, 4)[0].bandwidth == memory  # usual
    bridged = levels("A100-PCIE-80GB", "NVLink bridge", 4, 4)
    assert [level.size for level in bridged] == [2, 2]
    assert levels("V100 SXM3 32GB", "NVSwitch", 16, 16)[0].peer_links is None


def test_a_ring_crosses_the_slots_of_bridged_cards_one_way() -> None:
    """It enters a pair by one card and leaves it by the other."""
    host = load_cluster("hkbu-10gbe").levels[0]
    assert host.one_way_bandwidth is not None
    assert host.one_way_bandwidth > 2.0 * host.bandwidth
    pair, between = levels("GeForce RTX 2080 Ti", "NVLink bridge", 8, 8)
    assert (pair.size, between.size) == (2, 4)
    assert between.bandwidth == host.one_way_bandwidth
    assert levels("GeForce RTX 2080 Ti", "PCIe", 8, 8)[0].bandwidth == host.bandwidth
    # cards that reach each other's memory send and receive at once
    ports = load_cluster("titanxp-pcie").levels[1]
    assert levels("Quadro RTX 8000", "NVLink bridge", 4, 4)[1].bandwidth == ports.bandwidth


def test_mirrored_strategies_reduce_all_gradients_at_once() -> None:
    mirrored, _ = runtime_of("dp allreduce", "TensorFlow 2.3 MultiWorkerMirrored", 2)
    assert not mirrored.overlap
    assert mirrored.bucket is not None
    assert mirrored.bucket > 1e15
    assert runtime_of("dp allreduce", "PyTorch DDP", 2)[0].overlap


def test_links_between_hosts_by_technology_rate_and_number() -> None:
    def network(links: str, gpu: str = "A100-SXM4-80GB") -> tuple[float, int]:
        level = levels(gpu, links, 16, 8)[-1]
        return level.bandwidth, level.links

    edr, hdr, ndr = (
        load_cluster(name).levels[-1].bandwidth for name in ("dgx1-v100", "dgx-a100", "dgx-h100")
    )
    assert network("NVLink3 + 8x InfiniBand HDR 200 Gb/s") == (hdr, 8)
    assert network("NVSwitch / 1x ConnectX-5 IB EDR 100Gb/Sec") == (edr, 1)
    assert network("NVSwitch; 100 Gbps RoCEv2") == (edr, 1)
    assert network("NVSwitch + RoCE 16x100GbE") == (edr, 16)
    assert network("NVLink + 4x NDR 400Gb/s", "H100 SXM5") == (ndr, 4)
    # adapters of reference machines, where only the technology is named, or storage
    assert network("DGX A100 + InfiniBand") == (hdr, 8)
    assert network("NVSwitch / Storage: 2x ConnectX-6 IB HDR 200Gb/sec") == (hdr, 8)
    assert network("NVLink2 / InfiniBand EDR", "V100 SXM2") == (edr, 4)
    assert network("NVLink2 + Omni-Path 100 Gb/s") == (edr, 1)
    assert network("NVLink2 + Omni-Path", "V100 SXM2") == (edr, 4)
    efa = load_cluster("aws-p4de.24xlarge").levels[-1].bandwidth
    assert network("NVSwitch + 4x 100 Gb/s EFA") == (efa, 4)
    assert network("", "V100 (p3dn.24xlarge)") == (efa, 1)
    tcp = load_cluster("hkbu-10gbe").levels[-1].bandwidth
    assert network("NVLink2", "V100 16GB (p3.16xlarge)") == (2.5 * tcp, 1)
    assert network("NVLink + 10GbE") == (tcp, 1)
    assert network("NVLink; 20 Gbps TCP") == (2 * tcp, 1)


@pytest.mark.parametrize(
    ("strategy", "framework", "runtime", "gradient"),
    [
        ("", "PyTorch", "ddp", "all_reduce"),
        ("data parallel", "TensorFlow + Horovod 0.24", "horovod", "all_reduce"),
        ("Horovod", "PyTorch", "horovod", "all_reduce"),
        ("MirroredStrategy", "TensorFlow 2.4", "ddp", "all_reduce"),
        ("FSDP", "PyTorch 2", "fsdp", "reduce_scatter"),
        ("ZeRO stage 2", "DeepSpeed", "zero2", "reduce_scatter"),
        ("dp parameter_server", "TensorFlow 1.4", "tf-parameter-server", "push_pull"),
        ("asynchronous parameter server", "MXNet", "ps-async", "push_pull"),
    ],
)
def test_schedules_by_their_usual_names(
    strategy: str, framework: str, runtime: str, gradient: str
) -> None:
    found, _ = runtime_of(strategy, framework, 2)
    assert (found.name, found.gradient) == (runtime, gradient)


def test_hosts_are_of_the_usual_size_where_a_row_does_not_say() -> None:
    row = described(gpus="32", gpus_per_node="", interconnect="NVLink, InfiniBand EDR 100 Gb/s")
    assert row.cluster.shape(32) == (8, 4)
    assert row.batch == 32 * 64


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({"value": "2560"}, 0.2),
        ({"value": "320", "unit": "images/s/GPU"}, 0.2),
        ({"metric": "throughput_per_gpu", "value": "320"}, 0.2),
        ({"metric": "iteration_time", "value": "200", "unit": "ms"}, 0.2),
        ({"metric": "step_time_median", "value": "0.2", "unit": "s"}, 0.2),
        ({"metric": "epoch_time", "value": str(0.2 * 1_281_167 / 512), "unit": "s"}, 0.2),
    ],
)
def test_times_of_a_step_from_what_was_published(values: dict[str, str], seconds: float) -> None:
    assert described(**values).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model": "BERT-Large"}, "no built-in network BERT-Large"),
        ({"gpu": "GTX 1070"}, "no built-in device GTX 1070"),
        ({"gpus": ""}, "number of GPUs or batch not stated"),
        ({"batch_per_gpu": ""}, "number of GPUs or batch not stated"),
        ({"gpus": "some"}, "column gpus is no number"),
        ({"precision": "?"}, "precision not stated"),
        ({"value": "fast"}, "value is no number"),
        ({"value": "0"}, "not above zero"),
        ({"unit": "tokens/s"}, "counted in tokens"),
        ({"metric": "scaling_efficiency"}, "no time of a step"),
        ({"metric": "epoch_time_median (train+eval)"}, "no time of a step"),
        ({"gpu": "RTX 3090", "gpus": "16"}, "links between hosts are not stated"),
        ({"gpus": "16", "interconnect": "NVLink / 1Gb Ethernet"}, "only a network for management"),
        ({"gpus": "12"}, "number of GPUs must"),
    ],
)
def test_rows_are_left_out_for_what_their_columns_say(values: dict[str, str], reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        described(**values)


def test_a_measurement_at_two_addresses_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows([line(url="here"), line(url="there"), line(url="there", value="371")])
    assert [row.doubt for row in read_rows([path]).rows] == ["", TWICE, ""]


def test_rows_without_a_sample_for_each_gpu_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerow(line(global_batch="3", batch_per_gpu=""))
    found = compare_rows([path])
    assert not found.tables
    (reason,) = found.left_out
    assert "3 sample positions, fewer than" in reason


def test_an_unknown_source_is_predicted_whole(tmp_path: Path) -> None:
    alone = {"gpus": "1", "gpus_per_node": "1", "value": "370", "strategy": "single"}
    unknown = [
        line(),
        line(**alone),
        line(gpus="16", value="5400", interconnect="DGX-1 + InfiniBand"),
        line(model="AlexNet", gpu="NVIDIA A100-PCIE-40GB", gpus="2", value="9000"),
        line(model="Mask R-CNN"),
    ]
    for place, path in enumerate((tmp_path / "a.csv", tmp_path / "b.csv")):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(unknown[2 * place : 2 * place + 2 + place])
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert len(read_rows(files).rows) == 4
    for model in ("simulate", "timeline"):
        found = compare_rows(files, RowQuestion(model=model, alone=True))
        (table,) = found.tables
        kinds = sorted(cell.kind for cell in table.cells)
        assert kinds == ["calibrated", "calibrated", "not calibrated", "one GPU"]
        assert all(cell.predicted != cell.measured for cell in table.cells)
        assert all(abs(c.error) < 0.6 for c in table.cells if c.kind != "not calibrated")
        assert found.left_out == {"no built-in network Mask R-CNN": 1}
