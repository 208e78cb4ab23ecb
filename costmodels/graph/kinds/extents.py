"""Layers that change extents and compute next to nothing: enlargement and concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import own_dims, relabel
from costmodels.graph.layer import SPATIAL_DIMS, Axis, Layer, Tensor


@layer_kind("upsample")
def upsample(name: str, inputs: Sequence[Tensor], *, factor: int = 2) -> Layer:
    """Nearest or bilinear enlargement; blocks scale alike, so no halo is counted.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    factor
        How many times larger each spatial extent becomes.
    """
    (x,) = inputs
    if factor < 1:
        raise InputError.rule(
            f"layer '{name}': factor",
            "be a whole number of at least 1",
            factor,
            "correct it in the network",
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
        operation="copy",
        dims=dims,
        inputs=(relabel(x, own_dims(x)),),
        output=Tensor(axes=y_axes),
        splittable=frozenset(dims),
    )


@layer_kind("concat", num_inputs=None)
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
    own: dict[str, str | None] = {**own_dims(first), "channel": None}
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
        inputs=tuple(relabel(x, own) for x in inputs),
        output=Tensor(axes=y_axes),
        splittable=frozenset(dims),
    )
