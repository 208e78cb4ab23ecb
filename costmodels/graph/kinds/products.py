"""Layers that multiply matrices over features: linear, embedding, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import features_axis, relabel
from costmodels.graph.layer import Axis, Layer, Tensor


@layer_kind("linear")
def linear(
    name: str,
    inputs: Sequence[Tensor],
    *,
    filters: int,
    bias: bool = True,
    share: str = "",
) -> Layer:
    """Fully connected layer over all axes but sample and sequence, which it flattens.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    filters
        Features of the output. [items]
    bias
        Whether each filter has one.
    share
        Name of the layer whose weight this one uses; empty for a weight of its own.
    """
    (x,) = inputs
    kept = [a for a in x.axes if a.name in ("sample", "sequence")]
    channels = x.size // math.prod(a.extent for a in kept)
    features = features_axis(x)
    x_dims: dict[str, str | None] = {a.name: a.name for a in kept}
    # a flattened channel is contiguous, so blocks of features are blocks of channels where the
    # degree divides the channels; where it does not, what straddles a border is not counted
    x_dims[features] = "channel"
    y_axes = [Axis(name=a.name, extent=a.extent, dim=a.name) for a in kept]
    y_axes.append(Axis(name=features, extent=filters, dim="filter"))
    dims = {**{a.name: a.extent for a in kept}, "filter": filters, "channel": channels}
    return Layer(
        name=name,
        kind="linear",
        dims=dims,
        inputs=(relabel(x, x_dims),),
        output=Tensor(axes=tuple(y_axes)),
        weight_dims=("filter", "channel"),
        parameters=channels * filters + (filters if bias else 0),
        keeps_inputs=True,
        splittable=frozenset(dims),
        shares_weight_with=share or None,
    )


@layer_kind("embedding")
def embedding(
    name: str, inputs: Sequence[Tensor], *, rows: int, filters: int, share: str = ""
) -> Layer:
    """A table look-up; splitting its rows leaves partial sums, as in vocabulary parallelism.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    rows
        Rows of the table. [items]
    filters
        Features of each row. [items]
    share
        Name of the layer whose table this one uses; empty for a table of its own.
    """
    (x,) = inputs
    y_axes = [Axis(name=a.name, extent=a.extent, dim=a.name) for a in x.axes]
    y_axes.append(Axis(name="hidden", extent=filters, dim="filter"))
    dims = {**{a.name: a.extent for a in x.axes}, "filter": filters, "channel": rows}
    return Layer(
        name=name,
        kind="embedding",
        dims=dims,
        inputs=(relabel(x, {a.name: a.name for a in x.axes}),),
        output=Tensor(axes=tuple(y_axes)),
        weight_dims=("channel", "filter"),
        parameters=rows * filters,
        keeps_inputs=True,
        splittable=frozenset(dims),
        shares_weight_with=share or None,
    )


@layer_kind("attention")
def attention(name: str, inputs: Sequence[Tensor], *, heads: int, fused: bool = True) -> Layer:
    """Scaled dot-product attention on one tensor that holds query, key and value side by side.

    It is read twice: as queries, which a split of sequence divides, and as keys and values, which
    every query needs whole. Without a fused kernel the scores are kept for backward.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    heads
        Number of heads. [items]
    fused
        Whether one kernel computes scores and weighted values.
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
        operation="matmul",
        dims=dims,
        inputs=(view(1, "sequence"), view(2, None)),
        output=view(1, "sequence"),
        keeps_inputs=True,
        keeps_output=True,
        # scores before and after softmax and dropout in the unfused form
        saved_bytes=0 if fused else 2 * 4 * samples * heads * length * length,
        splittable=frozenset(dims),
    )
