"""Which function translates which operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from planner.torch.translation import Translation, UnsupportedError
from planner.torch.values import Value

if TYPE_CHECKING:
    from torch.fx import Node

Translator: TypeAlias = "Callable[[Translation, Node], object]"
_T = TypeVar("_T", bound="Callable[[Translation, Node], object]")

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
