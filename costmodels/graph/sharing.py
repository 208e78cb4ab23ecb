"""Weights that several layers use: whose each of them is, and which dims of its users agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from costmodels.errors import InputError
from costmodels.graph.layer import Layer


def owners_resolved(network: str, layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """The layers, each sharing with the layer that has the weight itself, however long the chain.

    Parameters
    ----------
    network
        Name of the network, for messages.
    layers
        All layers; whom one shares with must be among them.

    Raises
    ------
    InputError
        When no layer of a chain has a weight of its own, or two hold it in different shapes.
    """
    resolved = dict(layers)
    for name, layer in layers.items():
        if layer.shares_weight_with is None:
            continue
        chain = [name]
        while (owner := layers[chain[-1]].shares_weight_with) is not None:
            if owner in chain:
                raise InputError(
                    f"network '{network}': a layer that shares a weight must lead to one that has "
                    f"it but {' -> '.join([*chain, owner])} does not; leave out one 'share'"
                )
            chain.append(owner)
        if shared_dims(layers[chain[-1]], layer) is None:
            raise InputError(
                f"network '{network}': layers that share a weight must hold it in one shape but "
                f"'{name}' has {_weight_shape(layer)} and '{chain[-1]}' {_weight_shape(layers[chain[-1]])}; "
                "correct their extents"
            )
        resolved[name] = replace(layer, shares_weight_with=chain[-1])
    return resolved


def shared_dims(owner: Layer, sharer: Layer) -> tuple[tuple[str, str], ...] | None:
    """Dim of the owner and dim of the sharer for each axis of the weight, None if shapes differ.

    Both hold it as it is stored; a layer whose shape is the reverse uses it transposed.

    Parameters
    ----------
    owner, sharer
        The layer that has the weight, and one that uses it, too.
    """
    extents = [owner.dims[dim] for dim in owner.weight_dims]
    for dims in (sharer.weight_dims, sharer.weight_dims[::-1]):
        if [sharer.dims[dim] for dim in dims] == extents:
            return tuple(zip(owner.weight_dims, dims, strict=True))
    return None


def _weight_shape(layer: Layer) -> str:
    return " x ".join(f"{dim} {layer.dims[dim]}" for dim in layer.weight_dims)
