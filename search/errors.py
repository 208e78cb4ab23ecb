"""The one error of this package that its callers cause, and the one form of its sentence."""

from __future__ import annotations


class ProblemError(ValueError):
    """A problem, or what is asked of one, cannot be used; the message is a single sentence."""

    @classmethod
    def rule(cls, what: str, rule: str, value: object, advice: str) -> ProblemError:
        """The usual sentence: what must be how, what it is instead, what to do next.

        Parameters
        ----------
        what
            What was given, such as "the solver".
        rule
            What it must do, such as "be one of auto, cp-sat".
        value
            What it is, with its unit.
        advice
            What to do next.
        """
        return cls(f"{what} must {rule} but is {value}; {advice}")
