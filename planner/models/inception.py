"""GoogLeNet and Inception v3: modules of parallel branches that are joined along channels.

Both as in torchvision, which has batch norm throughout, and without the auxiliary classifiers,
which only training uses.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.graph import Network
from planner.models.builder import Builder, classifier, conv_bn, image_builder

GOOGLENET_SOURCE = (
    'Szegedy et al. 2015, "Going Deeper with Convolutions", as implemented in torchvision'
)
INCEPTION_SOURCE = (
    'Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", as '
    "implemented in torchvision"
)
NO_AUXILIARY = "Without the auxiliary classifiers."


class BranchStep(Struct, frozen=True):
    """One convolution, or a pooling where `pool` names its mode.

    Padding is half the kernel at stride 1 and none at stride 2, unless given.
    """

    label: str
    filters: int = 0
    kernel: int | tuple[int, int] = 1
    stride: int = 1
    padding: int | None = None
    pool: str = ""

    def add(self, net: Builder, name: str, source: str) -> str:
        """Add the step to a network; returns the name of its last layer.

        Parameters
        ----------
        net
            The network.
        name
            What the names of its layers begin with.
        source
            The layer that it reads.
        """
        padding = self.padding
        if padding is None and self.stride > 1:
            padding = 0
        if not self.pool:
            return conv_bn(
                net,
                name,
                source,
                filters=self.filters,
                kernel=self.kernel,
                stride=self.stride,
                padding=padding,
            )
        if padding is None and isinstance(self.kernel, int):
            padding = self.kernel // 2
        return net.add(
            name,
            "pool",
            source,
            kernel=self.kernel,
            stride=self.stride,
            padding=padding,
            mode=self.pool,
        )


# steps one after the other; the steps of a list all read the one before it
Branch = tuple[BranchStep | list[BranchStep], ...]


def inception_module(net: Builder, name: str, *branches: Branch) -> None:
    """Branches that read the same tensor, and their concatenation."""
    module_input, ends = net.last, []
    for branch in branches:
        sources = [module_input]
        for step in branch:
            steps = step if isinstance(step, list) else [step]
            sources = [s.add(net, f"{name}.{s.label}", sources[0]) for s in steps]
        ends += sources
    net.add(f"{name}.concat", "concat", *ends)


def _ceil_pool(net: Builder, name: str, kernel: int) -> None:
    net.add(name, "pool", kernel=kernel, stride=2, ceil_mode=True)


# filters of the 1x1, of the reduction and of the wide convolution of branch 2 and of branch 3, and
# of the projection after pooling; a row of one number is a pooling with that kernel in between
GOOGLENET: dict[str, tuple[int, ...]] = {
    "inception3a": (64, 96, 128, 16, 32, 32),
    "inception3b": (128, 128, 192, 32, 96, 64),
    "maxpool3": (3,),
    "inception4a": (192, 96, 208, 16, 48, 64),
    "inception4b": (160, 112, 224, 24, 64, 64),
    "inception4c": (128, 128, 256, 24, 64, 64),
    "inception4d": (112, 144, 288, 32, 64, 64),
    "inception4e": (256, 160, 320, 32, 128, 128),
    "maxpool4": (2,),
    "inception5a": (256, 160, 320, 32, 128, 128),
    "inception5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(size: int) -> Network:
    net = image_builder(size)
    conv_bn(net, "conv1", filters=64, kernel=7, stride=2)
    _ceil_pool(net, "maxpool1", 3)
    conv_bn(net, "conv2", filters=64, kernel=1)
    conv_bn(net, "conv3", filters=192)
    _ceil_pool(net, "maxpool2", 3)
    for name, row in GOOGLENET.items():
        if len(row) == 1:
            _ceil_pool(net, name, *row)
            continue
        one, reduce3, three, reduce5, five, project = row
        inception_module(
            net,
            name,
            (BranchStep("branch1", one),),
            (BranchStep("branch2.0", reduce3), BranchStep("branch2.1", three, 3)),
            # torchvision's "5x5" branch has a kernel of 3 and its weights were trained so
            (BranchStep("branch3.0", reduce5), BranchStep("branch3.1", five, 3)),
            (BranchStep("branch4.0", kernel=3, pool="max"), BranchStep("branch4.1", project)),
        )
    classifier(net, dropout=0.2)
    return net.network("googlenet", source=GOOGLENET_SOURCE, notes=NO_AUXILIARY)


def _pooled(filters: int) -> Branch:
    return BranchStep("avgpool", kernel=3, pool="average"), BranchStep("branch_pool", filters)


DOWN = (BranchStep("maxpool", kernel=3, stride=2, padding=0, pool="max"),)


def _module_a(net: Builder, name: str, pool_filters: int) -> None:
    inception_module(
        net,
        name,
        (BranchStep("branch1x1", 64),),
        (BranchStep("branch5x5_1", 48), BranchStep("branch5x5_2", 64, 5)),
        (
            BranchStep("branch3x3dbl_1", 64),
            BranchStep("branch3x3dbl_2", 96, 3),
            BranchStep("branch3x3dbl_3", 96, 3),
        ),
        _pooled(pool_filters),
    )


def _module_c(net: Builder, name: str, width: int) -> None:
    """Kernels of 7x7 as a row and a column."""
    row, column = (1, 7), (7, 1)
    inception_module(
        net,
        name,
        (BranchStep("branch1x1", 192),),
        (
            BranchStep("branch7x7_1", width),
            BranchStep("branch7x7_2", width, row),
            BranchStep("branch7x7_3", 192, column),
        ),
        (
            BranchStep("branch7x7dbl_1", width),
            BranchStep("branch7x7dbl_2", width, column),
            BranchStep("branch7x7dbl_3", width, row),
            BranchStep("branch7x7dbl_4", width, column),
            BranchStep("branch7x7dbl_5", 192, row),
        ),
        _pooled(192),
    )


def _module_e(net: Builder, name: str) -> None:
    """Branches that end in a fork of a row and a column."""
    row, column = (1, 3), (3, 1)
    inception_module(
        net,
        name,
        (BranchStep("branch1x1", 320),),
        (
            BranchStep("branch3x3_1", 384),
            [BranchStep("branch3x3_2a", 384, row), BranchStep("branch3x3_2b", 384, column)],
        ),
        (
            BranchStep("branch3x3dbl_1", 448),
            BranchStep("branch3x3dbl_2", 384, 3),
            [BranchStep("branch3x3dbl_3a", 384, row), BranchStep("branch3x3dbl_3b", 384, column)],
        ),
        _pooled(192),
    )


def inception_v3(size: int) -> Network:
    net = image_builder(size)
    conv_bn(net, "Conv2d_1a_3x3", filters=32, stride=2, padding=0)
    conv_bn(net, "Conv2d_2a_3x3", filters=32, padding=0)
    conv_bn(net, "Conv2d_2b_3x3", filters=64)
    net.add("maxpool1", "pool", kernel=3, stride=2)
    conv_bn(net, "Conv2d_3b_1x1", filters=80, kernel=1)
    conv_bn(net, "Conv2d_4a_3x3", filters=192, padding=0)
    net.add("maxpool2", "pool", kernel=3, stride=2)
    for name, pool_filters in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        _module_a(net, name, pool_filters)
    inception_module(
        net,
        "Mixed_6a",
        (BranchStep("branch3x3", 384, 3, 2),),
        (
            BranchStep("branch3x3dbl_1", 64),
            BranchStep("branch3x3dbl_2", 96, 3),
            BranchStep("branch3x3dbl_3", 96, 3, 2),
        ),
        DOWN,
    )
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        _module_c(net, name, width)
    inception_module(
        net,
        "Mixed_7a",
        (BranchStep("branch3x3_1", 192), BranchStep("branch3x3_2", 320, 3, 2)),
        (
            BranchStep("branch7x7x3_1", 192),
            BranchStep("branch7x7x3_2", 192, (1, 7)),
            BranchStep("branch7x7x3_3", 192, (7, 1)),
            BranchStep("branch7x7x3_4", 192, 3, 2),
        ),
        DOWN,
    )
    _module_e(net, "Mixed_7b")
    _module_e(net, "Mixed_7c")
    classifier(net, dropout=0.5)
    return net.network("inception_v3", source=INCEPTION_SOURCE, notes=NO_AUXILIARY)
