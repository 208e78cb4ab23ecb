"""The one error a user can cause: its message is a single sentence that can be shown as it is."""

from __future__ import annotations


class InputError(ValueError):
    """Something that the user gave cannot be used.

    The message says what, the rule, the value got with its unit, and what to do next.
    """
