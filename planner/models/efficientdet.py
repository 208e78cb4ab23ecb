"""EfficientDet D0: boxes and classes from a pyramid that is passed through several times (BiFPN).

What matches boxes to objects, and their loss, are no layers and are left out; so are the learned
weights of the sums, one number for each of their operands.
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, conv_bn, image_builder
from planner.models.mobile import EFFICIENTNET_B0, STEM, inverted_residuals

SOURCE = (
    'Tan et al. 2020, "EfficientDet: Scalable and Efficient Object Detection", as implemented in '
    "NVIDIA DeepLearningExamples (PyTorch and TensorFlow2/Detection/Efficientdet)"
)
NOTES = (
    "Without stochastic depth, the weights of sums, boxes and losses, which are no layers; levels "
    "share the convolutions of the heads, and have batch norms of their own."
)
SIZE, WIDTH, CELLS, DEPTH = 512, 64, 3, 3
CLASSES, BOXES = 90, 9
# Stages of EfficientNet whose maps are read: at an eighth, a sixteenth and a thirty-second.
_READ = (2, 4, 6)
_FUNCTION = "silu"


def _separable(net: Builder, name: str, filters: int, owner: str = "") -> str:
    """A depthwise convolution, then one of single positions with a bias; weights of `owner`."""
    share = [{"share": f"{owner}.{part}"} if owner else {} for part in ("dw", "pw")]
    net.add(f"{name}.dw", "conv", filters=WIDTH, kernel=3, padding=1, groups=WIDTH, **share[0])
    return net.add(f"{name}.pw", "conv", filters=filters, kernel=1, bias=True, **share[1])


def _sum(net: Builder, name: str, *operands: str) -> str:
    """A node of the pyramid: what meets there, added up and convolved."""
    net.add(f"{name}.add", "add", *operands)
    net.add(f"{name}.{_FUNCTION}", "activation", function=_FUNCTION)
    _separable(net, name, WIDTH)
    return net.add(f"{name}.bn", "batch_norm")


def _lateral(net: Builder, name: str, features: str) -> str:
    return conv_bn(net, name, features, filters=WIDTH, kernel=1, function="", bias=True)


def _halved(net: Builder, name: str, features: str) -> str:
    return net.add(name, "pool", features, kernel=3, stride=2, padding=1)


def _cell(net: Builder, name: str, maps: list[str], again: list[str]) -> list[str]:
    """One pass down the pyramid and one up; `again` are the maps that the way up reads."""
    down = [maps[-1]]
    for level in reversed(range(len(maps) - 1)):
        larger = net.add(f"{name}.up{level}", "upsample", down[0], factor=2)
        down.insert(0, _sum(net, f"{name}.td{level}", maps[level], larger))
    out = [down[0]]
    for level in range(1, len(maps)):
        smaller = _halved(net, f"{name}.down{level}", out[-1])
        between = [down[level]] if level < len(maps) - 1 else []
        out.append(_sum(net, f"{name}.bu{level}", again[level], *between, smaller))
    return out


def _box_heads(net: Builder, maps: list[str]) -> None:
    """Places and classes of the boxes of each map, which end the network."""
    for head, numbers in (("classes", CLASSES), ("boxes", 4)):
        for level, features in enumerate(maps):
            net.last = features
            for place in range(DEPTH):
                name = f"{head}.{place}"
                _separable(net, f"{name}.{level}", WIDTH, f"{name}.0" if level else "")
                net.add(f"{name}.{level}.bn", "batch_norm")
                net.add(f"{name}.{level}.{_FUNCTION}", "activation", function=_FUNCTION)
            name = f"{head}.out"
            _separable(net, f"{name}.{level}", BOXES * numbers, f"{name}.0" if level else "")


def efficientdet_d0(size: int) -> Network:
    net = image_builder(size)
    conv_bn(net, "features.0", filters=STEM, stride=2, function=_FUNCTION)
    ends = inverted_residuals(net, EFFICIENTNET_B0, _FUNCTION, squeeze=True)
    read = [ends[stage] for stage in _READ]
    maps = [_lateral(net, f"lateral{level}", name) for level, name in enumerate(read)]
    maps.append(_halved(net, "p6", _lateral(net, "lateral3", read[-1])))
    maps.append(_halved(net, "p7", maps[-1]))
    # the first way up reads maps of the network through convolutions of its own
    again = [maps[0], *(_lateral(net, f"again{n}", read[n]) for n in (1, 2)), *maps[3:]]
    for cell in range(CELLS):
        maps = _cell(net, f"bifpn.{cell}", maps, again if cell == 0 else maps)
    _box_heads(net, maps)
    return net.network("efficientdet_d0", source=SOURCE, notes=NOTES)
