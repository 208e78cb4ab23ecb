"""What a search knows so far: the one state that every solver and the planner's own search keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from search.problem.notes import Note

Answer = TypeVar("Answer")
# Called with the best cost and the bound.
Watch = Callable[[float, float], None]
# Sums taken in another order differ in their last digits; that is not a gap.
RELATIVE_TOLERANCE = 1e-9
# A bound that rises by less than that part of it is no progress.
PROGRESS = 1e-6


@dataclass(slots=True, kw_only=True, eq=False)
class Incumbent(Generic[Answer]):
    """The best answer so far, what is proven about all others, and why the search ended.

    Parameters
    ----------
    choices
        The best answer, or None.
    cost
        Its cost; +inf without one.
    bound
        No answer costs less; +inf where it is proven that there is none.
    path
        The steps taken, such as "presolve > elimination".
    stopped_by
        "time limit", "work limit" or "interrupt" where the search was cut short, else empty.
    notes
        What is worth knowing of the answer.
    watch
        Called with the best cost and the bound whenever either is better.
    """

    choices: Answer | None = None
    cost: float = math.inf
    bound: float = -math.inf
    path: str = ""
    stopped_by: str = ""
    notes: list[Note] = field(default_factory=list)
    watch: Watch | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing is left to prove: the answer is a best one, or there is none."""
        return self.bound >= tolerated(self.cost)

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that there is no answer."""
        return self.choices is None and self.bound == math.inf

    def offer(self, choices: Answer | None, cost: float) -> bool:
        """Keep an answer if it is the cheapest so far; whether it is."""
        if choices is None or cost >= self.cost:
            return False
        self.choices, self.cost = choices, cost
        self._tell()
        return True

    def raise_bound(self, bound: float) -> bool:
        """Keep a bound if it is the highest so far; whether that is progress worth mentioning."""
        if bound <= self.bound:
            return False
        known = self.bound > -math.inf
        progress = not known or bound > self.bound + PROGRESS * abs(self.bound)
        self.bound = bound
        if progress:
            self._tell()
        return progress

    def add_note(self, note: Note) -> None:
        """Keep a note, once."""
        if note not in self.notes:
            self.notes.append(note)

    def _tell(self) -> None:
        if self.watch is not None:
            self.watch(self.cost, self.bound)


def tolerated(cost: float) -> float:
    """The bound from which on a cost counts as proven."""
    return cost - RELATIVE_TOLERANCE * abs(cost) if cost < math.inf else math.inf
