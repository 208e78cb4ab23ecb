"""Local search whose move is the best change of a whole tree of nodes at once.

Models: a random connected set of nodes that induces a tree is grown in the graph; with all other
choices held, dynamic programming finds the best choices for the tree, at given prices on usage. A
temperature adds noise to the costs (perturb and decode: Papandreou and Yuille 2011), which makes a
move a sample instead of the minimum. A move that would exceed the limit is refused, and prices
rise in the rows that would; prices decay with time, so that usage settles just below the limit.
Assumes: no answer of this module is trusted; costs are recomputed by whoever keeps an assignment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from search.core.core import Core
from search.core.tree_state import MoveRules, Moving, make_workspace
from search.core.tree_steps import MODULUS, move_on

# Work after which a caller is asked whether to go on: about 0.1 s.
PIECE = 2.5e7
# Numbers of noise that are drawn once; moves read them from random places on.
NOISE_SIZE = 2**16


@lru_cache(maxsize=1)
def gumbel_noise() -> np.ndarray:
    """Numbers of the Gumbel distribution, under which the best of noisy costs is a sample."""
    return np.random.default_rng(20250330).gumbel(size=NOISE_SIZE)


class TreeSearch:
    """An assignment that moves.

    Parameters
    ----------
    core
        The core.
    choices
        Where to start; copied.
    prices
        Price per unit in every row; copied.
    seed
        Seed of what is random.
    """

    def __init__(self, core: Core, choices: np.ndarray, prices: np.ndarray, seed: int) -> None:
        self.core = core
        self.choices = choices.astype(np.int64)
        self.prices = prices.astype(np.float64)
        self.usage = core.profile(self.choices)
        self.random = np.array([seed % (MODULUS - 1) + 1], dtype=np.int64)
        # The cheapest assignment met where it was kept, and its cost without the core's constant.
        self.best = self.choices.copy()
        self.best_cost = np.array([np.inf])
        self._space = make_workspace(core, self.choices)

    def run(
        self,
        budget: float,
        rules: MoveRules,
        *,
        keep_best: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Move until the work is done.

        Parameters
        ----------
        budget
            How many entries of tables to visit.
        rules
            What moves keep to.
        keep_best
            Whether to keep the cheapest assignment met in `best`; all must be within the limit.
        stop
            Asked several times a second whether to stop early.
        """
        best_cost = self.best_cost if keep_best else np.array([-np.inf])
        moving = Moving(self.choices, self.usage, self.prices, self.random, self.best, best_cost)
        # Compiled code is made for these types only.
        longest, *others = rules
        rules = MoveRules(int(longest), *map(float, others))
        core, noise = self.core, gumbel_noise()
        tables = core.graph, core.costs, core.holdings
        while budget > 0 and core.num_nodes and not stop():
            piece = min(budget, PIECE)
            budget -= piece
            move_on(*tables, rules, moving, self._space, noise, piece)
