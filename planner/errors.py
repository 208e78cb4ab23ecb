"""What is raised instead of a plan."""

from __future__ import annotations

from typing import TypeVar

from costmodels.errors import InputError

__all__ = ["ConflictError", "ContradictionError", "InfeasibleError", "InputError", "detached"]

Kind = TypeVar("Kind", bound=Exception)


class ConflictError(InputError):
    """Inputs that can each be used, but not together.

    The command line points at its help text, too.
    """


class ContradictionError(InputError):
    """What is held fixed and ruled out leaves nothing of the ways to train."""


class InfeasibleError(Exception):
    """No plan that fits in memory was found.

    The message says which layer holds most, how many bytes are short, and what would make it fit.

    Attributes
    ----------
    missing_bytes
        How much memory is short for the smallest plan met. [B]
    layer
        The layer that holds most, empty where no plan was met.
    proven
        Whether it is proven that no plan fits, whatever distributions of the layers it has.
    stopped_by
        "time limit" or "interrupt" where the search was cut short, else empty.
    bound_s
        What no step takes less than of those that may fit though none was found. [s]
    """

    def __init__(
        self,
        message: str,
        *,
        missing_bytes: float,
        layer: str,
        proven: bool = True,
        stopped_by: str = "",
        bound_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes
        self.layer = layer
        self.proven = proven
        self.stopped_by = stopped_by
        self.bound_s = bound_s

    @property
    def status(self) -> str:
        """In a word: "infeasible", "stopped" or, where neither is known, "not found"."""
        if self.proven:
            return "infeasible"
        return "stopped" if self.stopped_by else "not found"


def detached(error: Kind) -> Kind:
    """An error to keep as an answer, without where it came from.

    That would hold in memory all that was known there.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
