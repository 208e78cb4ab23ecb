"""Which candidates can be part of anything that fits, moment by moment.

Whatever the other layers take, at each moment they hold no less than the least of each of their
candidates. A candidate that exceeds a limit together with that is part of nothing that fits. With
those left out the others hold more at the least, so that this is repeated until all stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from costmodels.distribution import Candidates, places_of_totals
from planner.planning.memory.rows import LayerUse, MemoryRows
from planner.planning.space.formulate import Floats

# What is summed in another order differs in the last digits: that part of a bound is let go.
ROUNDING = 1e-12
# How often all layers are looked at: most that leaves does so in the first few. [items]
PASSES = 10


class _Held(Struct, frozen=True, kw_only=True, eq=False):
    """What a layer holds from each moment at which that changes until before the next one.

    Parameters
    ----------
    borders
        These moments, the last one being where it holds nothing any more.
    sizes
        What is held between them; (candidates, borders - 1). [B]
    """

    borders: NDArray[np.int64]
    sizes: Floats

    @classmethod
    def of(cls, uses: list[LayerUse]) -> _Held:
        """The sum of what a layer holds for several reasons."""
        borders = np.unique([moment for use in uses for moment in (use.first, use.last)])
        sizes = np.zeros((len(uses[0].sizes), len(borders) - 1))
        for use in uses:
            first, last = np.searchsorted(borders, (use.first, use.last))
            sizes[:, first:last] += use.sizes[:, None]
        return cls(borders=borders, sizes=sizes)

    def add_to(self, total: Floats, sizes: Floats) -> None:
        """Add what is held between the borders to what is held at every moment.

        Parameters
        ----------
        total
            At every moment; it is changed.
        sizes
            Between the borders. [B]
        """
        total[self.borders[0] : self.borders[-1]] += np.repeat(sizes, np.diff(self.borders))

    def highest(self, total: Floats) -> Floats:
        """The most that is held in all at any moment between two borders. [B]"""
        until = total[: self.borders[-1]]
        most: Floats = np.maximum.reduceat(until, self.borders[:-1])
        return most


class SplitsThatFit(Struct, frozen=True, kw_only=True, eq=False):
    """How layers may be split where something is to be within a limit.

    Parameters
    ----------
    splits
        All ways to split each layer in all that holds anything.
    left
        Which of them may be part of something that fits.
    beyond
        No assignment with any other holds less at its peak. [B]
    """

    splits: Mapping[int, Candidates] = field(default_factory=dict)
    left: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)
    beyond: float = math.inf

    def among(self, layer: int, candidates: Candidates) -> NDArray[np.bool_]:
        """Which candidates may be part of something that fits.

        Parameters
        ----------
        layer
            The layer.
        candidates
            Candidates of it.
        """
        if layer not in self.left:
            return np.ones(len(candidates), dtype=bool)
        left: NDArray[np.bool_] = self.left[layer][places_of_totals(candidates, self.splits[layer])]
        return left


class Fitting(Struct, kw_only=True, eq=False):
    """The candidates of each layer that may be part of something within a limit.

    Parameters
    ----------
    limit
        What may be held at any moment. [B]
    held
        What each layer holds that holds anything.
    left
        Which of its candidates may.
    beyond
        No assignment with any other candidate holds less at its peak. [B]
    """

    limit: float
    held: dict[int, _Held]
    left: dict[int, NDArray[np.bool_]]
    beyond: float = field(default=math.inf)

    @classmethod
    def of(cls, rows: MemoryRows, limit: float) -> Fitting:
        """All candidates, as long as nothing is known of them.

        Parameters
        ----------
        rows
            What layers hold at each moment; what edges add is left out.
        limit
            As above.
        """
        uses: dict[int, list[LayerUse]] = {}
        for use in rows.layers:
            uses.setdefault(use.layer, []).append(use)
        held = {layer: _Held.of(several) for layer, several in uses.items()}
        left = {layer: np.ones(len(one.sizes), dtype=bool) for layer, one in held.items()}
        return cls(limit=limit, held=held, left=left)

    def leave_out(self, layer: int, lowest: Floats) -> None:
        """Leave out candidates by the least that any assignment with them holds.

        Parameters
        ----------
        layer
            The layer.
        lowest
            That, for each of its candidates. [B]
        """
        too_large = self.left[layer] & (lowest > self.limit)
        if too_large.any():
            self.beyond = min(self.beyond, float(lowest[too_large].min()))
            self.left[layer] = self.left[layer] & ~too_large

    @property
    def num_left(self) -> int:
        """Candidates of all layers that may. [items]"""
        return sum(int(left.sum()) for left in self.left.values())

    @property
    def is_empty(self) -> bool:
        """Whether a layer has none left: nothing is within the limit."""
        return not all(left.any() for left in self.left.values())

    def narrow(self) -> None:
        """Leave out what exceeds the limit with the least of all other layers."""
        if self.limit == math.inf:
            return
        length = max((int(one.borders[-1]) for one in self.held.values()), default=0)
        for _ in range(PASSES):
            before = self.num_left
            if self.is_empty:
                break
            least = {n: one.sizes[self.left[n]].min(axis=0) for n, one in self.held.items()}
            total = np.zeros(length)
            for n, one in self.held.items():
                one.add_to(total, least[n])
            for n, one in self.held.items():
                others = one.highest(total) - least[n]
                self.leave_out(n, (one.sizes + others).max(axis=1) * (1.0 - ROUNDING))
            if self.num_left == before:
                break
