"""What is worth knowing of an estimate besides its figures: facts of a kind, not sentences.

Whoever shows an estimate words its notes (`planner.notes`), so that they can be told apart, counted
and left out by kind.
"""

from __future__ import annotations

from msgspec import Struct

Fact = str | int | float


class Note(Struct, frozen=True):
    """A fact on how an estimate came about.

    Parameters
    ----------
    kind
        What is said, such as "transferred-surface" or "roofline".
    facts
        What it is said of, as (name, value), in the order in which they are worded.
    """

    kind: str
    facts: tuple[tuple[str, Fact], ...] = ()

    @classmethod
    def of(cls, kind: str, **facts: Fact) -> Note:
        """A note with its facts by name.

        Parameters
        ----------
        kind
            What is said.
        facts
            What it is said of.
        """
        return cls(kind, tuple(facts.items()))
