"""RetinaNet and Mask R-CNN: heads on a pyramid of feature maps of a ResNet (FPN).

The heads of a pyramid are the same for all of its maps and share their weights. Normalisation, the
stem and the first stage of the ResNet are frozen, as in the reference implementations. What is no
layer is left out: matching boxes to objects, the choice of proposals, losses.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.graph import Network
from planner.models.builder import Builder, image_builder
from planner.models.resnet import VARIANTS, add_stages

RETINANET_SOURCE = (
    'Lin et al. 2017, "Focal Loss for Dense Object Detection", as MLPerf Training trains it on '
    "OpenImages (single_stage_detector)"
)
MASK_RCNN_SOURCE = (
    'He et al. 2017, "Mask R-CNN", with the pyramid of Lin et al. 2017, as implemented in NVIDIA '
    "DeepLearningExamples (PyTorch and TensorFlow2/Segmentation/MaskRCNN)"
)
NOTES = "Without boxes and losses, which are no layers; the stem and the first stage are frozen."
PYRAMID, ANCHORS, OPEN_IMAGES_CLASSES = 256, 9, 264
# Mask R-CNN: pixels by the longer side. 832 x 1344 is what the TensorFlow code pads all images of
# COCO to; of the usual 480 x 640 its shorter side of 800 makes 800 x 1067, padded by 32.
SIZES = {1344: (832, 1344), 1088: (800, 1088)}
# Regions of an image that train the heads, of which a quarter at most show objects.
REGIONS, OBJECTS, COCO_CLASSES = 512, 128, 81


def _biased_conv(
    net: Builder, name: str, *inputs: str, filters: int, kernel: int, **more: object
) -> str:
    return net.add(
        name,
        "conv",
        *inputs,
        filters=filters,
        kernel=kernel,
        padding=kernel // 2,
        bias=True,
        **more,
    )


def feature_pyramid(net: Builder, stages: Sequence[str]) -> list[str]:
    """One map of `PYRAMID` channels for each stage, the finest first (Lin et al. 2017).

    Parameters
    ----------
    net
        The network, which gets the layers.
    stages
        Last layers of stages, each at half the extents of the one before.
    """
    maps: list[str] = []
    above = ""
    for level in reversed(range(len(stages))):
        inner = _biased_conv(net, f"fpn.inner.{level}", stages[level], filters=PYRAMID, kernel=1)
        if above:
            larger = net.add(f"fpn.upsample.{level}", "upsample", above, factor=2)
            inner = net.add(f"fpn.add.{level}", "add", inner, larger)
        above = inner
        maps.append(_biased_conv(net, f"fpn.layer.{level}", inner, filters=PYRAMID, kernel=3))
    return maps[::-1]


def _shared_conv(
    net: Builder, name: str, level: int, *inputs: str, filters: int, kernel: int = 3
) -> str:
    """A convolution whose weights all levels of the pyramid share."""
    share = {"share": f"{name}.0"} if level else {}
    return _biased_conv(net, f"{name}.{level}", *inputs, filters=filters, kernel=kernel, **share)


def retinanet(backbone: str, size: int, classes: int = OPEN_IMAGES_CLASSES) -> Network:
    """RetinaNet on a ResNet.

    Parameters
    ----------
    backbone
        One of `VARIANTS`.
    size
        Pixels a side.
    classes
        Of objects. [items]
    """
    net = image_builder(size)
    stages = add_stages(net, replace(VARIANTS[backbone], norm="affine", frozen=True), (1, 2, 2, 2))
    maps = feature_pyramid(net, stages[1:])
    maps.append(_biased_conv(net, "fpn.p6", maps[-1], filters=PYRAMID, kernel=3, stride=2))
    net.add("fpn.p6.relu", "activation")
    maps.append(_biased_conv(net, "fpn.p7", filters=PYRAMID, kernel=3, stride=2))
    for level, features in enumerate(maps):
        for head, numbers in (("classes", classes), ("boxes", 4)):
            last = features
            for place in range(4):
                _shared_conv(net, f"{head}.{place}", level, last, filters=PYRAMID)
                last = net.add(f"{head}.{place}.relu.{level}", "activation")
            _shared_conv(net, f"{head}.out", level, last, filters=ANCHORS * numbers)
    name = f"retinanet_{backbone}"
    return net.network(name, source=RETINANET_SOURCE, notes=NOTES)


def _proposals(net: Builder, maps: Sequence[str]) -> None:
    """Where objects may be: three boxes at each position of each map."""
    for level, features in enumerate(maps):
        _shared_conv(net, "rpn.conv", level, features, filters=PYRAMID)
        shared = net.add(f"rpn.relu.{level}", "activation")
        _shared_conv(net, "rpn.objects", level, shared, filters=3, kernel=1)
        _shared_conv(net, "rpn.boxes", level, shared, filters=12, kernel=1)


def mask_rcnn(size: int, classes: int = COCO_CLASSES) -> Network:
    """Mask R-CNN on ResNet-50."""
    height, width = SIZES[size]
    net = Builder(channel=3, height=height, width=width)
    kind = replace(VARIANTS["resnet50"], norm="affine", frozen=True)
    maps = feature_pyramid(net, add_stages(net, kind, (1, 2, 2, 2)))
    coarsest = net.add("fpn.pool", "pool", maps[-1], kernel=1, stride=2)
    _proposals(net, [*maps, coarsest])
    net.add("box.roi_align", "roi_align", *maps, regions=REGIONS, extent=7)
    for name in ("box.fc6", "box.fc7"):
        net.add(name, "linear", filters=1024)
        features = net.add(f"{name}.relu", "activation")
    net.add("box.classes", "linear", features, filters=classes)
    net.add("box.boxes", "linear", features, filters=4 * classes)
    net.add("mask.roi_align", "roi_align", *maps, regions=OBJECTS, extent=14)
    for place in range(4):
        _biased_conv(net, f"mask.{place}", net.last, filters=PYRAMID, kernel=3)
        net.add(f"mask.{place}.relu", "activation")
    net.add("mask.up", "conv", filters=PYRAMID, kernel=2, stride=2, bias=True, transposed=True)
    net.add("mask.up.relu", "activation")
    _biased_conv(net, "mask.out", net.last, filters=classes, kernel=1)
    return net.network("mask_rcnn_resnet50", source=MASK_RCNN_SOURCE, notes=NOTES)
