"""The local work of a layer under many distributions, as the compute models take it."""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from costmodels.compute import Work
from costmodels.distribution import Candidates
from costmodels.graph import SPATIAL_DIMS, Layer, Tensor
from costmodels.layers.attention_work import fused_attention

Floats = NDArray[np.float64]
# Axes of activations that are no features, beside those of space.
_MORE_EXTENTS = ("sequence", "expert", "table")


def local_size(tensor: Tensor, candidates: Candidates) -> Floats:
    """Elements of the largest local block of a tensor; (candidates,). [items]"""
    if not tensor.axes:
        return np.ones(len(candidates))
    first, *others = map(candidates.axis_extent, tensor.axes)
    return reduce(np.multiply, others, first.astype(float))


def local_parameters(layer: Layer, candidates: Candidates) -> Floats:
    """Trainable numbers of the largest local part of the weight; (candidates,). [items]

    A bias is split with the filters only, but is counted with the weight: it is small.
    """
    return layer.parameters * _local_part(layer, candidates)


def local_numbers(layer: Layer, candidates: Candidates) -> Floats:
    """As `local_parameters`, with the numbers that are not trained. [items]"""
    return layer.held_parameters * _local_part(layer, candidates)


def _local_part(layer: Layer, candidates: Candidates) -> Floats:
    """Largest part of the weight that one rank has; (candidates,)."""
    part = np.ones(len(candidates))
    for dim in set(layer.weight_dims) & set(candidates.dims):
        part = part * candidates.local(dim, layer.dims[dim]) / layer.dims[dim]
    return part


def _extents(tensor: Tensor, candidates: Candidates) -> tuple[Floats, ...]:
    rows = []
    for axis in tensor.axes:
        if axis.name in SPATIAL_DIMS or axis.name in _MORE_EXTENTS:
            rows.append(candidates.axis_extent(axis).astype(float))
    return tuple(rows)


def _features(tensor: Tensor, candidates: Candidates) -> Floats:
    for axis in tensor.axes:
        if axis.name in ("channel", "hidden"):
            return candidates.axis_extent(axis).astype(float)
    return np.ones(1)


def _products(layer: Layer, candidates: Candidates, direction: str) -> list[Work]:
    """Products of activations (scores and weighted values of attention), and what lies between."""
    works: list[Work] = []
    for product in layer.products:
        samples: Floats = np.ones(len(candidates))
        for dim in product.batch:
            samples = samples * candidates.local(dim, layer.dims[dim])
        rows = (candidates.local(product.row_dim or "", product.rows).astype(float),)
        columns = np.asarray(float(product.columns))
        works.append(
            Work(
                operation="matmul",
                direction=direction,
                samples=samples,
                channels=np.asarray(float(product.contracted)),
                filters=columns,
                in_extents=rows,
                out_extents=rows,
            )
        )
        if product is layer.products[0] and direction != "backward_weight":
            works += [
                Work(
                    operation=operation,
                    direction="forward" if direction == "forward" else "backward",
                    samples=samples,
                    channels=columns,
                    filters=columns,
                    in_extents=rows,
                    out_extents=rows,
                )
                for operation in layer.between
            ]
    if layer.kind != "attention" or layer.between:
        return works
    keys = layer.inputs[1].axes[-1]
    parts = keys.units or layer.dims["head"]
    held = candidates.axis_extent(keys) * parts / keys.extent
    shared = candidates.local("head", layer.dims["head"]) / held
    return fused_attention(*works, keys=layer.inputs[1].extent("sequence"), shared=shared)


def _expert_products(layer: Layer, candidates: Candidates, direction: str) -> list[Work]:
    """One product for each local expert: the linear layers of a mixture, as groups of one."""
    experts, filters, channels = (
        candidates.local(dim, layer.dims[dim]).astype(float)
        for dim in ("expert", "filter", "channel")
    )
    rows = (candidates.local("sequence", layer.dims.get("sequence", 1)).astype(float),)
    return [
        Work(
            operation="linear",
            direction=direction,
            samples=candidates.local("sample", layer.dims["sample"]).astype(float),
            channels=experts * channels,
            filters=experts * filters,
            in_extents=rows,
            out_extents=rows,
            groups=experts,
        )
    ]


