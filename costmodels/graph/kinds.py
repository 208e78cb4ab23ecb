"""How each kind of layer looks as an iteration space.

Every function takes the layer's name, the tensors it reads and its options, and returns a `Layer`.
The options are those of a network file, so that a file, a built-in model and an export agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from costmodels.errors import InputError
from costmodels.graph.layer import SPATIAL_DIMS, Axis, Layer, Statistics, Tensor, Window

Ints = int | Sequence[int]
Padding = Ints | Literal["same"]


def spatial_axes(tensor: Tensor) -> tuple[Axis, ...]:
    return tuple(axis for axis in tensor.axes if axis.name in SPATIAL_DIMS)


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


def _relabel(tensor: Tensor, dims: dict[str, str | None]) -> Tensor:
    """The same axes, indexed by the given dims."""
    return Tensor(
        axes=tuple(
            Axis(name=axis.name, extent=axis.extent, dim=dims.get(axis.name))
            for axis in tensor.axes
        )
    )


def _features_axis(tensor: Tensor) -> str:
    return "hidden" if any(axis.name == "hidden" for axis in tensor.axes) else "channel"


def _own_dims(tensor: Tensor) -> dict[str, str | None]:
    """Index every axis by the dim of its own name; features count as channels."""
    return {axis.name: "channel" if axis.name == "hidden" else axis.name for axis in tensor.axes}


def data(name: str, axes: dict[str, int]) -> Layer:
    """Where samples enter; it has no cost and is already distributed as its reader wants."""
    tensor = Tensor(axes=tuple(Axis(name=a, extent=n, dim=None) for a, n in axes.items()))
    return Layer(name=name, kind="input", dims=dict(axes), inputs=(), output=tensor)


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
) -> Layer:
    """Convolution in 1 to 3 spatial dims; `transposed` is the up-convolution of U-Net, which is
    supported where windows do not overlap (kernel == stride): each output reads one input."""
    (x,) = inputs
    channels = x.extent("channel")
    if groups < 1 or channels % groups or filters % groups:
        raise InputError(
            f"layer '{name}': groups must divide channels and filters but {groups} does not "
            f"divide {channels} and {filters}; choose another number of groups"
        )
    windows = _windows(name, x, kernel, stride, padding, dilation)
    volume = math.prod(w.kernel for w in windows.values())
    parameters = channels // groups * filters * volume + (filters if bias else 0)
    out = {a.name: _out_extent(a, windows[a.name]) for a in spatial_axes(x)}
    if padding == "same":
        out = {a.name: -(-a.extent // windows[a.name].stride) for a in spatial_axes(x)}
    if transposed:
        if any(w.kernel != w.stride or w.padding for w in windows.values()):
            raise InputError(
                f"layer '{name}': a transposed convolution must have kernel equal to stride and no "
                f"padding but has kernel {kernel}, stride {stride}, padding {padding}; use an "
                "upsampling layer and a plain convolution instead"
            )
        # every input position makes `kernel` outputs: iterate over the inputs, and let the
        # output axis be indexed by the same dim, which scales the block boundaries alike
        dims = {a.name: a.extent for a in spatial_axes(x)}
        out = {a.name: a.extent * windows[a.name].kernel for a in spatial_axes(x)}
    else:
        dims = out
    # a dim of groups indexes channel and filter alike: no sum crosses it. Only when each group has
    # one channel (depthwise) is it worth its own rule: channel and filter are then the same dim.
    depthwise = groups == channels > 1
    x_dims: dict[str, str | None] = {a.name: a.name for a in x.axes}
    x_dims["channel"] = "filter" if depthwise else ("channel" if groups == 1 else None)
    y_axes = [Axis(name="sample", extent=x.extent("sample"), dim="sample")]
    y_axes.append(Axis(name="channel", extent=filters, dim="filter"))
    y_axes += [Axis(name=d, extent=n, dim=d) for d, n in out.items()]
    iteration = {
        "sample": x.extent("sample"),
        "filter": filters,
        "channel": channels,
        **dims,
    }
    if depthwise:
        # as many channels as filters per group: the iteration space keeps channel for the count
        splittable = frozenset(iteration) - {"channel"}
    elif groups > 1:
        splittable = frozenset(iteration) - {"channel", "filter"}
    else:
        splittable = frozenset(iteration)
    return Layer(
        name=name,
        kind="conv",
        dims=iteration,
        inputs=(_relabel(x, x_dims),),
        output=Tensor(axes=tuple(y_axes)),
        weight_dims=frozenset({"filter", "channel"}),
        parameters=parameters,
        windows=windows,
        groups=groups,
        transposed=transposed,
        keeps_inputs=True,
        splittable=splittable,
    )


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
    """Maximum or average pooling; maximum keeps the 8-byte indices that PyTorch keeps."""
    (x,) = inputs
    windows = _windows(name, x, kernel, kernel if stride is None else stride, padding, 1)
    axes = [a for a in x.axes if a.name not in SPATIAL_DIMS]
    axes += [
        Axis(name=a.name, extent=_out_extent(a, windows[a.name], ceil_mode), dim=a.name)
        for a in spatial_axes(x)
    ]
    y = _relabel(Tensor(axes=tuple(axes)), {a.name: a.name for a in axes})
    dims = {a.name: a.extent for a in y.axes}
    return Layer(
        name=name,
        kind="pool",
        dims=dims,
        inputs=(_relabel(x, _own_dims(x)),),
        output=y,
        windows=windows,
        keeps_inputs=mode == "max",
        saved_bytes=8 * y.size if mode == "max" else 0,
        splittable=frozenset(dims),
    )


def global_pool(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Mean over all spatial dims: they are reduced, so their split leaves partial sums."""
    (x,) = inputs
    y = Tensor(axes=tuple(a for a in _relabel(x, _own_dims(x)).axes if a.name not in SPATIAL_DIMS))
    dims = {a.name: a.extent for a in x.axes}
    return Layer(
        name=name,
        kind="global_pool",
        dims=dims,
        inputs=(_relabel(x, _own_dims(x)),),
        output=y,
        splittable=frozenset(dims),
    )


