"""Layers that multiply their features by a weight: linear, embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence

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

    Where its input has experts, each of them has a weight of its own.

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
    kept = [a for a in x.axes if a.name in ("sample", "sequence", "expert")]
    channels = x.size // math.prod(a.extent for a in kept)
    features = features_axis(x)
    x_dims: dict[str, str | None] = {a.name: a.name for a in kept}
    # a flattened channel is contiguous, so blocks of features are blocks of channels where the
    # degree divides the channels; where it does not, what straddles a border is not counted
    x_dims[features] = "channel"
    y_axes = [Axis(name=a.name, extent=a.extent, dim=a.name) for a in kept]
    y_axes.append(Axis(name=features, extent=filters, dim="filter"))
    dims = {**{a.name: a.extent for a in kept}, "filter": filters, "channel": channels}
    experts = dims.get("expert", 1)
    return Layer(
        name=name,
        kind="linear",
        dims=dims,
        inputs=(relabel(x, x_dims),),
        output=Tensor(axes=tuple(y_axes)),
        weight_dims=(*(("expert",) if "expert" in dims else ()), "filter", "channel"),
        parameters=experts * (channels * filters + (filters if bias else 0)),
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
