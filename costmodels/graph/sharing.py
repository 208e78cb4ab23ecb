"""Weights that several layers use: whose each of them is, and which dims of its users agree."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from costmodels.errors import InputError, closest
from costmodels.graph.layer import Layer


def check_shared_weights(network: str, layers: Mapping[str, Layer]) -> None:
    """Refuse layers that share the weight of none, of themselves, or of another size.

    Parameters
    ----------
    network
        Name of the network, for messages.
    layers
        All layers.

    Raises
    ------
    InputError
        When there is one.
    """
    for layer in layers.values():
        owner = layer.shares_weight_with
        if owner is None:
            continue
        if owner not in layers:
            raise InputError(
                f"network '{network}': layer '{layer.name}' shares the weight of '{owner}', which "
                f"is no layer; name one of {closest(owner, list(layers))}"
            )
        if _shares_with(owner, layer.name, layers):
            raise InputError(
                f"network '{network}': a layer must share the weight of another one but "
                f"'{layer.name}' shares that of '{owner}', which is its own; remove 'share'"
            )
        if layers[owner].held_parameters != layer.held_parameters:
            raise InputError(
                f"network '{network}': layers that share a weight must have equally many "
                f"parameters but '{layer.name}' has {layer.held_parameters} and '{owner}' "
                f"{layers[owner].held_parameters}; correct their extents or the bias"
            )


def _shares_with(name: str | None, other: str, layers: Mapping[str, Layer]) -> bool:
    """Whether the weight that a layer uses, by way of others, is that of another one."""
    seen: set[str] = set()
    while name is not None and name in layers and name not in seen:
        if name == other:
            return True
        seen.add(name)
        name = layers[name].shares_weight_with
    return False


def owners_resolved(network: str, layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """The layers, each sharing with the first user of its weight, however long the chain.

    The first user in the order of the layers counts as the owner: its backward pass is the last
    that adds to the gradient.

    Parameters
    ----------
    network
        Name of the network, for messages.
    layers
        All layers in the order of the forward pass; whom one shares with is among them, and no
        chain comes back to where it began.

    Raises
    ------
    InputError
        When two layers hold a weight in different shapes.
    """
    first: dict[str, str] = {}
    ends: dict[str, str] = {}
    for name in layers:
        end = name
        while (owner := layers[end].shares_weight_with) is not None:
            end = ends.get(owner, owner)
        ends[name] = end
        if end != name:
            _check_shapes(network, layers[end], layers[name])
    shared = {end for name, end in ends.items() if end != name}
    resolved = dict(layers)
    for name, end in ends.items():
        if end in shared:
            owner = first.setdefault(end, name)
            resolved[name] = replace(
                layers[name], shares_weight_with=None if owner == name else owner
            )
    return resolved


def _check_shapes(network: str, owner: Layer, sharer: Layer) -> None:
    """Refuse layers that hold one weight in different shapes.

    Parameters
    ----------
    network
        Name of the network, for messages.
    owner, sharer
        The layers.
    """
    if shared_dims(owner, sharer) is None:
        raise InputError(
            f"network '{network}': layers that share a weight must hold it in one shape but "
            f"'{sharer.name}' has {_weight_shape(sharer)} and '{owner.name}' "
            f"{_weight_shape(owner)}; correct their extents"
        )


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
