"""How each kind of layer looks as an iteration space.

Every function takes the layer's name, the tensors it reads and its options, and returns a `Layer`.
The options are those of a network file, so that a file, a built-in model and an export agree.
"""

from __future__ import annotations

from collections.abc import Callable

from costmodels.graph.kinds.pointwise import (
    activation,
    add,
    batch_norm,
    concat,
    dropout,
    layer_norm,
    loss,
    scale_channels,
    softmax,
)
from costmodels.graph.kinds.products import attention, embedding, linear
from costmodels.graph.kinds.spatial import conv, global_pool, pool, upsample
from costmodels.graph.layer import Axis, Layer, Tensor


def data(name: str, axes: dict[str, int]) -> Layer:
    """Where samples enter; it has no cost and is already distributed as its reader wants."""
    tensor = Tensor(axes=tuple(Axis(name=a, extent=n, dim=None) for a, n in axes.items()))
    return Layer(name=name, kind="input", dims=dict(axes), inputs=(), output=tensor)


# how many tensors a kind reads where that is not one; None is any number
NUM_INPUTS: dict[str, int | None] = {"scale": 2, "add": None, "concat": None}

KINDS: dict[str, Callable[..., Layer]] = {
    "conv": conv,
    "pool": pool,
    "global_pool": global_pool,
    "linear": linear,
    "embedding": embedding,
    "attention": attention,
    "activation": activation,
    "add": add,
    "scale": scale_channels,
    "dropout": dropout,
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "softmax": softmax,
    "loss": loss,
    "upsample": upsample,
    "concat": concat,
}