def linear(
    name: str,
    inputs: Sequence[Tensor],
    *,
    filters: int,
    bias: bool = True,
    share: str = "",
) -> Layer:
    """Fully connected layer over all axes but sample and sequence, which it flattens."""
    (x,) = inputs
    kept = [a for a in x.axes if a.name in ("sample", "sequence")]
    channels = x.size // math.prod(a.extent for a in kept)
    features = _features_axis(x)
    flat = len(x.axes) == len(kept) + 1
    x_dims: dict[str, str | None] = {a.name: a.name for a in kept}
    # a flattened block of channels is contiguous, so splitting features splits whole channels
    x_dims[features] = "channel"
    y_axes = [Axis(name=a.name, extent=a.extent, dim=a.name) for a in kept]
    y_axes.append(Axis(name=features, extent=filters, dim="filter"))
    dims = {**{a.name: a.extent for a in kept}, "filter": filters, "channel": channels}
    splittable = frozenset(dims)
    if not flat and channels % x.extent(features):
        splittable -= {"channel"}
    return Layer(
        name=name,
        kind="linear",
        dims=dims,
        inputs=(_relabel(x, x_dims),),
        output=Tensor(axes=tuple(y_axes)),
        weight_dims=frozenset({"filter", "channel"}),
        parameters=channels * filters + (filters if bias else 0),
        keeps_inputs=True,
        splittable=splittable,
        shares_weight_with=share or None,
    )


def embedding(name: str, inputs: Sequence[Tensor], *, rows: int, filters: int) -> Layer:
    """A table look-up; splitting its rows leaves partial sums, as in vocabulary parallelism."""
    (x,) = inputs
    y_axes = [Axis(name=a.name, extent=a.extent, dim=a.name) for a in x.axes]
    y_axes.append(Axis(name="hidden", extent=filters, dim="filter"))
    dims = {**{a.name: a.extent for a in x.axes}, "filter": filters, "channel": rows}
    return Layer(
        name=name,
        kind="embedding",
        dims=dims,
        inputs=(_relabel(x, {a.name: a.name for a in x.axes}),),
        output=Tensor(axes=tuple(y_axes)),
        weight_dims=frozenset({"filter", "channel"}),
        parameters=rows * filters,
        keeps_inputs=True,
        splittable=frozenset(dims),
    )


