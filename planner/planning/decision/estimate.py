"""Estimates of the simulated step of many assignments at once: which are worth a simulation.

Local computation, the communication that it waits for, and gradient all-reduces as in the
simulation: one all-reduce after the other beside the backward pass, computation slower while they
run, and messages that leave a host sharing the links with them. Gradients of one group of ranks
wait until their bucket is full, or until the end. Users of one weight exchange their sums at last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.distribution import Candidates
from costmodels.distribution.rows import unique_rows
from costmodels.step.timeline import gradient_time
from planner.planning.space.formulate import Formulation
from planner.simulation.run import OVERLAP_FACTOR

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Buckets that are reduced at once where a layer has gradients for so many. [items]
SEVERAL = 4


class _LayerTimes(Struct, frozen=True, kw_only=True, eq=False):
    """What a layer adds by candidate; (candidates,). [s], [B]"""

    forward: Floats
    backward: Floats
    waits: Floats
    gradient_bytes: Floats
    group: Ints
    leaves: NDArray[np.bool_]
    outer_samples: Ints


class StepEstimates:
    """Estimates for one formulation.

    Parameters
    ----------
    formulation
        The network on the machine.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation
        known: dict[int, _LayerTimes] = {}
        outermost = _outermost(formulation.machine.topology.shape)
        self.groups, numbers = _numbered_groups(formulation)
        index = {layer.name: i for i, layer in enumerate(formulation.layers)}
        self.layers: list[_LayerTimes] = []
        for layer in formulation.layers:
            space = formulation.spaces[layer.name]
            if id(space) not in known:
                c = space.costs
                known[id(space)] = _LayerTimes(
                    forward=c.forward_pass + c.update,
                    backward=c.backward_data + c.backward_weight,
                    waits=c.halo_backward + c.reduce_backward + c.statistics / 2,
                    gradient_bytes=c.gradient_bytes,
                    group=numbers[id(space)],
                    leaves=_leaves_outermost(space.candidates),
                    outer_samples=space.candidates.level_degrees("sample")[:, outermost],
                )
            self.layers.append(known[id(space)])
        self.into: list[list[tuple[int, Floats, Floats]]] = [[] for _ in formulation.layers]
        for edge in formulation.edges:
            times = formulation.edge_times[edge]
            row = (index[edge.source], times.forward, times.backward)
            self.into[index[edge.target]].append(row)
        # the owner and a user of a weight, what that adds at the end, and its all-reduce
        self.shared: list[tuple[int, int, Floats, Floats]] = []
        for name, shared in formulation.shared.items():
            owner = formulation.graph.layers[name].shares_weight_with
            assert owner is not None, "a layer that shares a weight has an owner of it"
            end = shared.spread(shared.exchange + shared.update)
            alone = shared.spread(shared.gradient_time)
            self.shared.append((index[owner], index[name], end, alone))

    def least(self, choices: Ints, sizes: Sequence[float]) -> Floats:
        """The step of each assignment under the gradient buckets that suit it. [s]

        Parameters
        ----------
        choices
            As of `steps`.
        sizes
            Of buckets that may be chosen. [B]
        """
        by_size: Floats = np.min([self.steps(choices, size) for size in sizes], axis=0)
        return by_size

    def steps(self, choices: Ints, bucket_bytes: float) -> Floats:
        """The step of each assignment. [s]

        Parameters
        ----------
        choices
            Candidate of each layer; (assignments, layers).
        bucket_bytes
            Size of gradient buckets. [B]
        """
        overlaps = self.formulation.machine.training.gradient_overlap
        reduced = self._reductions(choices, bucket_bytes)
        clock, queued = np.zeros(len(choices)), np.zeros(len(choices))
        for owner, user, end, alone in self.shared:
            pair = choices[:, owner], choices[:, user]
            clock += end[pair]
            reduced[user] += alone[pair]
        for i in reversed(range(len(self.layers))):
            times, mine = self.layers[i], choices[:, i]
            waits: Floats = times.waits[mine]
            leaves: NDArray[np.bool_] = times.leaves[mine]
            clock += times.forward[mine]
            for source, forward, backward in self.into[i]:
                theirs = choices[:, source]
                clock += forward[theirs, mine]
                waits = waits + backward[theirs, mine]
                other = self.layers[source]
                unlike = other.outer_samples[theirs] != times.outer_samples[mine]
                leaves = leaves | other.leaves[theirs] | unlike
            computing = times.backward[mine]
            hidden = np.minimum(queued, computing) if overlaps else 0.0
            clock += computing + OVERLAP_FACTOR * hidden
            queued = queued - hidden
            hidden = np.minimum(queued, waits) if overlaps else 0.0
            clock += waits + hidden * leaves
            queued = queued - hidden + reduced[i]
        return clock + queued

    def _reductions(self, choices: Ints, bucket_bytes: float) -> Floats:
        """All-reduces that can begin after the backward pass of each layer. [s]

        Parameters
        ----------
        choices, bucket_bytes
            As of `steps`.

        Returns
        -------
        Of shape (layers, assignments).
        """
        buckets = _Buckets(self.formulation, self.groups, choices, bucket_bytes)
        found = np.zeros(choices.T.shape)
        for i in reversed(range(len(self.layers))):
            if self.layers[i].gradient_bytes.any():
                found[i] = buckets.filled(self.layers[i], i)
        buckets.close(found)
        return found


