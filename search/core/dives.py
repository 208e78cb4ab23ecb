"""Good assignments near given prices: dive, repair, polish.

Models: prices a little below the best ones give assignments that use a little too much. A dive
reads one off the messages at such prices, improves it by tree moves, raises the price of every row
that is over the limit until none is, and then lets tree moves go on under the limit itself while
their temperature falls (simulated annealing, Kirkpatrick et al. 1983). All scales come from the
problem: temperatures from the reduced costs, work from the number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from search.core.core import Core
from search.core.messages import Messages, priced
from search.core.pricing import proven
from search.core.tree_moves import TreeSearch

# All found by trial on the contest's four published problems, which are of very different make.
# Looks at the core that each part of a dive is worth, and in how many pieces.
IMPROVE_LOOKS = 20.0
REPAIR_LOOKS, REPAIR_ROUNDS = 30.0, 30
STAGE_LOOKS, DIVE_STAGES, POLISH_STAGES = 8.0, 4, 16
FIRST_DOUBLINGS = 100
# Prices under the limit: where a move would exceed it, and everywhere with time.
RISE, DECAY = 1.05, 0.97
# Prices in repair: at first by so much of their sum, more by so much every round, and by a factor.
REPAIR_STEP, REPAIR_GROWTH, REPAIR_RISE = 1e-3, 1.2, 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Dive:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of it: an assignment that fits, if any, and a bound with its prices."""

    choices: np.ndarray | None = None
    cost: float = np.inf
    bound: float = -np.inf
    prices: np.ndarray | None = None


def dive(
    core: Core, messages: Messages, prices: np.ndarray, what: Dive, stop: Callable[[], bool]
) -> Finding:
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
    """
    prices = prices * what.level
    costs = priced(core.graph.offsets, core.costs, core.holdings, prices)
    bound = -np.inf
    for _ in range(10):
        bound = max(bound, proven(core, messages.passes(costs, 2), prices))
        if stop():
            break
    found = TreeSearch(core, messages.choices, prices, what.seed)
    found.run(IMPROVE_LOOKS * look(core), longest=core.num_nodes, stop=stop)
    regret = median_regret(core, messages.reduced)
    choices = polished(core, found, regret, what, stop, stages=DIVE_STAGES)
    cost = np.inf if choices is None else core.cost(choices)
    return Finding(choices=choices, cost=cost, bound=bound, prices=prices)


def first_fit(core: Core, seed: int, stop: Callable[[], bool]) -> Finding:
    """Look for any assignment that fits, by doubling the prices of rows that are over the limit."""
    search = TreeSearch(core, np.zeros(core.num_nodes), np.zeros(core.num_rows), seed)
    unit = price_unit(core)
    for doubling in range(FIRST_DOUBLINGS):
        work = REPAIR_LOOKS / REPAIR_ROUNDS * look(core)
        search.run(work, longest=core.num_nodes, stop=stop)
        over = core.profile(search.choices) > core.limit
        if not over.any() or stop():
            break
        search.prices[over] = np.maximum(search.prices[over] * 2, unit * 2.0 ** (doubling - 40))
    gentle = Dive(level=1.0, heat=0.1, longest=core.num_nodes, seed=seed)
    choices = polished(core, search, 0.0, gentle, stop, stages=DIVE_STAGES)
    cost = np.inf if choices is None else core.cost(choices)
    return Finding(choices=choices, cost=cost)


def polished(
    core: Core,
    search: TreeSearch,
    regret: float,
    what: Dive,
    stop: Callable[[], bool],
    *,
    stages: int = POLISH_STAGES,
) -> np.ndarray | None:
    """Repair where the limit is exceeded, then anneal under it; None where that fails."""
    if not repaired(core, search, what.longest, stop):
        return None
    for stage in range(stages):
        heat = what.heat * (1 - stage / (stages - 1)) ** 2
        search.run(
            STAGE_LOOKS * look(core),
            longest=what.longest,
            temperature=heat * regret,
            limit=core.limit,
            rise=RISE,
            decay=DECAY,
            stop=stop,
        )
        if stop():
            break
    best = min((search.best, search.choices), key=core.cost)
    allowed = bool((core.profile(best) <= core.limit).all()) and not forbidden(core, best)
    return best.copy() if allowed else None


def repaired(core: Core, search: TreeSearch, longest: int, stop: Callable[[], bool]) -> bool:
    """Raise the prices of rows that are over the limit until none is."""
    step = REPAIR_STEP * max(float(search.prices.sum()), price_unit(core))
    for _ in range(REPAIR_ROUNDS):
        over = core.profile(search.choices) > core.limit
        if not over.any():
            return True
        if stop():
            return False
        search.prices[over] = search.prices[over] * REPAIR_RISE + step / int(over.sum())
        step *= REPAIR_GROWTH
        search.run(REPAIR_LOOKS / REPAIR_ROUNDS * look(core), longest=longest, stop=stop)
    return not (core.profile(search.choices) > core.limit).any()


def forbidden(core: Core, choices: np.ndarray) -> bool:
    """Whether an assignment contains a forbidden pair."""
    graph = core.graph
    owners = np.repeat(np.arange(core.num_nodes), np.diff(graph.starts))
    ends = graph.neighbours
    pairs = graph.places + choices[owners] * graph.sizes[ends] + choices[ends]
    return bool((graph.matrices[pairs] >= core.penalty).any())


def look(core: Core) -> float:
    """Work that is in proportion to the core: about what it takes to look at it once."""
    return 1e4 + core.num_pairs + core.costs.size + core.num_rows


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
    return float(np.abs(core.costs).mean() + 1e-300) / used
