"""What layers cost at least, under every distribution: the first and cheapest bound on a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from planner.planning.bounds.left_out import LayerComputation, LeftOut, cut_level, leave_out
from planner.planning.space.formulate import Formulation
from planner.planning.space.profile import CostKey, Profile
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]


class LayerBounds(Struct, frozen=True, kw_only=True, eq=False):
    """What every layer costs at least under any distribution, all shuffles left out.

    Parameters
    ----------
    computation
        Of every distinct layer, by the first layer that is alike.
    prices
        What the computation of every total split of a layer costs, by cost key. [s]
    lowest
        What a layer costs at least. [s]
    bound
        The sum over all layers. [s]
    totals, left
        What is costed in full: which totals of every distinct layer, and the candidates of these
        that the search does not see. Nothing at first.
    """

    computation: Mapping[str, LayerComputation]
    prices: Mapping[CostKey, Floats]
    lowest: Mapping[CostKey, float]
    bound: float
    totals: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    left: Mapping[str, LeftOut] = field(default_factory=dict)

    @classmethod
    def of(
        cls, formulation: Formulation, profile: Profile | float, before: LayerBounds | None = None
    ) -> LayerBounds:
        """Bounds by computation alone, of an additive problem as of `Formulation.problem`.

        Parameters
        ----------
        formulation, profile
            As of `Formulation.problem`.
        before
            Those for another profile, and for some of the candidates: what was costed for them.
        """
        computation = {} if before is None else dict(before.computation)
        prices: dict[CostKey, Floats] = {}
        keys = formulation.cost_keys(profile)
        for layer, key in zip(formulation.layers, keys, strict=True):
            if key.space not in computation:
                wanted = formulation.graph.input_gradients(layer.name)
                computation[key.space] = LayerComputation.of(layer, formulation.machine, wanted)
            if key not in prices:
                prices[key] = computation[key.space].times.weighted(key.share)
        lowest = {key: float(values.min()) for key, values in prices.items()}
        costed = {} if before is None else before.left
        return cls(
            computation=computation,
            prices=prices,
            lowest=lowest,
            bound=sum(lowest[key] for key in keys),
            totals={} if before is None else before.totals,
            left={n: one.unseen(formulation.spaces[n].candidates) for n, one in costed.items()},
        )

    def sharpened(
        self, formulation: Formulation, profile: Profile | float, worst: float, deadline: Deadline
    ) -> LayerBounds:
        """Bounds by all that a layer costs: only what computes less than the search's best counts.

        Parameters
        ----------
        formulation, profile
            As of `of`.
        worst
            What of it matters next, as of `near`: that is costed along. [s]
        deadline
            When to give up by raising `OutOfTime`.
        """
        keys = formulation.cost_keys(profile)
        pairs = zip(keys, formulation.node_costs(profile), strict=True)
        seen = {key: float(costs.min()) for key, costs in pairs}
        # where nothing left out costs less than the search's best, that is all that is near
        slack = max(worst - sum(seen[key] for key in keys), 0.0)
        limits = {key: best + slack for key, best in seen.items()}
        costed = self.costed(formulation, self._below(limits), deadline)
        left = costed.left
        lowest = {
            key: min(
                best, float(left[key.space].least(left[key.space].prices(key)).min(initial=best))
            )
            for key, best in seen.items()
        }
        return replace(costed, lowest=lowest, bound=sum(lowest[key] for key in keys))

    def costed(
        self,
        formulation: Formulation,
        totals: Mapping[str, NDArray[np.bool_]],
        deadline: Deadline,
    ) -> LayerBounds:
        """The same with the candidates of some more totals costed.

        Parameters
        ----------
        formulation, deadline
            As of `sharpened`.
        totals
            Which totals of each distinct layer.
        """
        if not self.left:
            left = dict(cost_left_out(formulation, self, totals, deadline))
            return replace(self, totals=totals, left=left)
        new = {name: mask & ~self.totals[name] for name, mask in totals.items()}
        new = {name: mask for name, mask in new.items() if mask.any()}
        left = {**self.left}
        for name, more in cost_left_out(formulation, self, new, deadline):
            left[name] = left[name].joined(more)
        totals = {name: mask | self.totals[name] for name, mask in totals.items()}
        return replace(self, totals=totals, left=left)

    def near(self, worst: float) -> dict[str, NDArray[np.bool_]]:
        """Which totals of each distinct layer can be part of something cheaper than `worst`."""
        slack = worst - self.bound
        return self._below({key: low + slack for key, low in self.lowest.items()})

    def _below(self, limits: Mapping[CostKey, float]) -> dict[str, NDArray[np.bool_]]:
        """Which totals of each distinct layer cost no more than a limit.

        Parameters
        ----------
        limits
            The limit by cost key. [s]
        """
        found: dict[str, NDArray[np.bool_]] = {}
        for key, prices in self.prices.items():
            found[key.space] = found.get(key.space, False) | (prices <= limits[key])
        return found


def cost_left_out(
    formulation: Formulation,
    least: LayerBounds,
    wanted: Mapping[str, NDArray[np.bool_]],
    deadline: Deadline,
) -> Iterator[tuple[str, LeftOut]]:
    """Cost candidates that the search does not see, layer by layer: together they take much memory.

    Parameters
    ----------
    formulation
        The network on the machine, with the candidates that the search sees.
    least
        What layers compute.
    wanted
        Which totals of each distinct layer.
    deadline
        When to give up by raising `OutOfTime`.
    """
    cut = cut_level(formulation.cluster, formulation.machine.topology.shape)
    for name, mask in wanted.items():
        deadline.check()
        left = leave_out(
            formulation.spaces[name],
            mask,
            least.computation[name],
            formulation.machine,
            input_gradients=formulation.graph.input_gradients(name),
            largest_bucket=formulation.largest,
            cut=cut,
        )
        yield name, left