def attention(name: str, inputs: Sequence[Tensor], *, heads: int, fused: bool = True) -> Layer:
    """Scaled dot-product attention on one tensor that holds query, key and value side by side.

    It is read twice: as queries, which a split of sequence divides, and as keys and values, which
    every query needs whole. Without a fused kernel the scores are kept for backward.
    """
    (x,) = inputs
    hidden, length, samples = (
        x.extent("hidden") // 3,
        x.extent("sequence"),
        x.extent("sample"),
    )
    if x.extent("hidden") % 3:
        raise InputError(
            f"layer '{name}': attention must read query, key and value side by side, three times "
            f"the hidden size, but reads {x.extent('hidden')} features; put a linear layer before"
        )
    if heads < 1 or hidden % heads:
        raise InputError(
            f"layer '{name}': heads must divide the hidden size but {heads} does not divide "
            f"{hidden}; choose another number of heads"
        )

    def view(parts: int, sequence: str | None) -> Tensor:
        return Tensor(
            axes=(
                Axis(name="sample", extent=samples, dim="sample"),
                Axis(name="sequence", extent=length, dim=sequence),
                Axis(name="hidden", extent=parts * hidden, dim="head"),
            )
        )

    dims = {"sample": samples, "sequence": length, "head": heads}
    return Layer(
        name=name,
        kind="attention",
        dims=dims,
        inputs=(view(1, "sequence"), view(2, None)),
        output=view(1, "sequence"),
        keeps_inputs=True,
        keeps_output=True,
        # scores before and after softmax and dropout in the unfused form
        saved_bytes=0 if fused else 2 * 4 * samples * heads * length * length,
        splittable=frozenset(dims),
    )


def _elementwise(
    name: str,
    inputs: Sequence[Tensor],
    kind: str,
    *,
    keeps_inputs: bool = False,
    keeps_output: bool = False,
    in_place: bool = False,
    saved_bytes: int = 0,
    parameters: int = 0,
    statistics: Statistics | None = None,
) -> Layer:
    x = inputs[0]
    for other in inputs[1:]:
        if [(a.name, a.extent) for a in other.axes] != [(a.name, a.extent) for a in x.axes]:
            raise InputError(
                f"layer '{name}': its inputs must have the same shape but have "
                f"{[(a.name, a.extent) for a in x.axes]} and "
                f"{[(a.name, a.extent) for a in other.axes]}; correct the layers before it"
            )
    dims = {d: a.extent for a in x.axes if (d := _own_dims(x)[a.name])}
    tensor = _relabel(x, _own_dims(x))
    return Layer(
        name=name,
        kind=kind,
        dims=dims,
        inputs=tuple(_relabel(t, _own_dims(t)) for t in inputs),
        output=tensor,
        weight_dims=frozenset({"channel"}) if parameters else frozenset(),
        parameters=parameters,
        statistics=statistics,
        keeps_inputs=keeps_inputs,
        keeps_output=keeps_output,
        in_place=in_place,
        saved_bytes=saved_bytes,
        splittable=frozenset(dims),
    )


def activation(name: str, inputs: Sequence[Tensor], *, function: str = "relu") -> Layer:
    """ReLU-like functions keep their output and work in place; the others keep their input."""
    relu = function.startswith(("relu", "leaky_relu"))
    return _elementwise(
        name,
        inputs,
        "activation",
        keeps_output=relu,
        keeps_inputs=not relu,
        in_place=relu,
    )


