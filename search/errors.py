"""The one error of this package that its callers cause."""

from __future__ import annotations


class ProblemError(ValueError):
    """A problem is malformed, or a solver does not accept its shape."""
