"""Axes of activations, and which dims of a layer index them."""

from __future__ import annotations

from costmodels.graph.layer import SPATIAL_DIMS, Axis, Tensor


def spatial_axes(tensor: Tensor) -> tuple[Axis, ...]:
    """The axes of depth, height and width."""
    return tuple(axis for axis in tensor.axes if axis.name in SPATIAL_DIMS)


def relabel(tensor: Tensor, dims: dict[str, str | None]) -> Tensor:
    """The same axes, indexed by the given dims."""
    return Tensor(
        axes=tuple(
            Axis(name=axis.name, extent=axis.extent, dim=dims.get(axis.name))
            for axis in tensor.axes
        )
    )


def features_axis(tensor: Tensor) -> str:
    """Name of the axis that holds the features: "hidden" in sequences, else "channel"."""
    return "hidden" if any(axis.name == "hidden" for axis in tensor.axes) else "channel"


def own_dims(tensor: Tensor) -> dict[str, str | None]:
    """Index every axis by the dim of its own name; features count as channels."""
    return {axis.name: "channel" if axis.name == "hidden" else axis.name for axis in tensor.axes}
