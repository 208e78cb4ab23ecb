"""DenseNet: every layer of a block reads the concatenation of all layers before it.

A concatenation here joins the last concatenation and the newest features, which has the same
outputs as joining all features anew.
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder, classifier, image_builder

SOURCE = (
    'Huang et al. 2017, "Densely Connected Convolutional Networks", as implemented in torchvision'
)
# depth: growth rate, filters of the first convolution, layers in each block
DEPTHS = {121: (32, 64, (6, 12, 24, 16)), 161: (48, 96, (6, 12, 36, 24))}


def _norm_conv(net: Builder, name: str, number: str, filters: int, kernel: int) -> None:
    """Pre-activation: batch norm and ReLU come before the convolution."""
    net.add(f"{name}norm{number}", "batch_norm")
    net.add(f"{name}relu{number}", "activation")
    net.add(f"{name}conv{number}", "conv", filters=filters, kernel=kernel, padding=kernel // 2)


def densenet(depth: int, size: int) -> Network:
    growth, filters, blocks = DEPTHS[depth]
    net = image_builder(size)
    net.add("conv0", "conv", filters=filters, kernel=7, stride=2, padding=3)
    net.add("norm0", "batch_norm")
    net.add("relu0", "activation")
    net.add("pool0", "pool", kernel=3, stride=2, padding=1)
    for block, layers in enumerate(blocks, start=1):
        for layer in range(1, layers + 1):
            features = net.last
            name = f"denseblock{block}.denselayer{layer}."
            _norm_conv(net, name, "1", 4 * growth, 1)
            _norm_conv(net, name, "2", growth, 3)
            net.add(f"{name}concat", "concat", features, net.last)
        filters += layers * growth
        if block < len(blocks):
            filters //= 2
            _norm_conv(net, f"transition{block}.", "", filters, 1)
            net.add(f"transition{block}.pool", "pool", kernel=2, mode="average")
    net.add("norm5", "batch_norm")
    net.add("relu5", "activation")
    classifier(net, name="classifier")
    return net.network(f"densenet{depth}", source=SOURCE)
