"""A short way to write a network as rows of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodels.graph import LayerSpec, Network


class Builder:
    """Collects layers; a layer that names no input reads the one added last.

    Parameters
    ----------
    input_shape
        Axes of one sample. [items]
    """

    def __init__(self, **input_shape: int) -> None:
        self._input_shape: Mapping[str, int] = input_shape
        self._layers: list[LayerSpec] = []
        self.last = "input"

    def add(self, name: str, kind: str, *inputs: str, **options: object) -> str:
        """Add one layer and return its name."""
        spec = LayerSpec(name=name, kind=kind, inputs=inputs or (self.last,), options=options)
        self._layers.append(spec)
        self.last = name
        return name

    def network(self, name: str, *, source: str, notes: str = "") -> Network:
        """The network of the layers so far.

        Parameters
        ----------
        name
            What it is called.
        source
            Where the architecture is published.
        notes
            In what it differs from that.
        """
        return Network(
            name=name,
            input_shape=dict(self._input_shape),
            layers=tuple(self._layers),
            source=source,
            notes=notes,
        )


def image_builder(size: int, channels: int = 3) -> Builder:
    """A builder for square images of `size` pixels a side."""
    return Builder(channel=channels, height=size, width=size)


def adaptive_pool(net: Builder, name: str, extent: int, target: int) -> None:
    """Average pooling down to a number of positions a side, none where that many are left.

    The windows are equal here; those of adaptive pooling differ by one where the division leaves
    a remainder, which changes no count.

    Parameters
    ----------
    net
        The network, which gets the layer.
    name
        Of the layer.
    extent, target
        Positions a side before and after. [items]
    """
    if extent != target:
        stride = extent // target
        kernel = extent - (target - 1) * stride
        net.add(name, "pool", kernel=kernel, stride=stride, mode="average")


def conv_bn(
    net: Builder,
    name: str,
    *inputs: str,
    filters: int,
    kernel: int | tuple[int, ...] = 3,
    stride: int = 1,
    padding: int | tuple[int, ...] | None = None,
    function: str = "relu",
    **options: object,
) -> str:
    """Convolution, batch norm and an activation, if there is to be one; returns the last's name.

    Parameters
    ----------
    net
        The network, which gets the layers.
    name
        What their names begin with.
    inputs
        Layers that the convolution reads; by default the one before it.
    filters, kernel, stride, padding, options
        Of the convolution; padding is half the kernel by default, which keeps the extents at
        stride 1.
    function
        The activation; empty for none.
    """
    if padding is None:
        padding = kernel // 2 if isinstance(kernel, int) else tuple(k // 2 for k in kernel)
    net.add(
        f"{name}.conv",
        "conv",
        *inputs,
        filters=filters,
        kernel=kernel,
        stride=stride,
        padding=padding,
        **options,
    )
    net.add(f"{name}.bn", "batch_norm")
    if function:
        net.add(f"{name}.{function}", "activation", function=function)
    return net.last


def classifier(net: Builder, *, dropout: float = 0.0, name: str = "fc") -> None:
    """Global average pooling, dropout if any, a linear layer for ImageNet's classes, the loss.

    Parameters
    ----------
    net
        The network, which gets the layers.
    dropout
        Part of the features that is dropped.
    name
        Of the linear layer.
    """
    net.add("avgpool", "global_pool")
    if dropout:
        net.add("dropout", "dropout", rate=dropout)
    net.add(name, "linear", filters=1000)
    net.add("loss", "loss")


def squeeze_excitation(
    net: Builder, name: str, channels: int, squeezed: int, *, function: str = "silu"
) -> None:
    """One factor per channel from the mean over space; its 1x1 convolutions are linear layers.

    Parameters
    ----------
    net
        The network, which gets the layers.
    name
        What their names begin with.
    channels, squeezed
        Channels, and to how many they come down. [items]
    function
        The activation between.
    """
    features = net.last
    net.add(f"{name}.avgpool", "global_pool")
    net.add(f"{name}.fc1", "linear", filters=squeezed)
    net.add(f"{name}.activation", "activation", function=function)
    net.add(f"{name}.fc2", "linear", filters=channels)
    gate = net.add(f"{name}.scale_activation", "activation", function="sigmoid")
    net.add(f"{name}.scale", "scale", features, gate)


def rounded(channels: float, divisor: int = 8) -> int:
    """Channels rounded to a multiple of `divisor`, but never down by more than a tenth.

    This is the rule of the MobileNet and EfficientNet implementations (`_make_divisible`).
    """
    nearest = max(divisor, math.floor(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest
