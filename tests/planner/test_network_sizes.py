"""Published parameter counts of the built-in networks."""

from __future__ import annotations

import pytest

from costmodels.graph import build_graph
from planner.models import detection, load_network
from planner.models.efficientdet import CELLS

# torchvision's and timm's model pages
PARAMETERS = {
    "resnext50_32x4d": 25_028_904,
    "resnext101_32x4d": 44_177_704,
    "resnext101_32x8d": 88_791_336,
    "wide_resnet50_2": 68_883_240,
    "wide_resnet101_2": 126_886_696,
    "seresnext50_32x4d": 27_559_896,
    "seresnext101_32x4d": 48_955_416,
    "mnasnet1_0": 4_383_312,
    "efficientnet_b1": 7_794_184,
    "efficientnet_b2": 9_109_994,
    "efficientnet_b3": 12_233_232,
    "efficientnet_b4": 19_341_616,
    "efficientnet_b5": 30_389_784,
    "efficientnet_b6": 43_040_704,
    "efficientnet_b7": 66_347_960,
    "efficientnet_v2_s": 21_458_488,
    "inception_v4": 42_679_816,
    "squeezenet1_0": 1_248_424,
    "squeezenet1_1": 1_235_496,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameters_are_those_published(name: str, parameters: int) -> None:
    assert build_graph(load_network(name, None), 1).parameters == parameters


# conv1 and the first stage of ResNet-50, which detectors do not train
FROZEN = 64 * 3 * 49 + 3 * (64 * 64 * 9 + 64 * 256) + 2 * 256 * 64 + 64 * 64 + 64 * 256


def test_retinanet_is_that_of_torchvision() -> None:
    """retinanet_resnet50_fpn: 34,014,999 parameters and 151.54 GFLOPS at 800 x 800."""
    graph = build_graph(detection.retinanet("resnet50", 800, classes=91), 1)
    assert graph.parameters + FROZEN == 34_014_999
    assert graph.macs / 1e9 == pytest.approx(151.54, abs=0.005)


def test_mask_rcnn_is_that_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """maskrcnn_resnet50_fpn: 44,401,393 parameters, and 134.38 GFLOPS without any object.

    What is published is inference at 800 x 800, of 1000 proposals.
    """
    monkeypatch.setitem(detection.SIZES, 800, (800, 800))
    monkeypatch.setattr(detection, "REGIONS", 1000)
    graph = build_graph(detection.mask_rcnn(800, classes=91), 1)
    assert graph.parameters + FROZEN == 44_401_393
    masks = sum(layer.macs for name, layer in graph.layers.items() if name.startswith("mask."))
    assert (graph.macs - masks) / 1e9 == pytest.approx(134.38, abs=0.005)


def test_efficientdet_is_the_published_one() -> None:
    """D0 has 3.9 M parameters and 2.5 G multiply-adds (Tan et al. 2020, Table 2)."""
    graph = build_graph(load_network("efficientdet_d0", None), 1)
    # the authors' code has 3,880,067 with the weights of its sums: 19 a pass of the pyramid
    assert graph.parameters == 3_880_067 - 19 * CELLS
    assert graph.macs / 1e9 == pytest.approx(2.5, abs=0.05)


def test_no_gradient_goes_where_nothing_is_trained() -> None:
    graph = build_graph(load_network("mask_rcnn_resnet50", 1088), 1)
    assert graph.input_gradients("layer1.2.relu") == (False,)
    assert graph.input_gradients("layer2.0.conv1") == (False,)
    assert graph.input_gradients("layer2.0.bn1") == (True,)
    frozen, trained = graph.layers["layer1.0.conv2"], graph.layers["layer2.0.conv2"]
    assert (frozen.parameters, frozen.frozen_parameters) == (0, 64 * 64 * 9)
    assert not frozen.keeps_inputs
    assert trained.parameters == 128 * 128 * 9
    assert frozen.macs > 0


def test_regions_are_samples_of_the_heads() -> None:
    graph = build_graph(load_network("mask_rcnn_resnet50", 1088), 2)
    assert graph.layers["box.fc6"].dims == {"sample": 1024, "filter": 1024, "channel": 12544}
    assert graph.layers["mask.out"].output.extent("height") == 28
    regions = graph.layers["box.roi_align"]
    assert regions.splittable == {"sample"}
    assert [t.extent("width") for t in regions.inputs] == [272, 136, 68, 34]
    assert all(t.extent("sample") == 2 for t in regions.inputs)


def test_feature_maps_of_ssd_have_the_published_extents() -> None:
    for depth in (34, 50):
        graph = build_graph(load_network(f"ssd300_resnet{depth}", None), 1)
        extents = [graph.layers[f"conf.{i}"].output.extent("height") for i in range(6)]
        assert extents == [38, 19, 10, 5, 3, 1]
        boxes = sum(graph.layers[f"loc.{i}"].output.size // 4 for i in range(6))
        assert boxes == 8732


def test_a_volume_comes_back_from_the_3d_unet_at_its_own_size() -> None:
    graph = build_graph(load_network("unet3d", 64), 2)
    assert graph.layers["out"].output.extent("depth") == 64
    assert graph.layers["down5.2.conv"].output.extent("depth") == 2


def test_nnunet_and_vnet_give_classes_at_the_size_of_their_input() -> None:
    for name, dims in (
        ("nnunet-2d", {"height": 192, "width": 160}),
        ("nnunet-3d", {"depth": 128, "height": 128, "width": 128}),
        ("vnet", {"depth": 32, "height": 32, "width": 32}),
    ):
        out = build_graph(load_network(name, None), 1).layers["out"].output
        assert {dim: out.extent(dim) for dim in dims} == dims


def test_nnunet_in_two_dims_halves_slices_five_times() -> None:
    out = build_graph(load_network("nnunet-2d", None), 1).layers["down5.2.conv"].output
    assert (out.extent("height"), out.extent("width")) == (6, 5)


def test_vnet_has_the_parameters_of_its_convolutions() -> None:
    # 3^3 convolutions from a to b channels with a bias and batch norm; 2^3 ones between levels
    def conv(a: int, b: int, kernel: int) -> int:
        return a * b * kernel**3 + b + 2 * b

    wanted = conv(1, 16, 3) + (16 * 3 * 27 + 3)
    for a, b in ((16, 32), (32, 64), (64, 128)):
        wanted += conv(a, b, 2) + 3 * conv(b, b, 3)
    for a, b in ((128, 64), (128, 32)):
        wanted += conv(a, b, 2) + 3 * conv(2 * b, 2 * b, 3)
    wanted += conv(64, 16, 2)
    assert build_graph(load_network("vnet", None), 1).parameters == wanted
