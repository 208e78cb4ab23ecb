"""The one error a user can cause: its message is a single sentence that can be shown as it is."""

from __future__ import annotations


class InputError(ValueError):
    """Something that the user gave cannot be used.

    The message says what, the rule, the value got with its unit, and what to do next.
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
