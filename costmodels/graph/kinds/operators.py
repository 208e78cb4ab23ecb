"""Operators that no other kind describes, as they are found in modules of a framework.

`pointwise` reads its tensors position by position, and may be split anyhow. `rearrange` passes some
axes on as they are, which may be split, and needs all of the others. `opaque` needs all but the
samples. All three are costed by the bytes that they read and write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph.kinds.pointwise import add, bias
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import features_axis, own_dims, relabel
from costmodels.graph.layer import Axis, Layer, Tensor


@layer_kind("pointwise", num_inputs=None)
def pointwise(
    name: str,
    inputs: Sequence[Tensor],
    *,
    keeps: bool = True,
    weights: int = 0,
    slopes: int = 0,
    detached: bool = False,
) -> Layer:
    """A function of tensors of one shape, position by position, and of trained vectors of features.

    Parameters
    ----------
    name, inputs
        The layer, and the tensors that it reads, all of one shape.
    keeps
        Whether backward reads its inputs again, as that of a product does.
    weights
        Trained vectors of as many numbers as there are features. [items]
    slopes
        Trained numbers that are the same for all features, where there are no vectors. [items]
    detached
        Whether no gradient goes back through it.
    """
    (x, *others) = inputs
    layer = add(name, inputs) if others else bias(name, inputs)
    if min(weights, slopes) > 0:
        raise InputError.rule(
            f"layer '{name}'",
            "have either vectors (weights) or numbers (slopes) that are trained",
            "both",
            "leave one out",
        )
    return replace(
        layer,
        kind="pointwise",
        operation="add" if others else "activation",
        parameters=slopes or weights * x.extent(features_axis(x)),
        weight_dims=("channel",) if weights else (),
        keeps_inputs=keeps,
        in_place=False,
        stops_gradient=detached,
    )


@layer_kind("rearrange")
def rearrange(
    name: str, inputs: Sequence[Tensor], *, axes: Mapping[str, int], along: Mapping[str, str]
) -> Layer:
    """A tensor with other axes: some that are passed on, and some that are made of all others.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    axes
        Axes of the output beside the samples. [items]
    along
        Of those, what is passed on position by position: the axis of the input that it was.
    """
    (x,) = inputs
    extents = {axis.name: axis.extent for axis in x.axes}
    for axis, source in along.items():
        if axes.get(axis) != extents.get(source):
            raise InputError(
                f"layer '{name}': an axis that is passed on must keep its extent but '{axis}' has "
                f"{axes.get(axis)} and '{source}' {extents.get(source)}; correct 'along'"
            )
    named = {"sample": "sample", **along}
    dims = {source: own_dims(x)[source] for source in named.values()}
    samples = x.extent("sample")
    y = tuple(
        Axis(name=axis, extent=extent, dim=dims.get(named.get(axis, "")))
        for axis, extent in {"sample": samples, **axes}.items()
    )
    passed = {dim: extents[source] for source, dim in dims.items() if dim is not None}
    return Layer(
        name=name,
        kind="rearrange",
        operation="copy",
        dims=passed,
        inputs=(relabel(x, dims),),
        output=Tensor(axes=y),
        splittable=frozenset(passed),
    )


@layer_kind("opaque", num_inputs=None)
def opaque(
    name: str, inputs: Sequence[Tensor], *, axes: Mapping[str, int], weights: int = 0
) -> Layer:
    """An operator of which nothing is known but what it reads and writes.

    Parameters
    ----------
    name, inputs
        The layer, and the tensors that it reads.
    axes
        Axes of the output beside the samples. [items]
    weights
        Trained numbers. [items]
    """
    samples = inputs[0].extent("sample")
    y = [Axis(name="sample", extent=samples, dim="sample")]
    y += [Axis(name=axis, extent=extent, dim=None) for axis, extent in axes.items()]
    return Layer(
        name=name,
        kind="opaque",
        # reads all of its inputs and writes its output, as a concatenation does
        operation="add" if len(inputs) > 1 else "activation",
        dims={"sample": samples},
        inputs=tuple(relabel(x, {"sample": "sample"}) for x in inputs),
        output=Tensor(axes=tuple(y)),
        parameters=weights,
        keeps_inputs=True,
        splittable=frozenset({"sample"}),
    )
