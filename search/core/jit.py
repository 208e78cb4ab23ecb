"""Compiled loops where numba is installed, the same loops in plain Python where it is not.

Assumes: the functions give the same answers either way. Whole numbers stay below 2**53, and sums
are made in the order in which they are written: of numba's fast-math only those parts are on that
ignore NaN and the sign of zero, neither of which occurs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper, wraps
from types import FunctionType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
# Where a function that is to be compiled keeps how to compile it.
_BUILD = "__build__"
# What compiling all loops takes: 5.4 s on two cores of an Intel Xeon (2026-12-01). [s]
MOST_COMPILING = 6.0


def compiled(function: F) -> F:
    """Compile a function on its first call, keep the result on disk, and run it without the GIL.

    It may call other such functions of its own module, and makes no arrays itself.
    """

    @cache
    def build() -> Callable[..., Any]:
        # Imported late: who solves small problems need not wait for it.
        try:
            from numba import njit
        except ImportError:
            return function
        options: dict[str, Any] = {
            "cache": True,
            "nogil": True,
            # Without NaN and negative zeros, minima can be vectorised.
            "fastmath": {"nnan", "nsz"},
            # A call would copy what describes each of its arrays and count references to it, which
            # takes longer than a small move. So what is called is put in its place, and arrays are
            # made by the caller, not here (numba's run time is off).
            "inline": "always",
            "_nrt": False,
        }
        return cast(Callable[..., Any], njit(**options)(_linked(function)))

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return build()(*arguments)

    setattr(call, _BUILD, build)
    return cast(F, call)


def compile_time(*functions: Callable[..., object]) -> float:
    """What compiling functions takes at most, 0 where all are compiled, or never are. [s]

    Parameters
    ----------
    functions
        Those that are called from outside of compiled ones.
    """
    return 0.0 if all(_is_built(getattr(one, _BUILD)()) for one in functions) else MOST_COMPILING


def _is_built(function: Callable[..., object]) -> bool:
    """Whether a function has machine code in memory or on disk, or never has any."""
    if not hasattr(function, "signatures"):
        return True
    try:
        # numba has no other way to ask; where this one is gone nothing counts as kept
        kept = function._cache._cache_file._load_index()  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        kept = {}
    return bool(function.signatures or kept)


def _linked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in which the names of compiled functions stand for their machine code."""
    assert isinstance(function, FunctionType)
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        if hasattr(names.get(name), _BUILD):
            names[name] = getattr(names[name], _BUILD)()
    linked = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    return update_wrapper(linked, function)
