"""Assignments in between: runs of layers taken from others, as long as that helps.

What prices on memory find lies on either side of a limit. An assignment that takes some runs of
layers from one and the rest from others can lie closer to it, or within it where none of them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.planning.memory.rows import MemoryRows
from search.problem import Problem
from search.problem.problem import costs_and_peaks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Numbers that the profiles of the assignments tried at once may have: some megabytes. [items]
MOST_NUMBERS = 1_000_000
# How often an assignment is replaced by a better one at most.
STEPS = 40
# Peaks are compared by this power mean of all moments: one that is lower at most moments of a
# plateau counts as better even while one moment is as high as before.
POWER = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossing:
    """Assignments crossed with each other under a limit.

    Parameters
    ----------
    problem
        What assignments cost.
    rows
        What a device holds at each moment.
    limit
        What may be held at any moment. [B]
    """

    problem: Problem
    rows: MemoryRows
    limit: float

    def descend(self, start: Sequence[int], others: Sequence[Sequence[int]]) -> Ints:
        """The best assignment on the way from one, taking runs of layers from others.

        Parameters
        ----------
        start
            Where to begin.
        others
            Assignments to take from.
        """
        best = np.array(start, dtype=np.int64)
        value = self.values(best[None])[0]
        for _ in range(STEPS):
            found = False
            for other in others:
                mixed = mixtures(best, np.array(other), MOST_NUMBERS // self.rows.num_moments)
                if not len(mixed):
                    continue
                values = self.values(mixed)
                lowest = int(np.lexsort(values.T[::-1])[0])
                if tuple(values[lowest]) < tuple(value):
                    best, value, found = mixed[lowest], values[lowest], True
            if not found:
                break
        return best

    def values(self, assignments: Ints) -> Floats:
        """How good assignments are, less being better; (assignments, 2).

        Those within the limit come first, by what they cost; the others by what they hold.

        Parameters
        ----------
        assignments
            A row for each; (assignments, layers).
        """
        held = self.rows.profiles(assignments) / self.limit
        peaks = held.max(axis=1)
        within = peaks <= 1.0
        smooth = peaks * ((held / peaks[:, None]) ** POWER).mean(axis=1) ** (1.0 / POWER)
        values = np.stack([~within, smooth], axis=1)
        if within.any():
            values[within, 1] = costs_and_peaks(self.problem, assignments[within])[0]
        return values


def mixtures(one: Ints, other: Ints, most: int) -> Ints:
    """An assignment with a run of layers taken from another one, for every run; (runs, layers).

    Parameters
    ----------
    one, other
        The two.
    most
        How many there may be: with more layers, not every run is tried. [items]
    """
    differs = np.flatnonzero(one != other)
    if len(differs) < 2:
        return np.zeros((0, len(one)), dtype=np.int64)
    count = min(len(differs), max(int((2.0 * most) ** 0.5), 2))
    # where runs may begin; the last one ends behind the last layer that differs
    places = np.unique(np.linspace(0, len(differs) - 1, count).astype(np.int64))
    borders = np.append(differs[places], len(one))
    first, last = np.triu_indices(len(borders), 1)
    layers = np.arange(len(one))
    inside = (layers >= borders[first][:, None]) & (layers < borders[last][:, None])
    return np.where(inside, other, one)
