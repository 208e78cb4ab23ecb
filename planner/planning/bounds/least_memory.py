"""The least memory that any distribution of the layers needs, whatever a search sees of them.

What a layer holds depends on how many ways each of its dims is split in all, and not on the levels
at which it is: a few hundred ways for each layer stand for all of its distributions. What edges add
to that is left out. With a weight on every moment of a step the least that all layers hold together
is then a sum of what each holds at least, and no peak is below it; the weights are chosen such that
this sum is large.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.distribution import Candidates, enumerate_candidates
from costmodels.graph import Layer
from costmodels.layers.layer_cost import layer_costs
from planner.planning.memory.by_moment import memory_of_layers
from planner.planning.memory.fitting import ROUNDING, Fitting, SplitsThatFit
from planner.planning.memory.prices import Climb, Point
from planner.planning.memory.rows import MemoryRows
from planner.planning.space.formulate import Formulation
from planner.planning.space.layer_space import LayerSpace
from search.problem.deadline import Deadline, OutOfTime

Floats = NDArray[np.float64]

# How often the weights of the moments change: on the built-in networks they settle within that.
ROUNDS = 60
# A bound that close to what is possible ends a round: it is had in a moment, and may decide. [part]
CLOSE = 1e-4
# How often they begin again where candidates turned out to hold too much.
CLIMBS = 4
# Splits of all distinct layers together that are looked at: those of networks of a hundred distinct
# layers on 4,096 GPUs. [items]
MOST_SPLITS = 1_000_000
# Distributions of a layer that come back into a search that finds nothing small enough. [items]
NUM_SMALL = 8


class LeastMemory(Struct, frozen=True, kw_only=True, eq=False):
    """What every assignment needs, and what each layer should be able to take to come near that.

    Parameters
    ----------
    bound
        What every assignment of any distributions holds at its peak, at least. [B]
    small
        Distributions that hold least where it matters, by the first layer that is alike.
    spaces
        What is known of every way to split each layer.
    left
        Which of these may be part of something that holds no more than enough.
    weights
        Weights of the moments that gave the bound.
    """

    bound: float = 0.0
    small: Mapping[str, Candidates] = field(default_factory=dict)
    spaces: Mapping[str, LayerSpace] = field(default_factory=dict)
    left: Fitting | None = None
    weights: Floats = field(default_factory=lambda: np.zeros(0))

    def fitting(self, formulation: Formulation) -> SplitsThatFit:
        """How layers may be split where something is to hold no more than enough.

        Parameters
        ----------
        formulation
            The network on the machine.
        """
        if self.left is None:
            return SplitsThatFit()
        names = {i: formulation.layers[i].name for i in self.left.left}
        return SplitsThatFit(
            splits={i: self.spaces[name].candidates for i, name in names.items()},
            left=dict(self.left.left),
            beyond=self.left.beyond,
        )


def least_memory(formulation: Formulation, enough: float, deadline: Deadline) -> LeastMemory:
    """The least memory that any distribution of the layers needs.

    Parameters
    ----------
    formulation
        The network on the machine.
    enough
        A bound above that says all that is asked for. [B]
    deadline
        When to come to an end with the best bound so far.
    """
    try:
        spaces = _all_splits(formulation, deadline)
    except OutOfTime:
        return LeastMemory()
    rows = memory_of_layers(formulation, spaces, complete=True)
    weights = np.full(rows.num_moments, 1.0 / rows.num_moments)
    fitting = Fitting.of(rows, enough)
    known = _SplitsLeft(rows=rows, fitting=fitting, deadline=deadline)
    for _ in range(CLIMBS):
        fitting.narrow()
        left = fitting.num_left
        # what was met before may take candidates that are out by now
        known.points.clear()
        known.look_at(weights)
        if not known.points:
            break
        scale = max(float(known.points[0].held.max()), 1.0)
        climb = Climb(limit=0.0, total=1.0, unit=(scale, scale), rounds=ROUNDS, close=CLOSE)
        weights = climb.best_prices(lambda: known.points, known.look_at, start=weights)
        if fitting.num_left == left or known.is_enough:
            break
    return LeastMemory(
        bound=known.bound,
        small=_smallest(formulation, spaces, known.held),
        spaces=spaces,
        left=fitting,
        weights=weights,
    )


class _SplitsLeft(Struct, kw_only=True, eq=False):
    """What is known of the least memory: a candidate with which more than enough is held is out.

    Parameters
    ----------
    rows
        What layers hold at each moment.
    fitting
        The candidates of each layer that are left.
    deadline
        As of `least_memory`.
    bound, held
        The best bound, and what each layer holds by its weights, by candidate. [B]
    points
        What is held at each moment where every layer holds least by some weights.
    """

    rows: MemoryRows
    fitting: Fitting
    deadline: Deadline
    bound: float = 0.0
    held: Mapping[int, Floats] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        """Whether the bound says all that is asked for."""
        return self.bound > self.fitting.limit

    def look_at(self, weights: Floats) -> tuple[float, bool] | None:
        """The bound by some weights of the moments, unless there is enough or no time."""
        if self.is_enough or self.deadline.passed:
            return None
        whole = self.rows.by_layer(weights)
        left = self.fitting.left
        held = {layer: np.where(left[layer], sizes, np.inf) for layer, sizes in whole.items()}
        least = {layer: float(sizes.min()) for layer, sizes in held.items()}
        lowest = sum(least.values())
        bound = lowest * (1.0 - ROUNDING)
        for layer, sizes in held.items() if bound < np.inf else ():
            self.fitting.leave_out(layer, bound + (sizes - least[layer]))
        # what is out holds more than enough, but not more than that
        bound = min(bound, self.fitting.beyond)
        if bound > self.bound:
            self.bound, self.held = bound, whole
        smallest = {layer: int(sizes.argmin()) for layer, sizes in held.items()}
        self.points.append(Point(cost=0.0, held=self.rows.profile_of(smallest)))
        return lowest, True


def _smallest(
    formulation: Formulation, spaces: Mapping[str, LayerSpace], held: Mapping[int, Floats]
) -> dict[str, Candidates]:
    """The candidates of each layer that hold least, none that the search sees.

    Parameters
    ----------
    formulation
        The network on the machine.
    spaces
        All candidates of each layer.
    held
        What they hold, for each layer that holds anything. [B]
    """
    beyond: dict[str, Floats] = {}
    for i, sizes in held.items():
        name = formulation.first_alike[formulation.layers[i].name]
        beyond[name] = np.minimum(beyond.get(name, np.inf), sizes - sizes.min())
    small = {}
    for name, sizes in beyond.items():
        candidates = spaces[name].candidates
        nearest = candidates.take(np.argsort(sizes, kind="stable")[:NUM_SMALL])
        seen = formulation.spaces[name].candidates
        new = [i for i in range(len(nearest)) if seen.find(nearest.distribution(i)) is None]
        if new:
            small[name] = nearest.take(np.array(new))
    return small


def _all_splits(formulation: Formulation, deadline: Deadline) -> dict[str, LayerSpace]:
    """All that each layer can hold: one distribution for every number of ways that dims are split.

    Parameters
    ----------
    formulation
        The network on the machine.
    deadline
        When to give up by raising `OutOfTime`; it is raised as well where there are too many.
    """
    spaces: dict[str, LayerSpace] = {}
    count = 0
    for name in formulation.first_alike.values():
        if name in spaces:
            continue
        deadline.check()
        space = formulation.spaces[name]
        candidates = one_of_each_split(space.layer, formulation.machine.topology.shape)
        count += len(candidates)
        if count > MOST_SPLITS:
            raise OutOfTime
        costs = layer_costs(
            space.layer,
            candidates,
            formulation.machine,
            input_gradients=formulation.graph.input_gradients(name),
            largest_bucket=formulation.largest,
        )
        spaces[name] = replace(space, candidates=candidates, costs=costs)
    return {layer.name: spaces[formulation.first_alike[layer.name]] for layer in formulation.layers}


def one_of_each_split(layer: Layer, shape: tuple[int, ...]) -> Candidates:
    """A distribution for every way to split the dims of a layer in all, inner levels first.

    Parameters
    ----------
    layer
        The layer.
    shape
        Members of each level, from the inside out. [items]
    """
    totals = enumerate_candidates(layer, (int(np.prod(shape)),), 0, full=True)
    left = totals.degrees[:, 0].copy()
    degrees = np.ones((len(totals), len(shape), len(totals.dims)), dtype=np.int64)
    for level, size in enumerate(shape):
        room = np.full(len(totals), size)
        for dim in range(len(totals.dims)):
            # prime by prime, as much as there is room for: what is left fits into other levels
            degrees[:, level, dim] = np.gcd(room, left[:, dim])
            room //= degrees[:, level, dim]
            left[:, dim] //= degrees[:, level, dim]
    assert (left == 1).all(), "what splits all devices splits their levels"
    return Candidates(dims=totals.dims, degrees=degrees, shape=shape)
