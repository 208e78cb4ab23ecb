"""A sharper bound for plans that wait for gradients, over every distribution.

Additive problems (`planner.planning.bounds.best_bound`) leave gaps where all-reduces are a large
part of a step. With a plan at hand few candidates are left that may be part of something faster:
by the min-marginals of additive problems, over every distribution. Those are searched in the order
of the backward pass (`planner.planning.bounds.in_order`), under all sizes of gradient
buckets at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.distribution import Distribution, count_candidates
from planner.planning.bounds.additive_search import AdditiveSearch
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.bounds.certificate import MOST_CANDIDATES, marginals_of, values_left_out
from planner.planning.bounds.in_order import OrderedSearch, TooManyLabels
from planner.planning.bounds.layer_bounds import LayerBounds
from planner.planning.bounds.whole_space import WholeSpace
from planner.planning.space.formulate import Formulation
from planner.planning.space.profile import ALONE, NUM_KINDS, PLAIN, SLOWED, Profile
from planner.planning.space.shuffles import TooManyLayouts
from planner.planning.space.widen import extend, taken
from search import Problem, ProblemError
from search.problem import CostEdge
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Candidates left out of a search that come back, of all distinct layers: costing how layouts change
# between 6,700 takes 5 s on one core, between 10,000 12 s (vgg16 on 256 GPUs). [items]
MOST_NEAR = 5_000
# Labels that are looked at for all layers together: they take 1 to 5 s on one core. [items]
MOST_LABELS = 1_000_000
# Terms by which candidates are left out: those that follow so many of the gradients. [items]
NUM_TERMS = 8
# Assignments below what is asked for that are worth a simulation. [items]
NUM_PROPOSED = 16


class TooMuchIsNear(Exception):
    """There is more that may be part of something faster than is looked at."""


class Faster(Struct, frozen=True, kw_only=True, eq=False):
    """What was found below some time.

    Parameters
    ----------
    bound
        No step is below that, nor below what was asked for. [s]
    splits
        How layers are split in what may be faster than that, the least bounds first.
    """

    bound: float
    splits: tuple[Mapping[str, Distribution], ...]


class Sharper(Struct, frozen=True, kw_only=True, eq=False):
    """All distributions of the layers, and a range of sizes of gradient buckets.

    Parameters
    ----------
    formulation
        The network on the machine; no weights are shared, and all-reduces run beside computation.
    sizes, first_bytes
        As of `OrderedSearch`, none larger than the formulation's largest. [B]
    weights
        Of the terms, where the bound of additive problems is largest.
    least
        What layers cost at least with these.
    """

    formulation: Formulation
    sizes: tuple[float, float]
    first_bytes: float | None
    weights: Floats
    least: LayerBounds

    @classmethod
    def of(
        cls,
        formulation: Formulation,
        sizes: tuple[float, float],
        first_bytes: float | None,
        deadline: Deadline,
    ) -> Sharper:
        """Bound what layers cost.

        Parameters
        ----------
        formulation, sizes, first_bytes
            As above.
        deadline
            When to give up by raising `OutOfTime`.

        Raises
        ------
        TooMuchIsNear
            With more distributions than are costed.
        """
        search = AdditiveSearch(formulation=formulation, method="auto", seed=0, deadline=deadline)
        weights = maximise_bound(search).weights
        profile = Profile.of(weights)
        least = LayerBounds.of(formulation, profile)
        shape = formulation.machine.topology.shape
        counts = [count_candidates(formulation.graph.layers[n], shape) for n in least.computation]
        if sum(counts) > MOST_CANDIDATES:
            raise TooMuchIsNear
        return cls(
            formulation=formulation,
            sizes=sizes,
            first_bytes=first_bytes,
            weights=weights,
            least=least.sharpened(formulation, profile, 0.0, deadline),
        )

    def below(self, worst: float, deadline: Deadline) -> Faster:
        """What takes less than some time by bounds with gradients in their order.

        Parameters
        ----------
        worst
            What takes no less does not matter. [s]
        deadline
            When to give up by raising `OutOfTime`.

        Raises
        ------
        TooMuchIsNear
            Where less must be asked for.
        """
        try:
            few, kept = self._near(worst, deadline)
            search = OrderedSearch(few, kept, self.sizes, self.first_bytes)
            found = search.below(worst, MOST_LABELS, NUM_PROPOSED, deadline)
        except (TooManyLabels, TooManyLayouts, ProblemError) as error:
            raise TooMuchIsNear from error
        splits = tuple(few.distributions(choices) for choices in found.choices)
        return Faster(bound=found.bound, splits=splits)

    def _near(self, worst: float, deadline: Deadline) -> tuple[Formulation, list[Ints]]:
        """What may be part of something faster: a formulation of it, and which candidates.

        Parameters
        ----------
        worst, deadline
            As of `below`.
        """
        profile = Profile.of(self.weights)
        whole = WholeSpace.of(self.formulation, profile, self.least, worst, deadline)
        terms = [self.weights, *_corners(self.formulation)]
        few, wanted = _left_by_terms(whole, terms, worst, deadline)
        if sum(len(rows) for rows in wanted.values()) > MOST_NEAR:
            raise TooMuchIsNear
        more = {n: whole.left[n].candidates.take(rows) for n, rows in wanted.items() if len(rows)}
        wide = extend(few, more, deadline)
        return wide, _left_in_space(wide, terms, worst, deadline)


def _left_by_terms(
    whole: WholeSpace, terms: Sequence[Floats], worst: float, deadline: Deadline
) -> tuple[Formulation, dict[str, Ints]]:
    """What may be part of something faster of the candidates of a search, and of those left out.

    Parameters
    ----------
    whole
        Every distribution.
    terms
        Weights of terms, by each of which candidates are left out.
    worst, deadline
        As of `Sharper.below`.
    """
    formulation = whole.formulation
    names = [formulation.first_alike[layer.name] for layer in formulation.layers]
    seen = {n: np.ones(len(formulation.spaces[n].candidates), dtype=bool) for n in whole.left}
    left = {n: np.ones(len(one.candidates), dtype=bool) for n, one in whole.left.items()}
    for weights in terms:
        one = replace(whole, profile=Profile.of(weights))
        problem, classes = one.problem(worst)
        marginals = marginals_of(problem, deadline)
        for name, value in values_left_out(one, problem, classes, marginals).items():
            left[name] &= value < worst
        near = {name: np.zeros_like(mask) for name, mask in seen.items()}
        for name, values in zip(names, marginals, strict=True):
            near[name] |= values[: len(near[name])] < worst
        seen = {name: mask & near[name] for name, mask in seen.items()}
    for name, mask in seen.items():
        # none is left where nothing is faster: any one of each layer is as good as none
        mask[0] |= not (mask.any() or left[name].any())
    spaces = {name: taken(formulation.spaces[name], np.flatnonzero(m)) for name, m in seen.items()}
    few = replace(
        formulation,
        spaces={x.name: spaces[n] for x, n in zip(formulation.layers, names, strict=True)},
    )
    return few, {name: np.flatnonzero(mask) for name, mask in left.items()}


def _corners(formulation: Formulation) -> list[Floats]:
    """Weights that count one term each: before any all-reduce, and behind some gradients."""
    made = [n for n, layer in enumerate(formulation.layers, 1) if layer.parameters > 0]
    behind = made[:: max(len(made) // NUM_TERMS, 1)]
    terms = [(PLAIN, 0), (SLOWED, 0), *((ALONE, n) for n in made[:1])]
    found = []
    for term in [*terms, *((SLOWED, n) for n in behind)]:
        weights = np.zeros((NUM_KINDS, len(formulation.layers) + 1))
        weights[term] = 1.0
        found.append(weights)
    return found


def _left_in_space(
    formulation: Formulation, weights: Sequence[Floats], worst: float, deadline: Deadline
) -> list[Ints]:
    """The candidates of each layer that may be part of something faster, by all of some weights."""
    kept = [np.arange(len(formulation.spaces[x.name].candidates)) for x in formulation.layers]
    for one in weights:
        problem = _restricted(formulation.problem(Profile.of(one)), kept)
        marginals = marginals_of(problem, deadline)
        near = [values < worst for values in marginals]
        # none is left where nothing is faster: any one of each layer is as good as none
        kept = [
            some[mask] if mask.any() else some[:1] for some, mask in zip(kept, near, strict=True)
        ]
    return kept


def _restricted(problem: Problem, kept: Sequence[Ints]) -> Problem:
    """The problem with some of the candidates of each layer."""
    return Problem(
        costs=tuple(costs[some] for costs, some in zip(problem.costs, kept, strict=True)),
        edges=tuple(
            CostEdge(
                source=edge.source,
                target=edge.target,
                matrix=edge.matrix[np.ix_(kept[edge.source], kept[edge.target])],
            )
            for edge in problem.edges
        ),
        names=problem.names,
    )
