"""Layers whose output has the shape of their input."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import features_axis, own_dims, relabel, spatial_axes
from costmodels.graph.layer import Layer, Statistics, Tensor

# Those of PyTorch, by their names there; that which a function keeps depends on its beginning.
FUNCTIONS = (
    *("relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "gelu_tanh"),
    *("silu", "swish", "mish", "sigmoid", "hardsigmoid", "hard_sigmoid", "logsigmoid", "tanh"),
    *("hardtanh", "hard_tanh", "hardswish", "hard_swish", "softplus", "softsign", "softshrink"),
    *("hardshrink", "tanhshrink", "threshold", "exp", "sin", "square", "identity"),
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
    """A layer that reads tensors of one shape position by position, and writes one like them."""
    x = inputs[0]
    for other in inputs[1:]:
        if [(a.name, a.extent) for a in other.axes] != [(a.name, a.extent) for a in x.axes]:
            raise InputError(
                f"layer '{name}': its inputs must have the same shape but have "
                f"{[(a.name, a.extent) for a in x.axes]} and "
                f"{[(a.name, a.extent) for a in other.axes]}; correct the layers before it"
            )
    dims = {d: a.extent for a in x.axes if (d := own_dims(x)[a.name])}
    tensor = relabel(x, own_dims(x))
    return Layer(
        name=name,
        kind=kind,
        dims=dims,
        inputs=tuple(relabel(t, own_dims(t)) for t in inputs),
        output=tensor,
        weight_dims=("channel",) if parameters else (),
        parameters=parameters,
        statistics=statistics,
        keeps_inputs=keeps_inputs,
        keeps_output=keeps_output,
        in_place=in_place,
        saved_bytes=saved_bytes,
        splittable=frozenset(dims),
    )


@layer_kind("activation")
def activation(name: str, inputs: Sequence[Tensor], *, function: str = "relu") -> Layer:
    """ReLU-like functions keep their output and work in place; the others keep their input.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    function
        One of `FUNCTIONS`.
    """
    if function not in FUNCTIONS:
        raise InputError.rule(
            f"layer '{name}': function",
            f"be one of {', '.join(FUNCTIONS)}",
            f"'{function}'",
            "choose the closest one",
        )
    relu = function.startswith(("relu", "leaky_relu"))
    return _elementwise(
        name,
        inputs,
        "activation",
        keeps_output=relu,
        keeps_inputs=not relu,
        in_place=relu,
    )


@layer_kind("add", num_inputs=None)
def add(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Residual connection; it may write over an operand that nobody else reads again."""
    if len(inputs) < 2:
        raise InputError(
            f"layer '{name}': an addition must read at least 2 layers but reads {len(inputs)}; "
            "add the other one to its inputs"
        )
    return _elementwise(name, inputs, "add", in_place=True)


@layer_kind("scale", num_inputs=2)
def scale_channels(name: str, inputs: Sequence[Tensor]) -> Layer:
    """A feature map times one number per channel (squeeze and excitation), or one for all."""
    x, gate = inputs
    layer = _elementwise(name, [x], "scale", keeps_inputs=True)
    extents = {a.name: a.extent for a in x.axes}
    if any(a.extent not in (1, extents.get(a.name)) for a in gate.axes):
        raise InputError(
            f"layer '{name}': its second input must have axes of the first but has "
            f"{[(a.name, a.extent) for a in gate.axes]} where the first has "
            f"{list(extents.items())}; correct the layers before it"
        )
    own = own_dims(gate)
    # what is the same for all positions of an axis is not split with it
    alike = {a.name: None for a in gate.axes if a.extent == 1 < extents.get(a.name, 1)}
    gate = relabel(gate, {**own, **alike})
    return replace(layer, inputs=(layer.inputs[0], gate), operation="add")


@layer_kind("dropout")
def dropout(name: str, inputs: Sequence[Tensor], *, rate: float = 0.5) -> Layer:
    """Keeps a one-byte mask for each element; dropout at rate 0 is left out of the graph.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    rate
        Part of the elements that are dropped.
    """
    if not 0 <= rate < 1:
        raise InputError.rule(
            f"layer '{name}': rate",
            "be at least 0 and less than 1",
            rate,
            "correct it",
        )
    return _elementwise(name, inputs, "dropout", saved_bytes=inputs[0].size)


