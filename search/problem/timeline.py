"""When usage can peak.

Models: every node uses something from the start of its half-open interval to just before its end.
Of all time steps only those matter whose set of live nodes is contained in no other step's set;
those are the last starts before something ends. On these steps each node covers one run of
neighbouring steps, so usage over time is a running sum: linear in the number of nodes.
Assumes: whole-numbered usages, so that running sums in float64 are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct


class UsageTimeline(Struct, frozen=True, kw_only=True, eq=False):
    """The time steps at which usage can peak, and which of them each holding covers.

    A problem has one holding per node.

    Parameters
    ----------
    steps
        The time steps that no other step dominates, in order.
    first
        Per holding, the position in `steps` of the first step it covers.
    last
        Per holding, the position after the last step it covers; equal to `first` where it covers
        none.
    base
        Usage per step whatever is chosen. [B]
    """

    steps: np.ndarray
    first: np.ndarray
    last: np.ndarray
    base: np.ndarray

    def profile(self, usages: np.ndarray) -> np.ndarray:
        """Usage at every step, from one usage per holding.

        Parameters
        ----------
        usages
            One per holding. [B]
        """
        size = self.steps.size + 1
        rise = np.bincount(self.first, weights=usages, minlength=size)
        fall = np.bincount(self.last, weights=usages, minlength=size)
        return np.asarray(self.base + np.cumsum(rise - fall)[:-1])

    def profiles(self, usages: np.ndarray) -> np.ndarray:
        """Usage at every step for many assignments at once; `usages` is assignments x holdings.

        Parameters
        ----------
        usages
            One per assignment and holding. [B]
        """
        change = np.zeros((self.steps.size + 1, usages.shape[0]))
        np.add.at(change, self.first, usages.T)
        np.subtract.at(change, self.last, usages.T)
        return self.base + np.cumsum(change, axis=0)[:-1].T

    def covers(self, position: int) -> np.ndarray:
        """Per holding, whether it covers the step at this position."""
        return np.asarray((self.first <= position) & (position < self.last))

    def spans(self, per_step: np.ndarray) -> np.ndarray:
        """Per holding, the sum of `per_step` over the steps it covers."""
        prefix = np.concatenate([[0.0], np.cumsum(per_step)])
        return np.asarray(prefix[self.last] - prefix[self.first])


def make_timeline(intervals: Sequence[tuple[int, int] | None]) -> UsageTimeline:
    """Find the steps at which usage can peak.

    Parameters
    ----------
    intervals
        Half-open interval per node; None, or an interval that is empty, means never.
    """
    bounds = np.array([(0, 0) if i is None else i for i in intervals], dtype=np.int64)
    bounds = bounds.reshape(-1, 2)
    live = bounds[:, 1] > bounds[:, 0]
    starts = np.array(sorted(set(bounds[live, 0].tolist())), dtype=np.int64)
    ends = np.sort(bounds[live, 1])
    # A start is dominated by the next one unless something ends in between.
    ended = np.append(np.searchsorted(ends, starts, "right"), ends.size)
    steps = starts[np.diff(ended) > 0]
    first = np.where(live, np.searchsorted(steps, bounds[:, 0]), 0)
    last = np.where(live, np.searchsorted(steps, bounds[:, 1]), 0)
    return UsageTimeline(steps=steps, first=first, last=last, base=np.zeros(steps.size))
