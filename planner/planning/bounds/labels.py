"""Assignments of the last layers of a network, of which those go that another is as good as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.simulation.run import OVERLAP_FACTOR

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Labels(Struct, frozen=True, kw_only=True, eq=False):
    """Assignments of the last layers; (labels,) each.

    Parameters
    ----------
    choice, buckets, parent
        Candidate of the first of these layers, number of what waits, and the label that it is from.
    through
        All that is computed and waited for so far, slowed by all-reduces. [s]
    reduced
        The end of all all-reduces so far, one after the other from some gradient on. [s]
    """

    choice: Ints
    buckets: Ints
    parent: Ints
    through: Floats
    reduced: Floats

    def take(self, indices: Ints | NDArray[np.bool_]) -> Labels:
        """Some of them."""
        return Labels(**{name: getattr(self, name)[indices] for name in Labels.__struct_fields__})

    def near(self, waiting: Floats, rest: Mapping[float, Floats], worst: float) -> Ints:
        """Indices of those that may end in something faster than some time.

        Parameters
        ----------
        waiting
            What the buckets of each take beyond what their gradients pay. [s]
        rest
            What all layers to come add at least behind each candidate to a mean of both ends, by
            how much of the second one that has. [s]
        worst
            That time. [s]
        """
        near = np.arange(len(self.choice))
        for mixture, to_come in rest.items():
            # what waits was counted in full, and pays less of what is to come
            mean = (1.0 - mixture) * (self.through[near] - OVERLAP_FACTOR * waiting[near])
            mean += mixture * (self.reduced[near] - waiting[near])
            near = near[mean + to_come[self.choice[near]] < worst]
        return near

    def undominated(self, unit: float) -> Labels:
        """Those that none with the same buckets, and the same candidate, is as good as.

        Times are rounded down to whole units, so that those that are nearly alike become alike. [s]
        """
        through, reduced = (
            np.floor(row / unit).astype(np.int64) for row in (self.through, self.reduced)
        )
        most = 1 + int(max(through.max(initial=0), reduced.max(initial=0)))
        order = np.argsort((self.buckets * most + through) * most + reduced, kind="stable")
        # lower by more than any time for each group of equal buckets, so that groups stay apart
        ends = reduced[order] - most * self.buckets[order]
        best = np.ones(len(ends), dtype=bool)
        best[1:] = ends[1:] < np.minimum.accumulate(ends)[:-1]
        kept = order[best]
        return Labels(
            choice=self.choice[kept],
            buckets=self.buckets[kept],
            parent=self.parent[kept],
            through=np.multiply(through[kept], unit, dtype=np.float64),
            reduced=np.multiply(reduced[kept], unit, dtype=np.float64),
        )


def joined(parts: Sequence[Labels]) -> Labels:
    """All labels of some parts, one part after the other."""
    names = Labels.__struct_fields__
    return Labels(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})
