"""How each kind of layer looks as an iteration space.

Every function takes the layer's name, the tensors it reads and its options, and returns a `Layer`.
The options are those of a network file, so that a file, a built-in model and an export agree. Every
module of this folder is imported, and each registers its kinds (see `registry`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence

from costmodels.errors import InputError
from costmodels.graph.freezing import with_frozen
from costmodels.graph.kinds.registry import KINDS, NUM_INPUTS, layer_kind
from costmodels.graph.layer import Axis, Layer, Tensor

__all__ = ["KINDS", "NUM_INPUTS", "data", "layer_kind", "make_layer"]

# These come first, in this order, in which messages list their kinds.
_FIRST = ("spatial", "products", "pointwise", "extents")
_FOUND = sorted(module.name for module in pkgutil.iter_modules(__path__))
for _name in dict.fromkeys((*_FIRST, *_FOUND)):
    importlib.import_module(f"{__name__}.{_name}")


def data(name: str, axes: dict[str, int]) -> Layer:
    """Where samples enter; it costs nothing and is already distributed as its reader wants."""
    tensor = Tensor(axes=tuple(Axis(name=a, extent=n, dim=None) for a, n in axes.items()))
    return Layer(name=name, kind="input", dims=dict(axes), inputs=(), output=tensor)


def make_layer(
    kind: str, name: str, tensors: Sequence[Tensor], options: Mapping[str, object]
) -> Layer:
    """A layer of a kind.

    Parameters
    ----------
    kind, name, tensors
        The kind, the layer's name and what it reads.
    options
        Those of the kind, and "frozen", which every kind has that has a weight: whether it is not
        trained, or how many of its numbers are not.
    """
    own = dict(options)
    frozen = own.pop("frozen", 0)
    if not isinstance(frozen, int):
        raise InputError.rule(
            f"layer '{name}': frozen", "be true, or a whole number", repr(frozen), "correct it"
        )
    return with_frozen(KINDS[kind](name, tensors, **own), frozen)
