"""ResNet: residual blocks of two 3x3 convolutions, or of a bottleneck of three.

The stride of a bottleneck sits at its 3x3 convolution, as in torchvision ("ResNet v1.5").
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, classifier, image_builder

SOURCE = (
    'He et al. 2016, "Deep Residual Learning for Image Recognition", as implemented in torchvision'
)
# depth: (blocks in each of the four stages, whether blocks are bottlenecks)
DEPTHS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}


def _residual_block(
    net: Builder, name: str, width: int, stride: int, bottleneck: bool, fork: bool
) -> None:
    """One residual block; `fork` gives the shortcut its own 1x1 convolution."""
    shortcut = net.last
    if bottleneck:
        rows = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
    else:
        rows = [(width, 3, stride), (width, 3, 1)]
    for i, (filters, kernel, step) in enumerate(rows, start=1):
        net.add(
            f"{name}.conv{i}",
            "conv",
            filters=filters,
            kernel=kernel,
            stride=step,
            padding=kernel // 2,
        )
        net.add(f"{name}.bn{i}", "batch_norm")
        if i < len(rows):
            net.add(f"{name}.relu{i}", "activation")
    main = net.last
    if fork:
        filters = rows[-1][0]
        net.add(f"{name}.downsample.0", "conv", shortcut, filters=filters, kernel=1, stride=stride)
        shortcut = net.add(f"{name}.downsample.1", "batch_norm")
    net.add(f"{name}.add", "add", main, shortcut)
    net.add(f"{name}.relu", "activation")


def resnet(depth: int, size: int) -> Network:
    stages, bottleneck = DEPTHS[depth]
    net = image_builder(size)
    net.add("conv1", "conv", filters=64, kernel=7, stride=2, padding=3)
    net.add("bn1", "batch_norm")
    net.add("relu", "activation")
    net.add("maxpool", "pool", kernel=3, stride=2, padding=1)
    for stage, blocks in enumerate(stages, start=1):
        for block in range(blocks):
            first = block == 0
            stride = 2 if first and stage > 1 else 1
            # the first stage of basic blocks keeps 64 channels and needs no convolution there
            fork = first and (bottleneck or stage > 1)
            _residual_block(net, f"layer{stage}.{block}", 32 * 2**stage, stride, bottleneck, fork)
    classifier(net)
    return net.network(f"resnet{depth}", source=SOURCE)
