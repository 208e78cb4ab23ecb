"""What of a layer is not trained, and what that spares its backward pass."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph.layer import Layer


def with_frozen(layer: Layer, frozen: bool | int) -> Layer:
    """A layer some or all of whose numbers are not trained.

    Parameters
    ----------
    layer
        The layer with all of its numbers trained.
    frozen
        Whether none is, or how many are not. [items]

    Raises
    ------
    InputError
        When it has fewer.
    """
    count = layer.parameters if frozen is True else int(frozen)
    if not 0 <= count <= layer.parameters or (frozen is True and not count):
        raise InputError.rule(
            f"layer '{layer.name}': frozen",
            f"be true, or from 0 to the {layer.parameters} numbers that it has to train",
            "true" if frozen is True else count,
            "correct it",
        )
    if not count:
        return layer
    found = replace(layer, parameters=layer.parameters - count, frozen_parameters=count)
    # of these, backward reads the input for the gradient of the weight alone
    for_weight = layer.multiplies_weight or layer.kind == "embedding"
    if for_weight and not found.trains_weight:
        return replace(found, keeps_inputs=False)
    return found


def without_backward(layer: Layer) -> Layer:
    """A layer that no gradient goes into: it keeps nothing for a backward pass."""
    return replace(layer, keeps_inputs=False, keeps_output=False, saved_bytes=0, saved_elements=0)