# Over which ranks batch norm sums its statistics.
_STATISTICS = ("local", "spatial", "synchronised")


@layer_kind("batch_norm")
def batch_norm(
    name: str, inputs: Sequence[Tensor], *, statistics: str = "local", weights: int = 2
) -> Layer:
    """Batch norm with statistics of the local part, or summed over ranks.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    statistics
        "local", "spatial" (over all that split the space of the same samples) or "synchronised"
        (over all that split the samples, too).
    weights
        Trained numbers of each channel. [items]
    """
    (x,) = inputs
    if statistics not in _STATISTICS:
        raise InputError.rule(
            f"layer '{name}': statistics",
            f"be one of {', '.join(_STATISTICS)}",
            f"'{statistics}'",
            "choose one",
        )
    over = tuple(a.name for a in spatial_axes(x))
    over = over if statistics == "spatial" else ("sample", *over)
    return _elementwise(
        name,
        inputs,
        "batch_norm",
        keeps_inputs=True,
        parameters=weights * x.extent(features_axis(x)),
        statistics=None
        if statistics == "local"
        else Statistics(over=over, per=("channel",), count=2),
    )


@layer_kind("affine")
def affine(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Each channel times one fixed number plus another: batch norm whose weights are frozen."""
    return replace(_elementwise(name, inputs, "affine"), operation="copy")


@layer_kind("layer_norm")
def layer_norm(name: str, inputs: Sequence[Tensor], *, weights: int = 2) -> Layer:
    """Layer norm over the features; splitting them needs their statistics summed.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    weights
        Trained numbers of each feature. [items]
    """
    (x,) = inputs
    per = tuple(a.name for a in x.axes if a.name not in ("hidden", "channel"))
    return _elementwise(
        name,
        inputs,
        "layer_norm",
        keeps_inputs=True,
        parameters=weights * x.extent(features_axis(x)),
        statistics=Statistics(over=("channel",), per=per, count=2),
    )


@layer_kind("rms_norm")
def rms_norm(name: str, inputs: Sequence[Tensor], *, weights: int = 1) -> Layer:
    """Norm of the features by their root mean square: one weight each, no mean and no bias.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    weights
        Trained numbers of each feature. [items]
    """
    layer = layer_norm(name, inputs, weights=weights)
    assert layer.statistics is not None, "layer norm sums over its features"
    return replace(
        layer,
        kind="rms_norm",
        operation="layer_norm",
        statistics=replace(layer.statistics, count=1),
    )


@layer_kind("bias")
def bias(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Adds a number of its own to each feature, in place."""
    (x,) = inputs
    layer = _elementwise(name, inputs, "bias", in_place=True, parameters=x.extent(features_axis(x)))
    return replace(layer, operation="copy")


@layer_kind("glu")
def glu(name: str, inputs: Sequence[Tensor], *, function: str = "silu") -> Layer:
    """One half of the features through an activation, times the other half (Shazeer 2020).

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads, which holds both halves.
    function
        One of `FUNCTIONS`.
    """
    (x,) = inputs
    features = features_axis(x)
    if x.extent(features) % 2:
        raise InputError(
            f"layer '{name}': a gate must read two halves but reads {x.extent(features)} features; "
            "correct the layer before it"
        )
    layer = activation(name, inputs, function=function)
    half = tuple(
        replace(axis, extent=axis.extent // 2) if axis.name == features else axis
        for axis in layer.output.axes
    )
    return replace(
        layer,
        kind="glu",
        operation="glu",
        dims={**layer.dims, "channel": x.extent(features) // 2},
        output=Tensor(axes=half),
        keeps_inputs=True,
        keeps_output=False,
        in_place=False,
    )


@layer_kind("softmax")
def softmax(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Softmax over the features; a split of them sums two numbers a row."""
    per = tuple(a.name for a in inputs[0].axes if a.name not in ("hidden", "channel"))
    statistics = Statistics(over=("channel",), per=per, count=2)
    return _elementwise(name, inputs, "softmax", keeps_output=True, statistics=statistics)


@layer_kind("loss")
def loss(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Softmax and cross entropy against labels; a split of the classes sums two numbers a row."""
    per = tuple(a.name for a in inputs[0].axes if a.name not in ("hidden", "channel"))
    statistics = Statistics(over=("channel",), per=per, count=2)
    return _elementwise(name, inputs, "loss", keeps_output=True, statistics=statistics)
