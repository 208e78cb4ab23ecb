"""VGG and AlexNet: plain chains of convolutions with a large fully connected end.

At other sizes than the published one, average pooling brings the features to the side that the
first linear layer expects (torchvision's adaptive pooling), so the parameters stay the same.
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, adaptive_pool, image_builder

VGG_SOURCE = (
    'Simonyan and Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image '
    'Recognition", configurations D and E'
)
ALEXNET_SOURCE = (
    'Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", as '
    "implemented in torchvision"
)
# depth: convolutions in each of the five blocks
DEPTHS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
# filters, kernel, stride, padding, whether max pooling follows
ALEXNET = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


def _classifier(net: Builder, first: int, dropout_first: bool) -> None:
    """The three linear layers; AlexNet drops before each of the first two, VGG after."""
    for i in (first, first + 1):
        if dropout_first:
            net.add(f"drop{i}", "dropout", rate=0.5)
        net.add(f"fc{i}", "linear", filters=4096)
        net.add(f"relu{i}", "activation")
        if not dropout_first:
            net.add(f"drop{i}", "dropout", rate=0.5)
    net.add(f"fc{first + 2}", "linear", filters=1000)
    net.add("loss", "loss")


def vgg(depth: int, size: int) -> Network:
    net = image_builder(size)
    for block, convs in enumerate(DEPTHS[depth], start=1):
        for conv in range(1, convs + 1):
            filters = min(512, 32 * 2**block)
            net.add(f"conv{block}_{conv}", "conv", filters=filters, kernel=3, padding=1, bias=True)
            net.add(f"relu{block}_{conv}", "activation")
        net.add(f"pool{block}", "pool", kernel=2)
    adaptive_pool(net, "avgpool", size // 32, 7)
    _classifier(net, 6, dropout_first=False)
    return net.network(f"vgg{depth}", source=VGG_SOURCE)


def alexnet(size: int) -> Network:
    net = image_builder(size)
    side = size
    for i, (filters, kernel, stride, padding, pooled) in enumerate(ALEXNET, start=1):
        net.add(
            f"conv{i}",
            "conv",
            filters=filters,
            kernel=kernel,
            stride=stride,
            padding=padding,
            bias=True,
        )
        net.add(f"relu{i}", "activation")
        side = (side + 2 * padding - kernel) // stride + 1
        if pooled:
            net.add(f"pool{i}", "pool", kernel=3, stride=2)
            side = (side - 3) // 2 + 1
    adaptive_pool(net, "avgpool", side, 6)
    _classifier(net, 6, dropout_first=True)
    return net.network("alexnet", source=ALEXNET_SOURCE)
