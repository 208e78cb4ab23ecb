"""Which function translates which operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from planner.models.traced.nodes import TracedNode
from planner.models.traced.translation import Translation, UnsupportedError
from planner.models.traced.values import Value

Translator: TypeAlias = "Callable[[Translation, TracedNode], object]"
_T = TypeVar("_T", bound="Callable[[Translation, TracedNode], object]")

OPERATORS: dict[str, Translator] = {}


def operator(*names: str) -> Callable[[_T], _T]:
    """Register the function that translates some operators."""

    def register(function: _T) -> _T:
        for name in names:
            assert name not in OPERATORS, f"two functions translate {name}"
            OPERATORS[name] = function
        return function

    return register


def tensor_of(net: Translation, node: object) -> Value:
    """The tensor that an argument is, where it depends on the samples."""
    found = net.known.get(node)
    if not isinstance(found, Value):
        raise UnsupportedError
    return found


def dim_at(value: Value, dim: int) -> int:
    """A dim of a tensor, from the front, where it is known what its dims are."""
    if not value.dims:
        raise UnsupportedError
    return int(dim) % len(value.dims)