def local_work(layer: Layer, candidates: Candidates, direction: str) -> list[Work]:
    """Local work of one pass of a layer.

    Parameters
    ----------
    layer
        The layer.
    candidates
        Its distributions.
    direction
        "forward", "backward_data" or "backward_weight"; layers without matrix arithmetic do all
        their backward work in "backward_data".
    """
    if layer.operation == "fused_activation":
        return []
    if layer.multiplies_activations:
        return _products(layer, candidates, direction)
    if layer.multiplies_weight and "expert" in layer.dims:
        return _expert_products(layer, candidates, direction)
    if not layer.is_dense:
        if direction == "backward_weight":
            return []
        direction = "forward" if direction == "forward" else "backward"
    samples = candidates.local("sample", layer.dims["sample"]).astype(float)
    channels = _features(layer.inputs[0], candidates)
    filters = _features(layer.output, candidates)
    if layer.is_dense:
        channels = candidates.local("channel", layer.dims["channel"]).astype(float)
    if layer.operation == "concat":
        channels = filters
    groups: Floats | int = layer.groups
    if layer.groups > 1 and layer.inputs[0].dims >= {"filter"}:
        # depthwise: groups are split with the filters
        groups = candidates.local("filter", layer.groups).astype(float)
        channels = groups
    in_extents, out_extents = (
        _extents(layer.inputs[0], candidates),
        _extents(layer.output, candidates),
    )
    if layer.operation == "linear":
        in_extents = out_extents
    if layer.transposed:
        # the same products as a convolution from the large to the small side, run the other way
        channels, filters, in_extents, out_extents = filters, channels, out_extents, in_extents
        direction = {"forward": "backward_data", "backward_data": "forward"}.get(
            direction, direction
        )
    windows = [layer.windows[d] for d in SPATIAL_DIMS if d in layer.windows]
    return [
        Work(
            operation=layer.operation,
            direction=direction,
            samples=samples,
            channels=channels,
            filters=filters,
            in_extents=in_extents,
            out_extents=out_extents,
            kernel=tuple(window.kernel for window in windows),
            stride=tuple(window.stride for window in windows),
            groups=groups,
        )
    ]


def side_work(
    layer: Layer, candidates: Candidates, direction: str, *, transposes: bool
) -> list[Work]:
    """What one pass of a convolution runs besides the product, in the same operation.

    Parameters
    ----------
    layer, candidates, direction
        As of `local_work`.
    transposes
        Whether what it reads and writes is transposed for the product: once each, but for groups,
        whose kernels read any layout.
    """
    if layer.operation != "conv":
        return []
    maps: list[tuple[str, str, Tensor]] = []
    if layer.biased and direction != "backward_data":
        way = "forward" if direction == "forward" else "backward"
        maps.append(("bias", way, layer.output))
    if transposes and layer.groups == 1:
        maps += [("copy", "forward", tensor) for tensor in (layer.inputs[0], layer.output)]
    samples = candidates.local("sample", layer.dims["sample"]).astype(float)
    found = []
    for operation, way, tensor in maps:
        extents, features = _extents(tensor, candidates), _features(tensor, candidates)
        work = Work(
            operation=operation,
            direction=way,
            samples=samples,
            channels=features,
            filters=features,
            in_extents=extents,
            out_extents=extents,
        )
        found.append(work)
    return found


def bias_work(layer: Layer, candidates: Candidates) -> Work:
    """The gradient of a bias: the sum of that of the output.

    Parameters
    ----------
    layer, candidates
        As of `local_work`.
    """
    extents, features = _extents(layer.output, candidates), _features(layer.output, candidates)
    return Work(
        operation="bias",
        direction="backward",
        samples=candidates.local("sample", layer.dims["sample"]).astype(float),
        channels=features,
        filters=features,
        in_extents=extents,
        out_extents=extents,
    )


def update_work(parameters: Floats, optimizer: str) -> Work:
    """The optimizer's pass over the local weights."""
    one = np.ones(1)
    return Work(
        operation=f"{optimizer}_update",
        direction="forward",
        samples=parameters,
        channels=one,
        filters=one,
    )
