"""The least memory of all distributions where neighbours count: what one edge into each layer adds.

Ways to split two neighbours need not agree: then the reader keeps a copy of what it reads, and its
gradient may be larger than the maker's. Where a block is read that is larger in some dim than the
one made, no choice of levels makes it there already. With one edge into each layer the layers form
a forest, which elimination solves in a moment, and whose min-marginals say which splits hold too
much.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.distribution import Candidates, enumerate_candidates, places_of_totals
from costmodels.graph import Edge, Tensor
from planner.planning.bounds.least_memory import LeastMemory
from planner.planning.memory.by_moment import memory_on_edges
from planner.planning.memory.fitting import ROUNDING, Fitting
from planner.planning.memory.mixtures import Choices
from planner.planning.memory.prices import balance
from planner.planning.memory.rows import MemoryRows
from planner.planning.space.formulate import Floats, Formulation
from planner.planning.space.layer_space import LayerSpace
from planner.planning.space.shuffles import EdgeTimes
from search import Problem
from search.elimination.buckets import eliminate, plan
from search.elimination.marginals import min_marginals
from search.problem.deadline import Deadline

# How often the weights of the moments change.
ROUNDS = 12
# Pairs of candidates of neighbours in all: with more, there is no looking at them. [items]
MOST_PAIRS = 15_000_000


def least_on_tree(formulation: Formulation, known: LeastMemory, deadline: Deadline) -> LeastMemory:
    """What is known of the least memory, with what neighbours add.

    Parameters
    ----------
    formulation
        The network on the machine.
    known
        What is known without that.
    deadline
        When to come to an end with the best bound so far.
    """
    fitting, spaces, start = known.left, known.spaces, known.weights
    if fitting is None:
        return known
    kept = {i: np.flatnonzero(left) for i, left in fitting.left.items()}
    few = dict(spaces)
    for i, some in kept.items():
        name = formulation.layers[i].name
        space = spaces[name]
        few[name] = replace(
            space, candidates=space.candidates.take(some), costs=space.costs.take(some)
        )
    edges = _tree(formulation)
    pairs = [len(few[e.source].candidates) * len(few[e.target].candidates) for e in edges]
    if sum(pairs) > MOST_PAIRS:
        return known
    times = {edge: _surely_moved(few, edge) for edge in edges}
    rows = memory_on_edges(replace(formulation, spaces=few, edge_times=times))
    sizes = [len(few[layer.name].candidates) for layer in formulation.layers]
    forest = _Forest(rows=rows, sizes=sizes, kept=kept, fitting=fitting, deadline=deadline)
    balance(forest.look_at, start, ROUNDS)
    bound = max(known.bound, forest.bound)
    if bound > fitting.limit or not forest.found:
        return replace(known, bound=bound)
    return replace(known, bound=bound, small=_distributions(formulation, spaces, forest.splits()))


class _Forest(Struct, kw_only=True, eq=False):
    """What is known of the least memory.

    Parameters
    ----------
    rows
        What layers hold and edges add at each moment.
    sizes
        Candidates of each layer. [items]
    kept
        Which splits these are, for each layer that holds anything.
    fitting
        Which of them may be part of something within the limit.
    deadline
        When to come to an end.
    bound
        The best bound. [B]
    found
        What holds least by some weights, the weights one after the other.
    """

    rows: MemoryRows
    sizes: list[int]
    kept: dict[int, NDArray[np.int64]]
    fitting: Fitting
    deadline: Deadline
    bound: float = 0.0
    found: list[Choices] = field(default_factory=list)

    def look_at(self, weights: Floats) -> Floats | None:
        """What is held by what holds least by some weights, unless the bound is enough."""
        if self.bound > self.fitting.limit or self.deadline.passed:
            return None
        costs = [np.zeros(size) for size in self.sizes]
        for layer, some in self.kept.items():
            costs[layer][~self.fitting.left[layer][some]] = np.inf
        problem = self.rows.priced(Problem(costs=tuple(costs)), weights)
        eliminated = eliminate(problem, plan(problem))
        lowest, held = eliminated.minimum, None
        if lowest < np.inf:
            if lowest > self.bound:
                marginals = min_marginals(eliminated)
                assert marginals is not None, "tables of a forest have those of two layers"
                self._leave_out(marginals)
            self.found.append(tuple(map(int, eliminated.decode())))
            held = self.rows.profile(self.found[-1])
        self.bound = max(self.bound, min(lowest * (1.0 - ROUNDING), self.fitting.beyond))
        return held

    def splits(self) -> dict[int, NDArray[np.int64]]:
        """The splits of each layer that what holds least takes."""
        found = np.array(self.found, dtype=np.int64)
        return {layer: np.unique(some[found[:, layer]]) for layer, some in self.kept.items()}

    def _leave_out(self, marginals: list[Floats]) -> None:
        """Leave out splits by the least that all together hold with them."""
        for layer, some in self.kept.items():
            lowest = np.zeros(len(self.fitting.left[layer]))
            lowest[some] = marginals[layer] * (1.0 - ROUNDING)
            lowest[~np.isfinite(lowest)] = 0.0  # they are out already
            self.fitting.leave_out(layer, lowest)


def _distributions(
    formulation: Formulation,
    spaces: Mapping[str, LayerSpace],
    splits: Mapping[int, NDArray[np.int64]],
) -> dict[str, Candidates]:
    """All distributions with some splits that a search does not see, by the first layer alike.

    Parameters
    ----------
    formulation
        The network on the machine, with the candidates that the search sees.
    spaces
        All splits of each layer.
    splits
        Those that are wanted, of each layer that holds anything.
    """
    wanted: dict[str, NDArray[np.bool_]] = {}
    for layer, some in splits.items():
        name = formulation.first_alike[formulation.layers[layer].name]
        wanted.setdefault(name, np.zeros(len(spaces[name].candidates), dtype=bool))[some] = True
    shape, found = formulation.machine.topology.shape, {}
    for name, mask in wanted.items():
        everything = enumerate_candidates(formulation.graph.layers[name], shape, 0, full=True)
        places = places_of_totals(everything, spaces[name].candidates)
        more = everything.take(np.flatnonzero(mask[places]))
        seen = formulation.spaces[name].candidates
        new = [i for i in range(len(more)) if seen.find(more.distribution(i)) is None]
        if new:
            found[name] = more.take(np.array(new))
    return found


def _tree(formulation: Formulation) -> list[Edge]:
    """For each layer the edge from the last of the layers that it reads."""
    place = {layer.name: n for n, layer in enumerate(formulation.layers)}
    found = []
    for layer in formulation.layers:
        edges = [e for e in formulation.graph.producers[layer.name] if e.source in place]
        if edges:
            found.append(max(edges, key=lambda edge: (place[edge.source], -edge.slot)))
    return found


def _split_ways(tensor: Tensor, candidates: Candidates) -> dict[str, NDArray[np.int64]]:
    """In how many ways each axis of a tensor is split in all, by candidate."""
    return {axis.name: reduce(np.multiply, candidates.axis_degrees(axis).T) for axis in tensor.axes}


def _surely_moved(spaces: Mapping[str, LayerSpace], edge: Edge) -> EdgeTimes:
    """Where something must move along an edge, as times; where it is not known, no number.

    Parameters
    ----------
    spaces
        Candidates of every layer.
    edge
        The edge.
    """
    maker, reader = spaces[edge.source], spaces[edge.target]
    made = _split_ways(maker.layer.output, maker.candidates)
    read = _split_ways(reader.layer.inputs[edge.slot], reader.candidates)
    moved = np.zeros((len(maker.candidates), len(reader.candidates)), dtype=bool)
    for axis in made.keys() & read.keys():
        moved |= made[axis][:, None] > read[axis][None, :]
    times = np.where(moved, 1.0, np.nan)
    return EdgeTimes(forward=times, backward=times, link=times)
