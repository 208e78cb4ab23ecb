"""A bound under a memory limit that holds for every distribution, not just for those searched.

The additive problem over every distribution (see `planner.planning.bounds.whole_space`) with memory
paid for: candidates of the search pay what they hold, and a class pays what its cheapest member
does, time and memory together. What edges add in memory counts between candidates of the search
only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.distribution import count_candidates
from costmodels.layers.layer_cost import layer_costs
from planner.planning.bounds.additive_search import AdditiveSearch, Floats
from planner.planning.bounds.layer_bounds import LayerBounds
from planner.planning.bounds.left_out import LeftOut
from planner.planning.bounds.whole_space import WholeSpace
from planner.planning.memory.by_moment import memory_of_layers
from planner.planning.memory.prices import MemoryPrices
from planner.planning.space.formulate import Formulation
from planner.planning.space.layer_space import LayerSpace
from search import Problem, ProblemError
from search.elimination.buckets import MOST_WORK, eliminate, plan
from search.problem import CostEdge as PairCost
from search.problem.deadline import OutOfTime

Ints = NDArray[np.int64]

# Candidates of all layers that are priced: all of them are costed, since what memory is worth keeps
# none from being part of something cheap. [items]
MOST_PRICED = 1_000_000


def certify_under_limit(search: AdditiveSearch) -> float:
    """What bounds every distribution that fits, by the prices that bound those searched best. [s]

    Parameters
    ----------
    search
        What is known so far.
    """
    formulation, known = search.formulation, search.bounding
    if known is None or known.memory is None or search.stopped:
        return 0.0
    shape = formulation.machine.topology.shape
    firsts = set(formulation.first_alike.values())
    if sum(count_candidates(formulation.graph.layers[n], shape) for n in firsts) > MOST_PRICED:
        return 0.0
    memory, worst = known.memory, known.bound + known.memory.worth
    least = LayerBounds.of(formulation, known.profile)
    try:
        whole = WholeSpace.of(formulation, known.profile, least, math.inf, search.deadline)
        problem = _problem_with_prices(whole, memory, worst)
        order = plan(problem, max_work=MOST_WORK)
        cheapest = eliminate(problem, order, deadline=search.deadline).minimum
    except (OutOfTime, ProblemError):
        return 0.0
    return memory.bound(min(cheapest, worst))


def _problem_with_prices(whole: WholeSpace, memory: MemoryPrices, worst: float) -> Problem:
    """The additive problem over every distribution with memory paid for.

    Parameters
    ----------
    whole
        Every distribution.
    memory
        Prices on memory.
    worst
        Classes that are no part of anything cheaper are left out. [s]
    """
    formulation = whole.formulation
    seen = memory.priced(formulation.problem(whole.profile)).costs
    held = memory_of_layers(formulation, _spaces_of(formulation, whole.left))
    paid = held.by_layer(memory.prices)
    classes = []
    for i, key in enumerate(formulation.cost_keys(whole.profile)):
        left = whole.left[key.space]
        prices = left.prices(key) + paid.get(i, 0.0)
        prices[~memory.fitting.among(i, left.candidates)] = math.inf
        classes.append(left.least(prices))
    lowest = [min(s.min(), c.min(initial=math.inf)) for s, c in zip(seen, classes, strict=True)]
    slack = worst - float(sum(lowest))
    near = {name: np.zeros(len(left.first), dtype=bool) for name, left in whole.left.items()}
    names = [formulation.first_alike[layer.name] for layer in formulation.layers]
    for name, costs, low in zip(names, classes, lowest, strict=True):
        near[name] |= costs <= low + slack
    kept = {name: np.flatnonzero(mask) for name, mask in near.items()}
    rows = zip(names, seen, classes, strict=True)
    return Problem(
        costs=tuple(np.concatenate([s, c[kept[name]]]) for name, s, c in rows),
        edges=(*whole.pair_costs(kept), *_padded(memory, kept, names)),
        names=tuple(layer.name for layer in formulation.layers),
    )


def _spaces_of(formulation: Formulation, left: Mapping[str, LeftOut]) -> dict[str, LayerSpace]:
    """The candidates that a search does not see, as those of each layer."""
    spaces = {}
    for name, one in left.items():
        costs = layer_costs(
            formulation.graph.layers[name],
            one.candidates,
            formulation.machine,
            input_gradients=formulation.graph.input_gradients(name),
            largest_bucket=formulation.largest,
        )
        spaces[name] = replace(formulation.spaces[name], candidates=one.candidates, costs=costs)
    return {layer.name: spaces[formulation.first_alike[layer.name]] for layer in formulation.layers}


def _padded(memory: MemoryPrices, kept: Mapping[str, Ints], names: list[str]) -> list[PairCost]:
    """What edges pay for memory: nothing where a class takes part. [s]

    Parameters
    ----------
    memory
        Prices on memory.
    kept
        Classes of the problem, by the first layer that is alike.
    names
        The first layer that is alike, for every layer.
    """
    known: dict[tuple[int, int, int], Floats] = {}
    pairs = []
    for pair in memory.rows.by_pair(memory.prices):
        rows, columns = (len(kept[names[end]]) for end in (pair.source, pair.target))
        key = (id(pair.matrix), rows, columns)
        if key not in known:
            known[key] = np.pad(pair.matrix, ((0, rows), (0, columns)))
        pairs.append(PairCost(source=pair.source, target=pair.target, matrix=known[key]))
    return pairs