def add(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Residual connection; it may write over an operand that nobody else reads again."""
    return _elementwise(name, inputs, "add", in_place=True)


def scale(name: str, inputs: Sequence[Tensor]) -> Layer:
    """A feature map times one number per channel (squeeze and excitation)."""
    x, gate = inputs
    layer = _elementwise(name, [x], "scale", keeps_inputs=True)
    extents = {a.name: a.extent for a in x.axes}
    if any(extents.get(a.name) != a.extent for a in gate.axes):
        raise InputError(
            f"layer '{name}': its second input must have axes of the first but has "
            f"{[(a.name, a.extent) for a in gate.axes]} where the first has "
            f"{list(extents.items())}; correct the layers before it"
        )
    gate = _relabel(gate, _own_dims(gate))
    fields = {f: getattr(layer, f) for f in Layer.__slots__}
    return Layer(**{**fields, "inputs": (layer.inputs[0], gate)})


def dropout(name: str, inputs: Sequence[Tensor], *, rate: float = 0.5) -> Layer:
    """Keeps a one-byte mask for each element; dropout at rate 0 is left out of the graph."""
    if not 0 <= rate < 1:
        raise InputError(
            f"layer '{name}': rate must be at least 0 and less than 1 but is {rate}; correct it"
        )
    return _elementwise(name, inputs, "dropout", saved_bytes=inputs[0].size)


def batch_norm(name: str, inputs: Sequence[Tensor], *, statistics: str = "local") -> Layer:
    """Batch norm with statistics of the local part, or summed over all that split the samples."""
    (x,) = inputs
    if statistics not in ("local", "synchronised"):
        raise InputError(
            f"layer '{name}': statistics must be 'local' or 'synchronised' but is "
            f"'{statistics}'; choose one of the two"
        )
    spatial = tuple(a.name for a in spatial_axes(x))
    sync = Statistics(over=("sample", *spatial), per=("channel",), count=2)
    return _elementwise(
        name,
        inputs,
        "batch_norm",
        keeps_inputs=True,
        parameters=2 * x.extent(_features_axis(x)),
        statistics=sync if statistics == "synchronised" else None,
    )


def layer_norm(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Layer norm over the features; splitting them needs their statistics summed."""
    (x,) = inputs
    per = tuple(a.name for a in x.axes if a.name not in ("hidden", "channel"))
    return _elementwise(
        name,
        inputs,
        "layer_norm",
        keeps_inputs=True,
        parameters=2 * x.extent(_features_axis(x)),
        statistics=Statistics(over=("channel",), per=per, count=2),
    )


def softmax(name: str, inputs: Sequence[Tensor]) -> Layer:
    per = tuple(a.name for a in inputs[0].axes if a.name not in ("hidden", "channel"))
    statistics = Statistics(over=("channel",), per=per, count=2)
    return _elementwise(name, inputs, "softmax", keeps_output=True, statistics=statistics)


def loss(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Softmax and cross entropy against labels; a split of the classes sums two numbers a row."""
    per = tuple(a.name for a in inputs[0].axes if a.name not in ("hidden", "channel"))
    statistics = Statistics(over=("channel",), per=per, count=2)
    return _elementwise(name, inputs, "loss", keeps_output=True, statistics=statistics)


def upsample(name: str, inputs: Sequence[Tensor], *, factor: int = 2) -> Layer:
    """Nearest or bilinear enlargement; blocks scale alike, so no halo is counted."""
    (x,) = inputs
    if factor < 1:
        raise InputError(
            f"layer '{name}': factor must be a whole number of at least 1 but is {factor}; "
            "correct it in the network"
        )
    dims = {a.name: a.extent for a in x.axes}
    y_axes = tuple(
        Axis(
            name=a.name,
            extent=a.extent * (factor if a.name in SPATIAL_DIMS else 1),
            dim=a.name,
        )
        for a in x.axes
    )
    return Layer(
        name=name,
        kind="upsample",
        dims=dims,
        inputs=(_relabel(x, _own_dims(x)),),
        output=Tensor(axes=y_axes),
        splittable=frozenset(dims),
    )


def concat(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Joins along channels, which are therefore not split here: blocks would not line up."""
    total = sum(x.extent("channel") for x in inputs)
    first = inputs[0]
    for x in inputs[1:]:
        if [a.extent for a in x.axes if a.name != "channel"] != [
            a.extent for a in first.axes if a.name != "channel"
        ]:
            raise InputError(
                f"layer '{name}': its inputs must agree in all but channels but have "
                f"{[(a.name, a.extent) for a in first.axes]} and "
                f"{[(a.name, a.extent) for a in x.axes]}; correct the layers before it"
            )
    own: dict[str, str | None] = {**_own_dims(first), "channel": None}
    y_axes = tuple(
        Axis(
            name=a.name,
            extent=total if a.name == "channel" else a.extent,
            dim=own[a.name],
        )
        for a in first.axes
    )
    dims = {a.name: a.extent for a in y_axes if a.dim is not None}
    return Layer(
        name=name,
        kind="concat",
        dims=dims,
        inputs=tuple(_relabel(x, own) for x in inputs),
        output=Tensor(axes=y_axes),
        splittable=frozenset(dims),
    )


# how many tensors a kind reads where that is not one; None is any number
NUM_INPUTS: dict[str, int | None] = {"scale": 2, "add": None, "concat": None}

KINDS: dict[str, Callable[..., Layer]] = {
    "conv": conv,
    "pool": pool,
    "global_pool": global_pool,
    "linear": linear,
    "embedding": embedding,
    "attention": attention,
    "activation": activation,
    "add": add,
    "scale": scale,
    "dropout": dropout,
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "softmax": softmax,
    "loss": loss,
    "upsample": upsample,
    "concat": concat,
}
