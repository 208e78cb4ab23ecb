"""Where kinds of layers are registered: the one table that everything else reads.

A new kind is a function in a file of this folder, under `@layer_kind("its_name")`: it takes the
layer's name, the tensors that it reads and, by keyword, the options of a network file, and returns
a `Layer`. Files of this folder are found by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from costmodels.graph.layer import Layer

LayerMaker = Callable[..., Layer]
_Maker = TypeVar("_Maker", bound=LayerMaker)

# Functions that make layers, by kind, and how many tensors each kind reads; None is any number.
KINDS: dict[str, LayerMaker] = {}
NUM_INPUTS: dict[str, int | None] = {}


def layer_kind(name: str, *, num_inputs: int | None = 1) -> Callable[[_Maker], _Maker]:
    """Register the function that makes layers of a kind.

    Parameters
    ----------
    name
        The kind, as network files write it.
    num_inputs
        Tensors that such a layer reads, None for any number. [items]
    """

    def register(make: _Maker) -> _Maker:
        assert name not in KINDS, f"two functions make layers of kind {name}"
        KINDS[name], NUM_INPUTS[name] = make, num_inputs
        return make

    return register
