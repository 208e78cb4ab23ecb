"""What makes sequences of other tensors, and takes parts of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import own_dims, relabel, spatial_axes
from costmodels.graph.layer import Axis, Layer, Tensor


@layer_kind("tokens")
def tokens(name: str, inputs: Sequence[Tensor], *, class_tokens: int = 1) -> Layer:
    """Positions of space as tokens of a sequence, each with a learned position added to it.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    class_tokens
        Learned tokens that are put before the others. [items]
    """
    (x,) = inputs
    if not spatial_axes(x) or class_tokens < 0:
        raise InputError(
            f"layer '{name}': it must read positions of space, and add 0 or more tokens, but has "
            f"{[a.name for a in x.axes]} and {class_tokens}; correct it or the layer before it"
        )
    length = math.prod(a.extent for a in spatial_axes(x)) + class_tokens
    hidden, samples = x.extent("channel"), x.extent("sample")
    y = (
        Axis(name="sample", extent=samples, dim="sample"),
        Axis(name="sequence", extent=length, dim=None),
        Axis(name="hidden", extent=hidden, dim="channel"),
    )
    return Layer(
        name=name,
        kind="tokens",
        operation="copy",
        dims={"sample": samples, "channel": hidden},
        inputs=(relabel(x, {"sample": "sample", "channel": "channel"}),),
        output=Tensor(axes=y),
        weight_dims=("channel",),
        parameters=(length + class_tokens) * hidden,
        splittable=frozenset({"sample", "channel"}),
    )


@layer_kind("take")
def take_positions(name: str, inputs: Sequence[Tensor], *, axis: str, count: int) -> Layer:
    """The first positions of one axis.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    axis
        Such as "sequence".
    count
        How many positions. [items]
    """
    (x,) = inputs
    extents = {a.name: a.extent for a in x.axes}
    if axis not in extents or axis == "sample" or not 1 <= count <= extents[axis]:
        shape = ", ".join(f"{n} {e}" for n, e in extents.items() if n != "sample")
        raise InputError(
            f"layer '{name}': it must take from 1 to all positions of one of {shape} but takes "
            f"{count} of '{axis}'; correct it"
        )
    own: dict[str, str | None] = {**own_dims(x), axis: None}
    y = tuple(
        Axis(name=a.name, extent=count if a.name == axis else a.extent, dim=own[a.name])
        for a in x.axes
    )
    dims = {d: a.extent for a in x.axes if (d := own[a.name])}
    return Layer(
        name=name,
        kind="take",
        operation="copy",
        dims=dims,
        inputs=(relabel(x, own),),
        output=Tensor(axes=y),
        splittable=frozenset(dims),
    )
