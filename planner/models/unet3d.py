"""3-D U-Net for volumes: strided convolutions down, transposed ones up, connections across."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, conv_bn

SOURCE = (
    'Cicek et al. 2016, "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation", '
    "as MLPerf Training trains it on KiTS19 (image_segmentation)"
)
NOTES = "Instance norm is costed as batch norm, which moves as many bytes."
FILTERS, CLASSES = (32, 64, 128, 256, 320, 320), 3


def _level(net: Builder, name: str, filters: int, stride: int) -> str:
    conv_bn(net, f"{name}.1", filters=filters, stride=stride)
    return conv_bn(net, f"{name}.2", filters=filters)


def unet3d(size: int) -> Network:
    net = Builder(channel=1, depth=size, height=size, width=size)
    across = [
        _level(net, f"down{level}", filters, 1 if level == 0 else 2)
        for level, filters in enumerate(FILTERS)
    ]
    for level in reversed(range(len(FILTERS) - 1)):
        filters = FILTERS[level]
        up = net.add(
            f"up{level}.up", "conv", filters=filters, kernel=2, stride=2, bias=True, transposed=True
        )
        net.add(f"up{level}.concat", "concat", across[level], up)
        _level(net, f"up{level}", filters, 1)
    net.add("out", "conv", filters=CLASSES, kernel=1, bias=True)
    net.add("loss", "loss")
    return net.network("unet3d", source=SOURCE, notes=NOTES)
