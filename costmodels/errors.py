"""The one error a user can cause: its message is a single sentence that can be shown as it is."""

from __future__ import annotations

import math


class InputError(ValueError):
    """Something that the user gave cannot be used.

    The message says what, the rule, the value with its unit, and what to do next.
    """

    @classmethod
    def rule(cls, what: str, rule: str, value: object, advice: str) -> InputError:
        """The usual sentence: what must be how, what it is instead, what to do next.

        Parameters
        ----------
        what
            What was given, such as "the overlap factor".
        rule
            What it must do, such as "be from 0 to 10".
        value
            What it is, with its unit.
        advice
            What to do next.
        """
        return cls(f"{what} must {rule} but is {value}; {advice}")


def require_positive(what: str, value: float, unit: str = "", *, finite: bool = True) -> None:
    """Refuse a figure that is not above zero.

    Parameters
    ----------
    what
        What error messages call it.
    value
        The figure.
    unit
        Its unit, if it has one.
    finite
        Whether it must be finite, too; infinite rates set no limit.
    """
    if not value > 0 or (finite and math.isinf(value)):
        rule = "be greater than 0 and finite" if finite else "be greater than 0"
        raise InputError.rule(what, rule, f"{value:g} {unit}".rstrip(), "correct it")


def require_not_negative(what: str, value: float, unit: str = "") -> None:
    """Refuse a figure that is negative or infinite.

    Parameters
    ----------
    what
        What error messages call it.
    value
        The figure.
    unit
        Its unit, if it has one.
    """
    if not (math.isfinite(value) and value >= 0):
        rule = "not be negative and must be finite"
        raise InputError.rule(what, rule, f"{value:g} {unit}".rstrip(), "correct it")
