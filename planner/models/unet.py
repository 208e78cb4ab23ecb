"""U-Net for segmentation: a contracting and an expanding path with connections across."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, conv_bn, image_builder

SOURCE = (
    'Ronneberger et al. 2015, "U-Net: Convolutional Networks for Biomedical Image Segmentation", '
    "as implemented in milesial/Pytorch-UNet (3 channels, 2 classes, not bilinear)"
)
NOTES = (
    "Padded convolutions with batch norm, so that output and input have one size; the original "
    "crops instead."
)
FILTERS, DEPTH, CLASSES = 64, 4, 2


def _double_conv(net: Builder, name: str, filters: int) -> str:
    conv_bn(net, f"{name}.1", filters=filters)
    return conv_bn(net, f"{name}.2", filters=filters)


def unet(size: int) -> Network:
    net = image_builder(size)
    across = [_double_conv(net, "inc", FILTERS)]
    for level in range(1, DEPTH + 1):
        net.add(f"down{level}.pool", "pool", kernel=2)
        across.append(_double_conv(net, f"down{level}", FILTERS * 2**level))
    for level in range(1, DEPTH + 1):
        filters = FILTERS * 2 ** (DEPTH - level)
        up = net.add(
            f"up{level}.up",
            "conv",
            filters=filters,
            kernel=2,
            stride=2,
            bias=True,
            transposed=True,
        )
        net.add(f"up{level}.concat", "concat", across[DEPTH - level], up)
        _double_conv(net, f"up{level}", filters)
    net.add("outc", "conv", filters=CLASSES, kernel=1, bias=True)
    net.add("loss", "loss")
    return net.network("unet", source=SOURCE, notes=NOTES)
