"""U-Nets with strided convolutions: that of MLPerf, and nnU-Net in two and three dims.

Two convolutions a level, strided convolutions down, transposed ones up, connections across.
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, conv_bn

SOURCE = (
    'Cicek et al. 2016, "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation", '
    "as MLPerf Training trains it on KiTS19 (image_segmentation)"
)
NNUNET_SOURCE = (
    'Isensee et al. 2021, "nnU-Net: a self-configuring method for deep learning-based biomedical '
    'image segmentation", as NVIDIA DeepLearningExamples train it on BraTS '
    "(TensorFlow2/Segmentation/nnUNet, task 01: four modalities, four classes)"
)
NOTES = "Instance norm is costed as batch norm, which moves as many bytes."
FILTERS, CLASSES = (32, 64, 128, 256, 320, 320), 3
# pixels of a slice of BraTS, by its longer side; filters of the six levels in two dims
SLICE, SLICE_FILTERS = {192: (192, 160)}, (32, 64, 128, 256, 512, 512)
MODALITIES, TUMOUR_CLASSES = 4, 4


def _level(net: Builder, name: str, filters: int, stride: int) -> str:
    conv_bn(net, f"{name}.1", filters=filters, stride=stride)
    return conv_bn(net, f"{name}.2", filters=filters)


def _levels(net: Builder, widths: tuple[int, ...], classes: int) -> None:
    across = [
        _level(net, f"down{level}", filters, 1 if level == 0 else 2)
        for level, filters in enumerate(widths)
    ]
    for level in reversed(range(len(widths) - 1)):
        filters = widths[level]
        up = net.add(
            f"up{level}.up", "conv", filters=filters, kernel=2, stride=2, bias=True, transposed=True
        )
        net.add(f"up{level}.concat", "concat", across[level], up)
        _level(net, f"up{level}", filters, 1)
    net.add("out", "conv", filters=classes, kernel=1, bias=True)
    net.add("loss", "loss")


def unet3d(size: int) -> Network:
    net = Builder(channel=1, depth=size, height=size, width=size)
    _levels(net, FILTERS, CLASSES)
    return net.network("unet3d", source=SOURCE, notes=NOTES)


def nnunet_3d(size: int) -> Network:
    net = Builder(channel=MODALITIES, depth=size, height=size, width=size)
    _levels(net, FILTERS, TUMOUR_CLASSES)
    return net.network("nnunet-3d", source=NNUNET_SOURCE, notes=NOTES)


def nnunet_2d(size: int) -> Network:
    height, width = SLICE[size]
    net = Builder(channel=MODALITIES, height=height, width=width)
    _levels(net, SLICE_FILTERS, TUMOUR_CLASSES)
    return net.network("nnunet-2d", source=NNUNET_SOURCE, notes=NOTES)
