"""SqueezeNet: fire modules of a 1x1 convolution, then of 1x1 and 3x3 ones beside each other."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, image_builder

SOURCE = (
    'Iandola et al. 2016, "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters", as '
    "implemented in torchvision"
)
# filters of the first 1x1 convolution of a module, and of each of the two after it; 0 pools
_MODULES = {
    "squeezenet1_0": (
        *((16, 64), (16, 64), (32, 128), (0, 0), (32, 128), (48, 192), (48, 192), (64, 256)),
        *((0, 0), (64, 256)),
    ),
    "squeezenet1_1": (
        *((16, 64), (16, 64), (0, 0), (32, 128), (32, 128), (0, 0), (48, 192), (48, 192)),
        *((64, 256), (64, 256)),
    ),
}
_STEMS = {"squeezenet1_0": (96, 7), "squeezenet1_1": (64, 3)}
NAMES = tuple(_MODULES)


def _conv_relu(
    net: Builder, name: str, *inputs: str, filters: int, kernel: int, **options: int
) -> str:
    net.add(name, "conv", *inputs, filters=filters, kernel=kernel, bias=True, **options)
    return net.add(f"{name}.relu", "activation")


def _halve(net: Builder, name: str) -> None:
    net.add(name, "pool", kernel=3, stride=2, ceil_mode=True)


def squeezenet(name: str, size: int) -> Network:
    """One of `NAMES`, for an input size."""
    net = image_builder(size)
    filters, kernel = _STEMS[name]
    _conv_relu(net, "features.0", filters=filters, kernel=kernel, stride=2)
    _halve(net, "features.1")
    for place, (squeezed, expanded) in enumerate(_MODULES[name], start=2):
        label = f"features.{place}"
        if not squeezed:
            _halve(net, label)
            continue
        entry = _conv_relu(net, f"{label}.squeeze", filters=squeezed, kernel=1)
        ends = [
            _conv_relu(net, f"{label}.expand1x1", entry, filters=expanded, kernel=1),
            _conv_relu(net, f"{label}.expand3x3", entry, filters=expanded, kernel=3, padding=1),
        ]
        net.add(f"{label}.concat", "concat", *ends)
    net.add("dropout", "dropout", rate=0.5)
    _conv_relu(net, "classifier", filters=1000, kernel=1)
    net.add("avgpool", "global_pool")
    net.add("loss", "loss")
    return net.network(name, source=SOURCE)
