"""ResNet and its kin: residual blocks of two 3x3 convolutions, or of a bottleneck of three.

The stride of a bottleneck sits at its 3x3 convolution, as in torchvision ("ResNet v1.5").
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.graph import Network
from planner.models.builder import Builder, classifier, image_builder, squeeze_excitation

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


class ResidualKind(Struct, frozen=True, kw_only=True):
    """What the blocks of a residual network are like.

    Parameters
    ----------
    depth
        A key of `DEPTHS`.
    groups, group_width
        Groups of the 3x3 convolution of a bottleneck, and their channels in the first stage.
        [items]
    squeeze
        Part of the channels to which squeeze and excitation comes down; 0 for none of it.
    norm
        Kind of its normalisation: "batch_norm", or "affine" where that is frozen.
    frozen
        Whether the stem and the first stage are not trained.
    source
        Where the architecture is published.
    """

    depth: int
    groups: int = 1
    group_width: int = 64
    squeeze: int = 0
    norm: str = "batch_norm"
    frozen: bool = False
    source: str = SOURCE


_RESNEXT = (
    'Xie et al. 2017, "Aggregated Residual Transformations for Deep Neural Networks", as '
    "implemented in torchvision and timm"
)
_WIDE = 'Zagoruyko and Komodakis 2016, "Wide Residual Networks", as implemented in torchvision'
_SQUEEZE = 'Hu et al. 2018, "Squeeze-and-Excitation Networks", as implemented in timm'
VARIANTS = {
    **{f"resnet{depth}": ResidualKind(depth=depth) for depth in DEPTHS},
    "resnext50_32x4d": ResidualKind(depth=50, groups=32, group_width=4, source=_RESNEXT),
    "resnext101_32x4d": ResidualKind(depth=101, groups=32, group_width=4, source=_RESNEXT),
    "resnext101_32x8d": ResidualKind(depth=101, groups=32, group_width=8, source=_RESNEXT),
    "wide_resnet50_2": ResidualKind(depth=50, group_width=128, source=_WIDE),
    "wide_resnet101_2": ResidualKind(depth=101, group_width=128, source=_WIDE),
    "seresnext50_32x4d": ResidualKind(
        depth=50, groups=32, group_width=4, squeeze=16, source=_SQUEEZE
    ),
    "seresnext101_32x4d": ResidualKind(
        depth=101, groups=32, group_width=4, squeeze=16, source=_SQUEEZE
    ),
}


# Channels of the first stage.
_FIRST_PLANES = 64


def _residual_block(
    net: Builder, name: str, kind: ResidualKind, planes: int, stride: int, fork: bool
) -> None:
    """One residual block; `fork` gives the shortcut its own 1x1 convolution."""
    shortcut = net.last
    untrained = {"frozen": True} if kind.frozen and planes == _FIRST_PLANES else {}
    if DEPTHS[kind.depth][1]:
        width = planes * kind.group_width // 64 * kind.groups
        rows = [(width, 1, 1, 1), (width, 3, stride, kind.groups), (4 * planes, 1, 1, 1)]
    else:
        rows = [(planes, 3, stride, 1), (planes, 3, 1, 1)]
    for i, (filters, kernel, step, groups) in enumerate(rows, start=1):
        options = {"groups": groups, **untrained} if groups > 1 else untrained
        net.add(
            f"{name}.conv{i}",
            "conv",
            filters=filters,
            kernel=kernel,
            stride=step,
            padding=kernel // 2,
            **options,
        )
        net.add(f"{name}.bn{i}", kind.norm)
        if i < len(rows):
            net.add(f"{name}.relu{i}", "activation")
    if kind.squeeze:
        channels = rows[-1][0]
        squeeze_excitation(net, f"{name}.se", channels, channels // kind.squeeze, function="relu")
    main = net.last
    if fork:
        filters = rows[-1][0]
        options = {"kernel": 1, "stride": stride, **untrained}
        net.add(f"{name}.downsample.0", "conv", shortcut, filters=filters, **options)
        shortcut = net.add(f"{name}.downsample.1", kind.norm)
    net.add(f"{name}.add", "add", main, shortcut)
    net.add(f"{name}.relu", "activation")


def add_stages(net: Builder, kind: ResidualKind, strides: tuple[int, ...]) -> list[str]:
    """The stem and the first stages of a residual network; the last layer of each stage.

    Parameters
    ----------
    net
        The network, which gets the layers.
    kind
        What its blocks are like.
    strides
        Of the first block of each stage; as many stages as there are.
    """
    stages, bottleneck = DEPTHS[kind.depth]
    ends = []
    untrained = {"frozen": True} if kind.frozen else {}
    net.add("conv1", "conv", filters=64, kernel=7, stride=2, padding=3, **untrained)
    net.add("bn1", kind.norm)
    net.add("relu", "activation")
    net.add("maxpool", "pool", kernel=3, stride=2, padding=1)
    for stage, (blocks, step) in enumerate(zip(stages, strides, strict=False), start=1):
        for block in range(blocks):
            first = block == 0
            # the first stage of basic blocks keeps 64 channels and needs no convolution there
            fork = first and (bottleneck or stage > 1)
            name, planes = f"layer{stage}.{block}", 32 * 2**stage
            _residual_block(net, name, kind, planes, step if first else 1, fork)
        ends.append(net.last)
    return ends


def residual(name: str, size: int) -> Network:
    """One of `VARIANTS` by name, for an input size."""
    kind = VARIANTS[name]
    net = image_builder(size)
    add_stages(net, kind, (1, 2, 2, 2))
    classifier(net)
    return net.network(name, source=kind.source)