class _Buckets:
    """Gradients that wait for their buckets to be full, of each assignment and group of ranks.

    Parameters
    ----------
    formulation
        The network on the machine.
    groups
        Members of each group at each level; (groups, levels).
    choices
        Candidate of each layer; (assignments, layers).
    size
        Of a bucket. [B]
    """

    def __init__(self, formulation: Formulation, groups: Ints, choices: Ints, size: float) -> None:
        machine = formulation.machine
        self.choices, self.size = choices, size
        count, last = len(choices), choices.shape[1] - 1
        self.rows = np.arange(count)
        self.bytes = np.zeros((count, len(groups)))
        # the layers whose gradients began and ended the bucket of each group, and the last full one
        self.first_of = np.full((count, len(groups)), last)
        self.last_of = np.full((count, len(groups)), last)
        self.last_full = np.full(count, last)
        # a straight line through the times of a bucket and of several at once
        one, several = (
            gradient_time(machine.topology, groups, n * size, machine.training.all_reduce)
            for n in (1, SEVERAL)
        )
        self.per_byte = (several - one) / ((SEVERAL - 1) * size)
        self.fixed = np.maximum(one - self.per_byte * size, 0.0)

    def filled(self, times: _LayerTimes, layer: int) -> Floats:
        """The all-reduces of the buckets that the gradients of a layer fill. [s]"""
        mine = self.choices[:, layer]
        group, added = times.group[mine], times.gradient_bytes[mine]
        begun = self.bytes[self.rows, group]
        waiting = begun + added
        full = (waiting >= self.size) & (added > 0.0)
        self.last_full[full] = layer
        some, begins = added > 0.0, (added > 0.0) & (begun == 0.0)
        self.last_of[self.rows[some], group[some]] = layer
        self.first_of[self.rows[begins], group[begins]] = layer
        self.bytes[self.rows, group] = np.where(full, 0.0, waiting)
        return np.where(full, self.fixed[group] + self.per_byte[group] * waiting, 0.0)

    def close(self, reductions: Floats) -> None:
        """Add the buckets that were never full: after the last full one, the first begun first."""
        left = np.flatnonzero(self.bytes.any(axis=0))
        sizes = self.bytes[:, left]
        times = np.where(sizes > 0.0, self.fixed[left], 0.0) + self.per_byte[left] * sizes
        ready = np.where(sizes > 0.0, self.last_of[:, left], self.choices.shape[1] - 1)
        order = np.argsort(-self.first_of[:, left], axis=1, kind="stable")
        times, ready = (np.take_along_axis(table, order, axis=1) for table in (times, ready))
        # one waits for those before it, ready or not
        begin = np.minimum(np.minimum.accumulate(ready, axis=1), self.last_full[:, None])
        np.add.at(reductions, (begin, self.rows[:, None]), times)


def _numbered_groups(formulation: Formulation) -> tuple[Ints, dict[int, Ints]]:
    """The groups that reduce gradients, and the number of it by space and candidate."""
    spaces = {id(space): space for space in formulation.spaces.values()}
    groups = [space.costs.gradient_group for space in spaces.values()]
    table = np.concatenate(groups)
    first, inverse = unique_rows(table)
    parts = np.split(inverse, np.cumsum([len(group) for group in groups])[:-1])
    return table[first], dict(zip(spaces, parts, strict=True))


def _leaves_outermost(candidates: Candidates) -> NDArray[np.bool_]:
    """Whether messages within a layer cross the outermost level in use; (candidates,)."""
    others = [i for i, dim in enumerate(candidates.dims) if dim != "sample"]
    degrees = candidates.degrees[:, _outermost(candidates.shape)]
    return np.asarray(np.any(degrees[:, others] > 1, axis=1))


def _outermost(shape: Sequence[int]) -> int:
    """The outermost level with more than one member, or the innermost."""
    return max((level for level, size in enumerate(shape) if size > 1), default=0)
