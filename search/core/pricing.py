"""Prices on usage, row by row: a proven bound under the limit, by message passing.

Models: the Lagrangian relaxation of the limit in every row (Everett 1963). At any prices, the bound
of `search.core.messages` less what the limit is worth at these prices bounds the optimum from
below. Prices move along the averaged overload of the assignments that messages lead to, from the
best prices so far (the volume algorithm, Barahona and Anbil 2000; step length of Polyak), and in
between along the ray from zero through the best prices, since it is often their level that is
wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from search.core.core import Core
from search.core.messages import NOISE, Messages, priced

# Those below were found by trial on the contest's four published problems.
# Passes of messages for every move of the prices.
PASSES = 3
# Length of steps in units of Polyak's: at first, when taken up again, and when too short to matter.
FIRST_SCALE, RESUMED_SCALE, LAST_SCALE = 0.1, 0.02, 1e-3
# After so many moves without a better bound, steps get shorter by a factor.
PATIENCE, SHORTER = 12, 0.7
# What part of their averages so far overloads and prices keep at every move.
MEMORY, PRICE_MEMORY = 0.9, 0.95
# What part of the gap a step must close to count.
WORTHWHILE = 1e-3
# The gap to aim at where no cost is known, and the least one, as parts of the bound.
UNKNOWN_GAP, LEAST_GAP = 0.1, 1e-4
# Levels to try along the ray through the best prices.
LEVELS = (0.5, 0.7, 0.85, 1.15, 1.4)


class PricedBound(NamedTuple):
    """A bound on a core's cost, and the prices that prove it.

    Parameters
    ----------
    bound
        No assignment that fits costs less.
    prices
        Price per unit in every row.
    """

    bound: float
    prices: np.ndarray


class Pricing:
    """Prices that rise and fall with the overload they lead to.

    Parameters
    ----------
    core
        The core.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.messages = Messages(core)
        self.prices = np.zeros(core.num_rows)
        self.best_prices = self.prices
        self.mean_prices = self.prices
        self.best_reduced = self.messages.reduced
        self.bound = -np.inf
        self.scale = FIRST_SCALE
        self.overload: np.ndarray | None = None
        self.stale = 0
        self.level = 0

    @property
    def settled(self) -> bool:
        """Whether further steps would be too short to matter."""
        return self.scale < LAST_SCALE

    def resume(self) -> None:
        """Take up settled prices again, now that more may be known."""
        if self.settled:
            self.scale, self.stale, self.prices = RESUMED_SCALE, 0, self.best_prices

    def probe(self, prices: np.ndarray, passes: int = PASSES) -> float:
        """Pass messages at these prices, so many times; returns the bound that they prove, and
        keeps the best."""
        core = self.core
        costs = priced(core.graph.offsets, core.costs, core.holdings, prices)
        free = self.messages.passes(costs, passes)
        bound = proven(core, free, prices)
        if bound > self.bound:
            self.bound, self.best_prices = bound, prices
            self.best_reduced = self.messages.reduced.copy()
        return bound

    def step(self, known_cost: float) -> None:
        """Move the prices once.

        Parameters
        ----------
        known_cost
            Cost of the best assignment known, +inf where there is none.
        """
        core, before = self.core, self.bound
        bound = self.probe(self.prices)
        overload = core.profile(self.messages.choices) - core.limit
        if self.overload is None:
            self.overload = overload
        self.overload = MEMORY * self.overload + (1 - MEMORY) * overload
        gap = known_cost - before if -np.inf < before and known_cost < np.inf else abs(before)
        self.stale = 0 if self.bound > before + WORTHWHILE * gap else self.stale + 1
        if self.stale >= PATIENCE:
            self._shorten()
        downhill = (self.prices <= 0) & (self.overload < 0)
        direction = np.where(downhill, 0.0, self.overload)
        norm = float(direction @ direction)
        if norm == 0.0:
            return  # Only messages can improve.
        self.mean_prices = PRICE_MEMORY * self.mean_prices + (1 - PRICE_MEMORY) * self.prices
        target = known_cost if known_cost < np.inf else bound + UNKNOWN_GAP * abs(bound)
        length = self.scale * max(target - bound, LEAST_GAP * abs(bound)) / norm
        self.prices = np.maximum(0.0, self.prices + length * direction)

    def _shorten(self) -> None:
        """Try other levels of the best prices, then go on from the best with shorter steps."""
        start = self.best_prices
        if start.any():
            self.probe(start * LEVELS[self.level % len(LEVELS)], 2 * PASSES)
            self.level += 1
        self.scale *= SHORTER
        self.stale = 0
        self.prices = self.best_prices


def proven(core: Core, free: float, prices: np.ndarray) -> float:
    """The bound on a core's cost from that at some prices, less what may be rounding.

    Parameters
    ----------
    core
        The core.
    free
        The bound at these prices, where usage is paid for and not limited.
    prices
        Price per unit in every row.
    """
    worth = size = 0.0
    if prices.any():
        worth = float(((core.limit - core.base) * prices).sum())
        size = float((core.base + core.limit) @ prices)
    return free + core.constant - worth - NOISE * (abs(free) + abs(core.constant) + size)
