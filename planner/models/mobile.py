"""MobileNet v2, MnasNet and EfficientNet: inverted residuals around a depthwise convolution."""

from __future__ import annotations

import math

from costmodels.graph import Network
from planner.models.builder import (
    Builder,
    classifier,
    conv_bn,
    image_builder,
    rounded,
    squeeze_excitation,
)

MOBILENET_SOURCE = (
    'Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", as '
    "implemented in torchvision"
)
EFFICIENTNET_SOURCE = (
    'Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural '
    'Networks", as implemented in torchvision'
)
EFFICIENTNET_V2_SOURCE = (
    'Tan and Le 2021, "EfficientNetV2: Smaller Models and Faster Training", as implemented in '
    "torchvision"
)
MNASNET_SOURCE = (
    'Tan et al. 2019, "MnasNet: Platform-Aware Neural Architecture Search for Mobile", B1, as '
    "implemented in torchvision"
)
# factor on channels, on blocks, and pixels a side
EFFICIENTNETS = {
    "efficientnet_b0": (1.0, 1.0, 224),
    "efficientnet_b1": (1.0, 1.1, 240),
    "efficientnet_b2": (1.1, 1.2, 260),
    "efficientnet_b3": (1.2, 1.4, 300),
    "efficientnet_b4": (1.4, 1.8, 380),
    "efficientnet_b5": (1.6, 2.2, 456),
    "efficientnet_b6": (1.8, 2.6, 528),
    "efficientnet_b7": (2.0, 3.1, 600),
}
# expansion, kernel, stride of the first block, filters, blocks
Stage = tuple[int, int, int, int, int]
MOBILENET_V2: tuple[Stage, ...] = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 3, 2, 32, 3),
    (6, 3, 2, 64, 4),
    (6, 3, 1, 96, 3),
    (6, 3, 2, 160, 3),
    (6, 3, 1, 320, 1),
)
EFFICIENTNET_B0: tuple[Stage, ...] = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
MNASNET: tuple[Stage, ...] = (
    (1, 3, 1, 16, 1),
    (3, 3, 2, 24, 3),
    (3, 5, 2, 40, 3),
    (6, 5, 2, 80, 3),
    (6, 3, 1, 96, 2),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
# EfficientNet v2 S: blocks with one convolution in place of the first two, then those of MobileNet
EFFICIENTNET_V2_FUSED: tuple[Stage, ...] = (
    (1, 3, 1, 24, 2),
    (4, 3, 2, 48, 4),
    (4, 3, 2, 64, 4),
)
EFFICIENTNET_V2_S: tuple[Stage, ...] = (
    (4, 3, 2, 128, 6),
    (6, 3, 1, 160, 9),
    (6, 3, 2, 256, 15),
)
STEM, HEAD = 32, 1280
_STOCHASTIC = "Without stochastic depth, which has no weights and little arithmetic."


def inverted_residuals(
    net: Builder,
    stages: tuple[Stage, ...],
    function: str,
    *,
    squeeze: bool,
    channels: int = STEM,
    first: int = 1,
) -> list[str]:
    """Stages of blocks around a depthwise convolution; the last layer of each.

    Parameters
    ----------
    net
        The network, which gets the layers.
    stages
        What each stage is like.
    function
        Of the activations.
    squeeze
        Whether blocks have squeeze and excitation.
    channels
        Of the layer before them. [items]
    first
        Number of the first stage in the names.
    """
    ends = []
    for stage, (expansion, kernel, first_stride, filters, blocks) in enumerate(stages, first):
        for block in range(blocks):
            name, entry = f"features.{stage}.{block}", net.last
            stride = first_stride if block == 0 else 1
            width = channels * expansion
            if expansion > 1:
                conv_bn(net, f"{name}.expand", filters=width, kernel=1, function=function)
            conv_bn(
                net,
                f"{name}.depthwise",
                filters=width,
                kernel=kernel,
                stride=stride,
                groups=width,
                function=function,
            )
            if squeeze:
                squeeze_excitation(net, f"{name}.se", width, max(1, channels // 4))
            conv_bn(net, f"{name}.project", filters=filters, kernel=1, function="")
            if stride == 1 and filters == channels:
                net.add(f"{name}.add", "add", net.last, entry)
            channels = filters
        ends.append(net.last)
    return ends


def _mobile(
    name: str,
    size: int,
    stages: tuple[Stage, ...],
    *,
    function: str,
    squeeze: bool,
    source: str,
    notes: str = "",
    stem: int = STEM,
    head: int = HEAD,
) -> Network:
    net = image_builder(size)
    conv_bn(net, "features.0", filters=stem, stride=2, function=function)
    inverted_residuals(net, stages, function, squeeze=squeeze, channels=stem)
    conv_bn(net, f"features.{len(stages) + 1}", filters=head, kernel=1, function=function)
    classifier(net, dropout=0.2, name="classifier")
    return net.network(name, source=source, notes=notes)


def mobilenet_v2(size: int) -> Network:
    return _mobile(
        "mobilenet_v2",
        size,
        MOBILENET_V2,
        function="relu6",
        squeeze=False,
        source=MOBILENET_SOURCE,
    )


def mnasnet(size: int) -> Network:
    return _mobile(
        "mnasnet1_0", size, MNASNET, function="relu", squeeze=False, source=MNASNET_SOURCE
    )


def efficientnet(name: str, size: int) -> Network:
    """One of `EFFICIENTNETS` by name, for an input size."""
    width, depth, _ = EFFICIENTNETS[name]
    stages = tuple(
        (expansion, kernel, stride, rounded(filters * width), math.ceil(blocks * depth))
        for expansion, kernel, stride, filters, blocks in EFFICIENTNET_B0
    )
    return _mobile(
        name,
        size,
        stages,
        function="silu",
        squeeze=True,
        source=EFFICIENTNET_SOURCE,
        notes=_STOCHASTIC,
        stem=rounded(STEM * width),
        head=4 * stages[-1][3],
    )


def _fused_residuals(net: Builder, stages: tuple[Stage, ...], function: str, channels: int) -> None:
    for stage, (expansion, kernel, first_stride, filters, blocks) in enumerate(stages, start=1):
        for block in range(blocks):
            name, entry = f"features.{stage}.{block}", net.last
            stride = first_stride if block == 0 else 1
            wide = channels * expansion
            if expansion > 1:
                conv_bn(
                    net,
                    f"{name}.expand",
                    filters=wide,
                    kernel=kernel,
                    stride=stride,
                    function=function,
                )
                conv_bn(net, f"{name}.project", filters=filters, kernel=1, function="")
            else:
                conv_bn(
                    net,
                    f"{name}.conv",
                    filters=filters,
                    kernel=kernel,
                    stride=stride,
                    function=function,
                )
            if stride == 1 and filters == channels:
                net.add(f"{name}.add", "add", net.last, entry)
            channels = filters


def efficientnet_v2_s(size: int) -> Network:
    net, stem = image_builder(size), EFFICIENTNET_V2_FUSED[0][3]
    fused = len(EFFICIENTNET_V2_FUSED)
    conv_bn(net, "features.0", filters=stem, stride=2, function="silu")
    _fused_residuals(net, EFFICIENTNET_V2_FUSED, "silu", stem)
    inverted_residuals(
        net,
        EFFICIENTNET_V2_S,
        "silu",
        squeeze=True,
        channels=EFFICIENTNET_V2_FUSED[-1][3],
        first=fused + 1,
    )
    last = fused + len(EFFICIENTNET_V2_S) + 1
    conv_bn(net, f"features.{last}", filters=HEAD, kernel=1, function="silu")
    classifier(net, dropout=0.2, name="classifier")
    return net.network("efficientnet_v2_s", source=EFFICIENTNET_V2_SOURCE, notes=_STOCHASTIC)
