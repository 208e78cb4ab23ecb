"""Good assignments near given prices: dive, repair, polish.

Models: prices a little below the best ones give assignments that use a little too much. A dive
reads one off the messages at such prices, improves it by tree moves, raises the price of every row
that is over the limit until none is, and then lets tree moves go on under the limit itself while
their temperature falls (simulated annealing, Kirkpatrick et al. 1983). All scales come from the
problem: temperatures from the reduced costs, work from the number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from search.core.core import Core
from search.core.messages import Messages, priced
from search.core.pricing import PricedBound, proven
from search.core.tree_moves import TreeSearch
from search.core.tree_state import MoveRules

# All found by trial on the contest's four published problems, which are of very different make.
# A dive's first passes of messages, two at a time: from then on the bound hardly rises.
DIVE_PASSES = 10
# How often each part of a dive may scan the core, and in how many pieces.
IMPROVE_SCANS = 20.0
REPAIR_SCANS, REPAIR_ROUNDS = 30.0, 30
STAGE_SCANS, DIVE_STAGES, POLISH_STAGES = 8.0, 4, 16
# Prices that start far too low or too high reach any level by doubling this often.
FIRST_DOUBLINGS, FIRST_EXPONENT = 100, -40
# So cold that a first assignment is improved rather than spoilt.
FIRST_HEAT = 0.1
# Prices under the limit: where a move would exceed it, and everywhere with time.
RISE, DECAY = 1.05, 0.97
# Prices in repair: at first by so much of their sum, more by so much every round, and by a factor.
REPAIR_STEP, REPAIR_GROWTH, REPAIR_RISE = 1e-3, 1.2, 1.05
# What a scan of a small core takes in overhead. [entries]
SCAN_OVERHEAD = 1e4
# Where all costs are 0, prices must be above it all the same.
TINY = 1e-300


class Dive(Struct, frozen=True, kw_only=True):
    """What to try.

    Parameters
    ----------
    level
        By what to multiply the best prices.
    heat
        Temperature at the start, in units of the median regret.
    longest
        The most nodes in one tree.
    seed
        Seed of what is random.
    """

    level: float
    heat: float
    longest: int
    seed: int


def dive(
    core: Core, messages: Messages, prices: np.ndarray, what: Dive, stop: Callable[[], bool]
) -> tuple[np.ndarray | None, PricedBound]:
    """Look for a good assignment near some prices.

    Parameters
    ----------
    core
        The core.
    messages
        Messages to start from; they are changed.
    prices
        Price per unit in every row.
    what
        What to try.
    stop
        Says when to hand in what there is.

    Returns
    -------
    An assignment that fits, if one was found, and the bound that was proven on the way.
    """
    prices = prices * what.level
    costs = priced(core.graph.offsets, core.costs, core.holdings, prices)
    bound = -np.inf
    for _ in range(DIVE_PASSES):
        bound = max(bound, proven(core, messages.passes(costs, 2), prices))
        if stop():
            break
    search = TreeSearch(core, messages.choices, prices, what.seed)
    search.run(IMPROVE_SCANS * scan_work(core), MoveRules(core.num_nodes), stop=stop)
    regret = median_regret(core, messages.reduced)
    choices = polished(core, search, regret, what, stop, stages=DIVE_STAGES)
    return choices, PricedBound(bound, prices)


def first_fit(core: Core, seed: int, stop: Callable[[], bool]) -> np.ndarray | None:
    """Look for any assignment that fits, by doubling the prices of rows that are over the limit.

    Parameters
    ----------
    core
        The core.
    seed
        Seed of what is random.
    stop
        Says when to hand in what there is.
    """
    search = TreeSearch(core, np.zeros(core.num_nodes), np.zeros(core.num_rows), seed)
    unit = price_unit(core)
    rules = MoveRules(core.num_nodes)
    for doubling in range(FIRST_DOUBLINGS):
        search.run(REPAIR_SCANS / REPAIR_ROUNDS * scan_work(core), rules, stop=stop)
        over = core.profile(search.choices) > core.limit
        if not over.any() or stop():
            break
        least = unit * 2.0 ** (doubling + FIRST_EXPONENT)
        search.prices[over] = np.maximum(search.prices[over] * 2, least)
    gentle = Dive(level=1.0, heat=FIRST_HEAT, longest=core.num_nodes, seed=seed)
    return polished(core, search, 0.0, gentle, stop, stages=DIVE_STAGES)


def polished(
    core: Core,
    search: TreeSearch,
    regret: float,
    what: Dive,
    stop: Callable[[], bool],
    *,
    stages: int = POLISH_STAGES,
) -> np.ndarray | None:
    """Repair where the limit is exceeded, then anneal under it; None where that fails.

    Parameters
    ----------
    core
        The core.
    search
        Where to start from; it moves.
    regret
        The unit of the temperature, see `median_regret`.
    what
        How hot to begin, and how long trees may get.
    stop
        Says when to hand in what there is.
    stages
        In how many steps the temperature falls to 0.
    """
    if not repaired(core, search, what.longest, stop):
        return None
    for stage in range(stages):
        heat = what.heat * (1 - stage / (stages - 1)) ** 2
        rules = MoveRules(what.longest, heat * regret, core.limit, RISE, DECAY)
        search.run(STAGE_SCANS * scan_work(core), rules, keep_best=True, stop=stop)
        if stop():
            break
    best = min((search.best, search.choices), key=core.cost)
    return best.copy() if core.fits(best) else None


def repaired(core: Core, search: TreeSearch, longest: int, stop: Callable[[], bool]) -> bool:
    """Raise the prices of rows that are over the limit until none is; whether that succeeded.

    Parameters
    ----------
    core
        The core.
    search
        Where to start from; it moves.
    longest
        The most nodes in one tree.
    stop
        Says when to give up.
    """
    step = REPAIR_STEP * max(float(search.prices.sum()), price_unit(core))
    for _ in range(REPAIR_ROUNDS):
        over = core.profile(search.choices) > core.limit
        if not over.any():
            return True
        if stop():
            return False
        search.prices[over] = search.prices[over] * REPAIR_RISE + step / int(over.sum())
        step *= REPAIR_GROWTH
        work = REPAIR_SCANS / REPAIR_ROUNDS * scan_work(core)
        search.run(work, MoveRules(longest), stop=stop)
    return not core.is_over(search.choices)


def scan_work(core: Core) -> float:
    """The work of a scan: about what it takes to visit every entry of a core's tables once."""
    return SCAN_OVERHEAD + core.num_pairs + core.costs.size + core.num_rows


def median_regret(core: Core, reduced: np.ndarray) -> float:
    """The median over nodes of what the second best candidate costs more."""
    second = [
        np.partition(part, 1)[1] if part.size > 1 else 0.0
        for part in np.split(reduced, core.graph.offsets[1:-1])
    ]
    positive = np.array([s for s in second if s > 0])
    return float(np.median(positive)) if positive.size else 1.0


def price_unit(core: Core) -> float:
    """A price at which usage matters as much as costs do."""
    held = core.holdings.usages
    used = float(held[held > 0].mean()) if (held > 0).any() else 1.0
    return float(np.abs(core.costs).mean() + TINY) / used
