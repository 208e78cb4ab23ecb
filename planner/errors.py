"""Answers that are not plans."""

from __future__ import annotations


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
