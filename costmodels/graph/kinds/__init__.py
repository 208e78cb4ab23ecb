"""How each kind of layer looks as an iteration space.

Every function takes the layer's name, the tensors it reads and its options, and returns a `Layer`.
The options are those of a network file, so that a file, a built-in model and an export agree. Every
module of this folder is imported, and each registers its kinds (see `registry`).
"""

from __future__ import annotations

import importlib
import pkgutil

from costmodels.graph.kinds.registry import KINDS, NUM_INPUTS, layer_kind
from costmodels.graph.layer import Axis, Layer, Tensor

__all__ = ["KINDS", "NUM_INPUTS", "data", "layer_kind"]

# These come first, in this order, in which messages list their kinds.
_FIRST = ("spatial", "products", "pointwise", "extents")
_FOUND = sorted(module.name for module in pkgutil.iter_modules(__path__))
for _name in dict.fromkeys((*_FIRST, *_FOUND)):
    importlib.import_module(f"{__name__}.{_name}")


def data(name: str, axes: dict[str, int]) -> Layer:
    """Where samples enter; it costs nothing and is already distributed as its reader wants."""
    tensor = Tensor(axes=tuple(Axis(name=a, extent=n, dim=None) for a, n in axes.items()))
    return Layer(name=name, kind="input", dims=dict(axes), inputs=(), output=tensor)
