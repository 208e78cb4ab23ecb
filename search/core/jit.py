"""Compiled loops where numba is installed, the same loops in plain Python where it is not.

Assumes: the functions give the same answers either way: whole numbers stay below 2**53, and sums
are made in the order in which they are written (no fast-math).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function on its first call, keep the result on disk, and run it without the GIL."""

    @cache
    def built() -> Callable[..., Any]:
        # Imported late: who solves small problems need not wait for it.
        try:
            from numba import njit
        except ImportError:
            return function
        # Neither NaN nor the sign of zero matters here; without them minima can be vectorised.
        return cast(
            Callable[..., Any],
            njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})(function),
        )

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return built()(*arguments)

    return cast(F, call)
