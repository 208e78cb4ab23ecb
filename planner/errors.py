"""What is raised instead of a plan."""

from __future__ import annotations

from costmodels.errors import InputError

__all__ = ["ConflictError", "InfeasibleError", "InputError"]


class ConflictError(InputError):
    """Inputs that can each be used, but not together.

    The command line points at its help text, too.
    """


class InfeasibleError(Exception):
    """No plan of the searched space fits in memory.

    The message says which layer holds most, how many bytes are short, and what would make it fit.

    Attributes
    ----------
    missing_bytes
        How much memory is short. [B]
    layer
        The layer that holds most.
    """

    def __init__(self, message: str, *, missing_bytes: float, layer: str) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes
        self.layer = layer
