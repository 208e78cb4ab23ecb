"""Layers with windows over space: convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import own_dims, relabel, spatial_axes
from costmodels.graph.layer import SPATIAL_DIMS, Axis, Layer, Tensor, Window

Ints = int | Sequence[int]
Padding = Ints | Literal["same"]


def _per_dim(name: str, option: str, value: Ints, count: int, minimum: int) -> tuple[int, ...]:
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) != count or any(v < minimum for v in values):
        raise InputError(
            f"layer '{name}': {option} must be a whole number of at least {minimum}, or one for "
            f"each of the {count} spatial dims, but is {value}; correct it in the network"
        )
    return values


def _windows(
    name: str, tensor: Tensor, kernel: Ints, stride: Ints, padding: Padding, dilation: Ints
) -> dict[str, Window]:
    axes = spatial_axes(tensor)
    if not axes:
        raise InputError(
            f"layer '{name}': its input needs height and width (or only width, or depth too) but "
            "is flat; put it before the pooling or flattening"
        )
    count = len(axes)
    rows = zip(
        _per_dim(name, "kernel", kernel, count, 1),
        _per_dim(name, "stride", stride, count, 1),
        _per_dim(name, "padding", 0 if padding == "same" else padding, count, 0),
        _per_dim(name, "dilation", dilation, count, 1),
        strict=True,
    )
    windows = {
        axis.name: Window(kernel=k, stride=s, padding=p, dilation=d)
        for axis, (k, s, p, d) in zip(axes, rows, strict=True)
    }
    if padding != "same":
        return windows
    return {a.name: replace(windows[a.name], padding=_same(a, windows[a.name])) for a in axes}


def _same(axis: Axis, window: Window) -> int:
    """Positions before the first input so that outputs are inputs / stride, rounded up.

    Of an odd number the smaller half goes before, as in TensorFlow and PyTorch.
    """
    span = (-(-axis.extent // window.stride) - 1) * window.stride + window.reach
    return max(0, span - axis.extent) // 2


def _out_extent(axis: Axis, window: Window, ceil_mode: bool = False) -> int:
    span = axis.extent + 2 * window.padding - window.reach
    if not ceil_mode:
        return span // window.stride + 1
    out = -(-span // window.stride) + 1
    # the last window must start inside the input or its left padding
    return out - 1 if (out - 1) * window.stride >= axis.extent + window.padding else out


def _conv_extents(
    x: Tensor, windows: Mapping[str, Window], *, same: bool, transposed: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Spatial extents of a convolution's iteration space, and of its output. [items]"""
    axes = spatial_axes(x)
    if transposed:
        # every input position makes `kernel` outputs: iterate over the inputs, and let the
        # output axis be indexed by the same dim, which scales the block boundaries alike
        out = {a.name: a.extent * windows[a.name].kernel for a in axes}
        return {a.name: a.extent for a in axes}, out
    if same:
        out = {a.name: -(-a.extent // windows[a.name].stride) for a in axes}
    else:
        out = {a.name: _out_extent(a, windows[a.name]) for a in axes}
    return out, out


@layer_kind("conv")
def conv(
    name: str,
    inputs: Sequence[Tensor],
    *,
    filters: int,
    kernel: Ints,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    bias: bool = False,
    transposed: bool = False,
    share: str = "",
) -> Layer:
    """Convolution in 1 to 3 spatial dims.

    `transposed` is the up-convolution of U-Net, which is supported where windows do not overlap
    (kernel == stride): each output reads one input.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    filters
        Channels of the output. [items]
    kernel, stride, padding, dilation
        Of the window, for each spatial dim or for all; "same" pads to as many outputs as
        inputs / stride. [items]
    groups
        Independent groups of channels. [items]
    bias
        Whether each filter has one.
    transposed
        Whether each input position is spread over outputs.
    share
        Name of the layer whose weight this one uses; empty for a weight of its own.
    """
    (x,) = inputs
    channels = x.extent("channel")
    if groups < 1 or channels % groups or filters % groups:
        raise InputError(
            f"layer '{name}': groups must divide channels and filters but {groups} does not "
            f"divide {channels} and {filters}; choose another number of groups"
        )
    windows = _windows(name, x, kernel, stride, padding, dilation)
    volume = math.prod(w.kernel for w in windows.values())
    weights = channels // groups * filters * volume + (filters if bias else 0)
    if transposed and any(w.kernel != w.stride or w.padding for w in windows.values()):
        raise InputError(
            f"layer '{name}': a transposed convolution must have kernel equal to stride and no "
            f"padding but has kernel {kernel}, stride {stride}, padding {padding}; use an "
            "upsampling layer and a plain convolution instead"
        )
    dims, out = _conv_extents(x, windows, same=padding == "same", transposed=transposed)
    # a dim of groups indexes channel and filter alike: no sum crosses it. Only when each group has
    # one channel (depthwise) is it worth its own rule: channel and filter are then the same dim.
    depthwise = groups == channels > 1
    x_dims: dict[str, str | None] = {a.name: a.name for a in x.axes}
    x_dims["channel"] = "filter" if depthwise else ("channel" if groups == 1 else None)
    y_axes = [Axis(name="sample", extent=x.extent("sample"), dim="sample")]
    y_axes.append(Axis(name="channel", extent=filters, dim="filter"))
    y_axes += [Axis(name=d, extent=n, dim=d) for d, n in out.items()]
    iteration = {"sample": x.extent("sample"), "filter": filters, "channel": channels, **dims}
    # depthwise, the iteration space keeps channel for the count of filters a group
    whole = {"channel"} if depthwise else {"channel", "filter"} if groups > 1 else set()
    weight_dims = ("channel", "filter") if transposed else ("filter", "channel")
    return Layer(
        name=name,
        kind="conv",
        dims=iteration,
        inputs=(relabel(x, x_dims),),
        output=Tensor(axes=tuple(y_axes)),
        weight_dims=weight_dims,
        parameters=weights,
        windows=windows,
        groups=groups,
        transposed=transposed,
        keeps_inputs=True,
        splittable=frozenset(iteration) - whole,
        shares_weight_with=share or None,
        biased=bias,
    )


@layer_kind("pool")
def pool(
    name: str,
    inputs: Sequence[Tensor],
    *,
    kernel: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    mode: Literal["max", "average"] = "max",
    ceil_mode: bool = False,
) -> Layer:
    """Maximum or average pooling; maximum keeps the 8-byte indices that PyTorch keeps.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    kernel, stride, padding
        Of the window, for each spatial dim or for all; the stride is the kernel by default. [items]
    mode
        "max" or "average".
    ceil_mode
        Whether a last window that reaches beyond the input counts.
    """
    (x,) = inputs
    windows = _windows(name, x, kernel, kernel if stride is None else stride, padding, 1)
    if any(2 * w.padding > w.kernel for w in windows.values()):
        raise InputError(
            f"layer '{name}': the padding of a pool must be at most half its kernel but is "
            f"{padding} of {kernel}; choose less padding or a larger kernel"
        )
    axes = [a for a in x.axes if a.name not in SPATIAL_DIMS]
    axes += [
        Axis(name=a.name, extent=_out_extent(a, windows[a.name], ceil_mode), dim=a.name)
        for a in spatial_axes(x)
    ]
    y = relabel(Tensor(axes=tuple(axes)), {a.name: a.name for a in axes})
    dims = {a.name: a.extent for a in y.axes}
    return Layer(
        name=name,
        kind="pool",
        dims=dims,
        inputs=(relabel(x, own_dims(x)),),
        output=y,
        windows=windows,
        keeps_inputs=mode == "max",
        saved_bytes=8 * y.size if mode == "max" else 0,
        splittable=frozenset(dims),
    )


@layer_kind("global_pool")
def global_pool(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Mean over all spatial dims: they are reduced, so their split leaves partial sums."""
    (x,) = inputs
    y = Tensor(axes=tuple(a for a in relabel(x, own_dims(x)).axes if a.name not in SPATIAL_DIMS))
    dims = {a.name: a.extent for a in x.axes}
    return Layer(
        name=name,
        kind="global_pool",
        dims=dims,
        inputs=(relabel(x, own_dims(x)),),
        output=y,
        splittable=frozenset(dims),
    )
