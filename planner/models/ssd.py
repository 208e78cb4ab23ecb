"""SSD at 300 pixels on a ResNet: boxes and classes from feature maps of six sizes.

The third stage of the ResNet keeps its extents and the fourth is left out, as NVIDIA's reference
implementations have it. What matches boxes to objects is no layer, and is left out.
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, conv_bn, image_builder
from planner.models.resnet import DEPTHS, ResidualKind, add_stages

SOURCE = (
    'Liu et al. 2016, "SSD: Single Shot MultiBox Detector", as implemented in NVIDIA '
    "DeepLearningExamples (PyTorch/Detection/SSD) and MLPerf Training (single_stage_detector)"
)
NOTES = "Without matching boxes to objects and their loss, which are no layers."
RESNETS, SIZE, CLASSES = (34, 50), 300, 81
# between two feature maps: channels of the 1x1 convolution, filters, stride of the 3x3 one
_EXTRA = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))
# boxes at each position of a feature map
_BOXES = (4, 6, 6, 6, 4, 4)


def _predictors(net: Builder, name: str, features: str, boxes: int) -> None:
    """Places and classes of the boxes of a feature map, which end the network."""
    for what, numbers in (("loc", 4), ("conf", CLASSES)):
        filters = boxes * numbers
        net.add(f"{what}.{name}", "conv", features, filters=filters, kernel=3, padding=1, bias=True)


def ssd(depth: int, size: int) -> Network:
    """SSD on a ResNet of a depth."""
    assert depth in DEPTHS, "the ResNets are built in"
    net = image_builder(size)
    add_stages(net, ResidualKind(depth=depth), (1, 2, 1))
    maps = [net.last]
    for place, (channels, filters, stride) in enumerate(_EXTRA):
        name = f"additional_blocks.{place}"
        conv_bn(net, f"{name}.0", maps[-1], filters=channels, kernel=1)
        padding = 1 if stride == 2 else 0
        maps.append(conv_bn(net, f"{name}.1", filters=filters, stride=stride, padding=padding))
    for place, (features, boxes) in enumerate(zip(maps, _BOXES, strict=True)):
        _predictors(net, str(place), features, boxes)
    return net.network(f"ssd300_resnet{depth}", source=SOURCE, notes=NOTES)
