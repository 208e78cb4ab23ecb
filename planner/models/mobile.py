"""MobileNet v2 and EfficientNet: inverted residual blocks around a depthwise convolution."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, classifier, conv_bn, image_builder

MOBILENET_SOURCE = (
    'Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", as '
    "implemented in torchvision"
)
EFFICIENTNET_SOURCE = (
    'Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural '
    'Networks", B0, as implemented in torchvision'
)
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
STEM, HEAD = 32, 1280


def _squeeze_excitation(net: Builder, name: str, channels: int, squeezed: int) -> None:
    """One factor per channel from the mean over space; its 1x1 convolutions are linear layers."""
    features = net.last
    net.add(f"{name}.avgpool", "global_pool")
    net.add(f"{name}.fc1", "linear", filters=squeezed)
    net.add(f"{name}.activation", "activation", function="silu")
    net.add(f"{name}.fc2", "linear", filters=channels)
    gate = net.add(f"{name}.scale_activation", "activation", function="sigmoid")
    net.add(f"{name}.scale", "scale", features, gate)


def _inverted_residuals(
    net: Builder, stages: tuple[Stage, ...], function: str, *, squeeze: bool
) -> None:
    channels = STEM
    for stage, (expansion, kernel, first_stride, filters, blocks) in enumerate(stages, start=1):
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
                _squeeze_excitation(net, f"{name}.se", width, max(1, channels // 4))
            conv_bn(net, f"{name}.project", filters=filters, kernel=1, function="")
            if stride == 1 and filters == channels:
                net.add(f"{name}.add", "add", net.last, entry)
            channels = filters


def _mobile(
    name: str,
    size: int,
    stages: tuple[Stage, ...],
    *,
    function: str,
    squeeze: bool,
    source: str,
    notes: str = "",
) -> Network:
    net = image_builder(size)
    conv_bn(net, "features.0", filters=STEM, stride=2, function=function)
    _inverted_residuals(net, stages, function, squeeze=squeeze)
    conv_bn(net, f"features.{len(stages) + 1}", filters=HEAD, kernel=1, function=function)
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


def efficientnet_b0(size: int) -> Network:
    return _mobile(
        "efficientnet_b0",
        size,
        EFFICIENTNET_B0,
        function="silu",
        squeeze=True,
        source=EFFICIENTNET_SOURCE,
        notes="Without stochastic depth, which has no weights and little arithmetic.",
    )
