"""A moment after which a solver should hand in the best it has."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class OutOfTime(Exception):
    """Raised inside a solver at its deadline, and caught where its answer is made."""


class Deadline:
    """A moment after which a solver should hand in the best it has.

    Parameters
    ----------
    time_limit
        Time from now, or None for no limit. [s]
    work
        Limit of CP-SAT's own count of its work, of which it does about one unit a second: unlike
        time, the same on every run. None for no limit.
    """

    __slots__ = ("_end", "work")

    def __init__(self, time_limit: float | None, work: float | None = None) -> None:
        self.work = work
        self._end = math.inf if time_limit is None else time.monotonic() + time_limit

    @property
    def remaining(self) -> float:
        """Time left, never below zero. [s]"""
        return max(0.0, self._end - time.monotonic()) if self._end < math.inf else math.inf

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self._end < math.inf and time.monotonic() >= self._end

    def earlier(self, seconds: float) -> Deadline:
        """A deadline so much before this one, to leave time for what must follow.

        Parameters
        ----------
        seconds
            How much earlier; below zero for a later one. [s]
        """
        found = Deadline(None, self.work)
        found._end = self._end - seconds
        return found

    def part(self, share: float) -> Deadline:
        """A deadline after a share of the time that is left."""
        return Deadline(self.remaining * share, self.work)

    def before(self, rows: Iterable[Item]) -> Iterator[Item]:
        """The rows that are asked for before the moment.

        Parameters
        ----------
        rows
            What each turn of a loop is about.
        """
        for row in rows:
            if self.passed:
                return
            yield row

    def check(self) -> None:
        """Raise `OutOfTime` once the moment has come."""
        if self.passed:
            raise OutOfTime


NO_DEADLINE = Deadline(None)
