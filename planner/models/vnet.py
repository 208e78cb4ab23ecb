"""V-Net for volumes: residual blocks of three convolutions between strided and transposed ones."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, conv_bn

SOURCE = (
    'Milletari et al. 2016, "V-Net: Fully Convolutional Neural Networks for Volumetric Medical '
    'Image Segmentation", as NVIDIA DeepLearningExamples train it on volumes of the hippocampus '
    "(TensorFlow/Segmentation/VNet, with its defaults)"
)
NOTES = "Without the addition of the one input channel to the first features."
FILTERS, DEPTH, CLASSES = (16, 32, 64, 128), 3, 3


def _residual(net: Builder, name: str, filters: int) -> None:
    entry = net.last
    for conv in range(DEPTH):
        conv_bn(net, f"{name}.{conv}", filters=filters, bias=True)
    net.add(f"{name}.add", "add", net.last, entry)


def _up(net: Builder, name: str, filters: int) -> str:
    return conv_bn(
        net, name, filters=filters, kernel=2, stride=2, padding=0, bias=True, transposed=True
    )


def vnet(size: int) -> Network:
    net = Builder(channel=1, depth=size, height=size, width=size)
    conv_bn(net, "input", filters=FILTERS[0], bias=True)
    across = [net.last]
    for level, filters in enumerate(FILTERS[1:], start=1):
        conv_bn(net, f"down{level}", filters=filters, kernel=2, stride=2, padding=0, bias=True)
        _residual(net, f"down{level}.residual", filters)
        across.append(net.last)
    for level in reversed(range(1, len(FILTERS) - 1)):
        up = _up(net, f"up{level}", FILTERS[level])
        net.add(f"up{level}.concat", "concat", up, across[level])
        _residual(net, f"up{level}.residual", 2 * FILTERS[level])
    _up(net, "up0", FILTERS[0])
    net.add("out", "conv", filters=CLASSES, kernel=3, padding=1, bias=True)
    net.add("loss", "loss")
    return net.network("vnet", source=SOURCE, notes=NOTES)
