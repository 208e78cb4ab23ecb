"""The candidates that a search does not see, in classes that stand for them.

A class is all left-out candidates of a layer that split the levels across hosts alike. It costs
what the cheapest of them does, and of its shuffles only what crosses hosts counts. So a class never
costs more than any of its members, whatever the neighbours do.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.cluster import Cluster
from costmodels.distribution import Candidates, enumerate_candidates, places_of_totals
from costmodels.distribution.rows import unique_rows
from costmodels.graph import Layer
from costmodels.layers.layer_cost import layer_costs
from costmodels.layers.layer_passes import layer_computation
from costmodels.layers.local_work import local_parameters
from costmodels.step.machine import Machine
from planner.planning.space.layer_space import LayerSpace
from planner.planning.space.profile import CostKey
from planner.planning.space.step_terms import PassTimes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class LayerComputation(Struct, frozen=True, kw_only=True, eq=False):
    """What a layer computes at least, by how many ways each dim is split in all.

    Parameters
    ----------
    totals
        Those ways, as candidates of a machine of one level.
    times
        Computation alone, without any communication: no split takes less.
    passes
        Of that a forward and a backward pass, without the update. [s]
    """

    totals: Candidates
    times: PassTimes
    passes: Floats

    @classmethod
    def of(
        cls, layer: Layer, machine: Machine, input_gradients: tuple[bool, ...]
    ) -> LayerComputation:
        """The computation of a layer.

        Parameters
        ----------
        layer, machine
            The layer and where it runs.
        input_gradients
            For each input, whether backward must send a gradient to it.
        """
        totals = enumerate_candidates(layer, (machine.topology.num_devices,), 0, full=True)
        parameters = local_parameters(layer, totals) * (layer.shares_weight_with is None)
        times = layer_computation(layer, totals, machine, parameters, any(input_gradients))
        return cls(
            totals=totals,
            times=PassTimes.computing(
                totals,
                once=times.forward + times.update,
                backward=times.backward_data + times.backward_weight,
                ready=times.backward_weight,
            ),
            passes=times.forward + times.backward_data + times.backward_weight,
        )

    def near(self, candidates: Candidates, wanted: NDArray[np.bool_]) -> Ints:
        """Indices of the candidates whose totals are wanted.

        Parameters
        ----------
        candidates
            Distributions of the layer.
        wanted
            Which totals; (totals,).
        """
        return np.flatnonzero(wanted[places_of_totals(candidates, self.totals)])


class LeftOut(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Candidates of a layer that a search does not see, sorted by class.

    Parameters
    ----------
    candidates, times
        The candidates, and what they take.
    cut
        The first level that classes tell apart.
    first
        The first member of each class.
    """

    candidates: Candidates
    times: PassTimes
    cut: int
    first: Ints

    @classmethod
    def of(cls, candidates: Candidates, times: PassTimes, cut: int) -> LeftOut:
        """Sort candidates by class.

        Parameters
        ----------
        candidates, times, cut
            As above, in any order.
        """
        outer = outer_part(candidates, cut).degrees
        columns = int(np.prod(outer.shape[1:]))
        starts, numbers = unique_rows(outer.reshape(len(candidates), columns))
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(starts))
        return cls(
            candidates=candidates.take(order),
            times=times.take(order),
            cut=cut,
            first=np.cumsum(counts) - counts,
        )

    @cached_property
    def class_of(self) -> Ints:
        """The class of every candidate."""
        counts = np.diff(np.append(self.first, len(self.candidates)))
        return np.repeat(np.arange(len(self.first)), counts)

    def without(self, indices: Ints) -> LeftOut:
        """The others, when some of the candidates are searched."""
        rest = np.delete(np.arange(len(self.candidates)), indices)
        _, first = np.unique(self.class_of[rest], return_index=True)
        return replace(
            self,
            candidates=self.candidates.take(rest),
            times=self.times.take(rest),
            first=first,
        )

    def unseen(self, seen: Candidates) -> LeftOut:
        """Those that are not among candidates that a search sees."""
        others = _others(self.candidates, seen)
        return self.without(np.delete(np.arange(len(self.candidates)), others))

    def joined(self, more: LeftOut) -> LeftOut:
        """These candidates and others of the same layer."""
        if not len(more.candidates):
            return self
        candidates = self.candidates.joined(more.candidates)
        return LeftOut.of(candidates, self.times.joined(more.times), self.cut)

    def only(self, classes: NDArray[np.bool_]) -> LeftOut:
        """The members of some classes."""
        return self.without(np.flatnonzero(~classes[self.class_of]))

    def prices(self, key: CostKey) -> Floats:
        """What every candidate costs in an additive problem. [s]"""
        return self.times.weighted(key.share)

    def least(self, prices: Floats) -> Floats:
        """The least price of the members of every class; (classes,). [s]"""
        return np.minimum.reduceat(prices, self.first) if len(self.first) else np.zeros(0)


def cut_level(cluster: Cluster, shape: tuple[int, ...]) -> int:
    """The first level that classes tell apart: that across hosts, or 0 where all is in one host."""
    cut = cluster.host_index + 1
    return cut if any(size > 1 for size in shape[cut:]) else 0


def leave_out(
    space: LayerSpace,
    near: NDArray[np.bool_],
    computation: LayerComputation,
    machine: Machine,
    *,
    input_gradients: tuple[bool, ...],
    largest_bucket: float,
    cut: int,
) -> LeftOut:
    """Cost and sort the candidates that a search does not see.

    Parameters
    ----------
    space
        What the search sees of the layer.
    near
        Which totals of the computation are looked at; all others are left out altogether.
    computation
        Of the layer.
    machine, input_gradients, largest_bucket
        As of `layer_costs`.
    cut
        The first level that classes tell apart.
    """
    shape = machine.topology.shape
    everything = enumerate_candidates(space.layer, shape, 0, full=True)
    everything = everything.take(computation.near(everything, near))
    left = everything.take(_others(everything, space.candidates))
    costs = layer_costs(
        space.layer,
        left,
        machine,
        input_gradients=input_gradients,
        largest_bucket=largest_bucket,
    )
    return LeftOut.of(left, PassTimes.of(left, costs), cut)


def _others(candidates: Candidates, seen: Candidates) -> Ints:
    """Indices of the candidates that are not among those that a search sees."""
    rows = seen.joined(candidates).degrees
    first, inverse = unique_rows(rows.reshape(len(rows), rows[0].size))
    # the first of equals is the one that the search sees
    found: Ints = np.flatnonzero(first[inverse[len(seen) :]] >= len(seen))
    return found


def outer_part(candidates: Candidates, cut: int) -> Candidates:
    """How candidates split the levels from `cut` on."""
    return Candidates(
        dims=candidates.dims,
        degrees=candidates.degrees[:, cut:],
        shape=candidates.shape[cut:],
    )
