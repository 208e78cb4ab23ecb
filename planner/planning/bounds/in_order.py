"""What no step is below whose gradients travel in buckets of one size, in the order of the layers.

The terms of a step (`planner.planning.space.step_terms`) count of each gradient what it adds to
all-reduces at least, whatever travels with it, and a weighted mean of terms counts the same
assignment before an all-reduce and behind it. Here assignments are built layer by layer from the
last one, as the backward pass goes, and each knows what waits in its buckets. So every all-reduce
counts in full, and the largest term counts, not a mean. Of assignments that agree in their last
layer and their buckets those go that another one is no slower than, and all go that end in nothing
faster than is asked for. `docs/search.md` derives what is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.step.timeline import bucketed_time, gradient_time
from planner.planning.bounds.labels import Labels, joined
from planner.planning.space.formulate import Formulation
from planner.simulation.run import OVERLAP_FACTOR
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Of the two ends that are tracked the mean is bounded with so much of the second one.
MIXTURES = (0.0, 0.1, 0.3, 0.6, 1.0)
# Messages run beside all-reduces, and computation so much slower: see the terms.
KEPT = 1.0 - OVERLAP_FACTOR
# By rounding a bound gets lower by that part at most: as little as what counts as equal.
ROUNDED = 1e-3
# What is summed in another order differs in the last digits.
ROUNDING = 1e-9

# What waits in the bucket of a group: its number, bytes, and how much longer the bucket takes so
# far than its gradients pay at least. [B], [s]
Waiting = tuple[int, float, float]
# Whether any bucket left already, and what waits.
Buckets = tuple[bool, tuple[Waiting, ...]]


class TooManyLabels(Exception):
    """There are more unlike assignments to go on from than are looked at."""


class InOrder(Struct, frozen=True, kw_only=True, eq=False):
    """What a search came to.

    Parameters
    ----------
    bound
        No assignment of the candidates takes less, nor less than was asked for. [s]
    choices
        The assignments with the least bounds below that, the least first.
    """

    bound: float
    choices: tuple[tuple[int, ...], ...]


class _Layer(Struct, frozen=True, kw_only=True, eq=False):
    """What a layer adds by candidate; (candidates,) each. [s], [B]

    `alike` is the first candidate with the same gradient. `forward` and `behind` are what its edge
    from the layer before adds to the two passes, (candidates there, candidates), or None where it
    does not read that layer.
    """

    always: Floats
    backward: Floats
    messages: Floats
    ready: Floats
    num_bytes: Floats
    group: Ints
    paid: Floats
    alike: Ints
    forward: Floats | None
    behind: Floats | None

    def weighted(self, mixture: float) -> Floats:
        """What it adds to the mean of both ends at least. [s]"""
        first = self.backward + KEPT * self.messages + OVERLAP_FACTOR * self.paid
        second = OVERLAP_FACTOR * self.backward + self.paid
        mean: Floats = self.always + (1.0 - mixture) * first + mixture * second
        return mean


class OrderedSearch:
    """Searches the candidates of a formulation.

    Parameters
    ----------
    formulation
        The network on the machine; no layer shares the weight of another.
    kept
        The candidates of each layer that may be part of what is asked for.
    sizes, first_bytes
        The least and the largest size of gradient buckets, between which a bucket may or may not
        leave, and the size of the first one where it has its own. [B]
    """

    def __init__(
        self,
        formulation: Formulation,
        kept: Sequence[Ints],
        sizes: tuple[float, float],
        first_bytes: float | None,
    ) -> None:
        assert not formulation.shared, "what sharers of weights add is not counted here"
        self.formulation, self.kept = formulation, kept
        self.sizes, self.first = sizes, first_bytes
        self.groups: dict[tuple[int, ...], int] = {}
        self.layers = [self._layer(i) for i in range(len(kept))]
        self.members = np.array(list(self.groups), dtype=np.int64)
        # groups that some layer before each one may still add to
        added = [{*layer.group[layer.num_bytes > 0.0].tolist()} for layer in self.layers]
        self.to_come = [set[int]().union(*added[:i]) for i in range(len(kept))]
        self.known: dict[Buckets, int] = {}
        self.states: list[Buckets] = []
        # of each state, what its buckets take beyond what their gradients pay [s]
        self.beyond: list[float] = []
        self.to_go = {mixture: self._to_go(mixture) for mixture in MIXTURES}

    def below(self, worst: float, most: int, count: int, deadline: Deadline) -> InOrder:
        """What takes less than some time by these bounds.

        Parameters
        ----------
        worst
            What takes no less does not matter. [s]
        most, count
            Labels that are looked at in all, and assignments that are returned. [items]
        deadline
            When to give up by raising `OutOfTime`.

        Raises
        ------
        TooManyLabels
            With more labels than that.
        """
        last = len(self.layers) - 1
        begin = self._number((False, ()))
        sizes = len(self.kept[last])
        none = np.zeros(sizes)
        labels = Labels(
            choice=np.arange(sizes),
            buckets=np.full(sizes, begin),
            parent=np.zeros(sizes, dtype=np.int64),
            through=none,
            reduced=none,
        )
        path, unit = [], ROUNDED * worst / (2 * len(self.layers))
        for i in reversed(range(len(self.layers))):
            deadline.check()
            labels = self._passed(i, labels)
            most -= len(labels.choice)
            if most < 0:
                raise TooManyLabels
            rest = {mixture: rows[i] for mixture, rows in self.to_go.items()}
            labels = labels.take(labels.near(self._waiting(labels), rest, worst))
            path.append(labels)
            if not len(labels.choice):
                return InOrder(bound=worst, choices=())
            if i:
                labels = self._before(i, labels, worst, unit)
        ends = np.maximum(labels.through, labels.reduced) * (1.0 - ROUNDING)
        best = np.argsort(ends, kind="stable")
        chosen = [self._traced(path, int(n)) for n in best[:count]]
        return InOrder(bound=min(worst, float(ends.min())), choices=tuple(chosen))

    def _traced(self, path: Sequence[Labels], label: int) -> tuple[int, ...]:
        """The assignment of a label of the first layer."""
        found = []
        for i, labels in enumerate(reversed(path)):
            found.append(int(self.kept[i][labels.choice[label]]))
            label = int(labels.parent[label])
        return tuple(found)

    def _layer(self, i: int) -> _Layer:
        """What the candidates of a layer add."""
        f, kept = self.formulation, self.kept[i]
        name = f.layers[i].name
        times, gaps = f.times[f.first_alike[name]].take(kept), f.gaps[i]
        costs, machine = f.spaces[name].costs, f.machine
        members, num_bytes = costs.gradient_group[kept], costs.gradient_bytes[kept]
        number = [self.groups.setdefault(tuple(row), len(self.groups)) for row in members.tolist()]
        # smaller buckets only take longer, and the first one may be larger than the others
        largest = max(self.sizes[1], self.first or 0.0)
        how = machine.training.all_reduce
        paid = bucketed_time(machine.topology, members, num_bytes, largest, how)
        _, first, kind = np.unique(
            np.stack([np.array(number), num_bytes]), axis=1, return_index=True, return_inverse=True
        )
        forward, behind = self._edges(i)
        return _Layer(
            always=times.once + times.behind + times.forward_messages(gaps),
            backward=times.backward,
            messages=times.backward_messages(gaps),
            ready=times.ready,
            num_bytes=num_bytes,
            group=np.array(number, dtype=np.int64),
            paid=np.where(num_bytes > 0.0, paid, 0.0),
            alike=first[kind.reshape(-1)],
            forward=forward,
            behind=behind,
        )

    def _edges(self, i: int) -> tuple[Floats | None, Floats | None]:
        """What a layer and the one before it wait for between them in each pass. [s]"""
        f = self.formulation
        name = f.layers[i].name
        forward: Floats | None = None
        behind: Floats | None = None
        for edge in f.counted_edges:
            if edge.target != name:
                continue
            pairs = np.ix_(self.kept[i - 1], self.kept[i])
            there = f.edge_times[edge].forward[pairs]
            there = there * f.new_forward(edge)[pairs] if edge in f.repeated else there
            back = f.edge_times[edge].backward[pairs]
            forward = there if forward is None else forward + there
            behind = back if behind is None else behind + back
        return forward, behind

    def _to_go(self, mixture: float) -> list[Floats]:
        """What all layers before each one add to the mean of both ends at least, by candidate."""
        found = [np.zeros(len(self.kept[0]))]
        for before, layer in zip(self.layers, self.layers[1:], strict=False):
            costs = before.weighted(mixture) + found[-1]
            if layer.forward is None or layer.behind is None:
                found.append(np.full(len(layer.always), costs.min()))
                continue
            edge = layer.forward + (1.0 - mixture) * KEPT * layer.behind
            found.append((costs[:, None] + edge).min(axis=0))
        return found

    def _waiting(self, labels: Labels) -> Floats:
        """What the buckets of labels take beyond what their gradients pay. [s]"""
        return np.array(self.beyond)[labels.buckets]

    def _before(self, i: int, labels: Labels, worst: float, unit: float) -> Labels:
        """The labels with each candidate of the layer before."""
        layer, labels = self.layers[i], replace(labels, parent=np.arange(len(labels.choice)))
        rest = {m: self.layers[i - 1].weighted(m) + self.to_go[m][i - 1] for m in MIXTURES}
        if layer.forward is None:
            labels = labels.undominated(unit)
        waiting, parts = self._waiting(labels), []
        for choice in range(len(self.kept[i - 1])):
            through, reduced = labels.through, labels.reduced
            if layer.forward is not None and layer.behind is not None:
                there = layer.forward[choice, labels.choice]
                through = through + there + KEPT * layer.behind[choice, labels.choice]
                reduced = reduced + there
            part = Labels(
                choice=np.full(len(through), choice),
                buckets=labels.buckets,
                parent=labels.parent,
                through=through,
                reduced=reduced,
            )
            part = part.take(part.near(waiting, rest, worst))
            parts.append(part.undominated(unit))
        return joined(parts)

    def _passed(self, i: int, labels: Labels) -> Labels:
        """The labels with the passes of a layer, and with what its gradient adds."""
        layer, c = self.layers[i], labels.choice
        began = labels.through + layer.always[c] + OVERLAP_FACTOR * layer.backward[c]
        began += KEPT * layer.ready[c]
        through = labels.through + layer.always[c] + layer.backward[c] + KEPT * layer.messages[c]
        reduced = labels.reduced + layer.always[c] + OVERLAP_FACTOR * layer.backward[c]
        some = np.flatnonzero(layer.num_bytes[c] > 0.0)
        passed = replace(labels, through=through, reduced=reduced)
        if not len(some):
            return passed
        count = len(layer.alike)
        keys, inverse = np.unique(
            labels.buckets[some] * count + layer.alike[c[some]], return_inverse=True
        )
        after, added, whole, was = self._joined(i, np.stack(np.divmod(keys, count)))
        # the whole bucket follows this gradient, and what of it was there already slowed nothing
        starts = began[some] + (whole - OVERLAP_FACTOR * was)[inverse]
        reduced[some] = np.maximum(reduced[some] + added[inverse], starts)
        through[some] += OVERLAP_FACTOR * added[inverse]
        buckets = np.stack([labels.buckets, np.full(len(c), -1)])
        buckets[:, some] = after[:, inverse]
        both = [replace(passed, buckets=one).take(one >= 0) for one in buckets]
        return joined(both)

    def _joined(self, i: int, pairs: Ints) -> tuple[Ints, Floats, Floats, Floats]:
        """What happens where gradients join buckets.

        Parameters
        ----------
        i
            Number of the layer.
        pairs
            Numbers of states, and candidates of the layer; (2, pairs).

        Returns
        -------
        The states where the bucket waits, and where it leaves, -1 where it does not, (2, pairs); by
        how much longer the bucket takes, how long with all in it, and how long without. [s]
        """
        layer = self.layers[i]
        groups, added = layer.group[pairs[1]], layer.num_bytes[pairs[1]]
        waiting = [
            next((one for one in self.states[state][1] if one[0] == group), (group, 0.0, 0.0))
            for state, group in zip(pairs[0].tolist(), groups.tolist(), strict=True)
        ]
        before = np.array([one[1] for one in waiting])
        sizes = before + added
        was, whole = (self._all_reduce(groups, size) for size in (before, sizes))
        beyond = np.array([one[2] for one in waiting]) + whole - was - layer.paid[pairs[1]]
        waits = zip(groups.tolist(), sizes.tolist(), beyond.tolist(), strict=True)
        after = np.full((2, len(sizes)), -1)
        for n, (state, one) in enumerate(zip(pairs[0].tolist(), waits, strict=True)):
            left, rows = self.states[state]
            # what nothing can join any more is as good as gone
            rest = [r for r in rows if r[0] != one[0] and r[0] in self.to_come[i]]
            least, most = self.sizes if left or self.first is None else (self.first,) * 2
            if one[1] >= least:
                after[1, n] = self._number((True, tuple(rest)))
            if one[1] < most:
                rest += [one] * (one[0] in self.to_come[i])
                after[0, n] = self._number((left, tuple(sorted(rest))))
        return after, whole - was, whole, was

    def _all_reduce(self, groups: Ints, num_bytes: Floats) -> Floats:
        """How long buckets of groups take; nothing where there is nothing in them. [s]"""
        machine = self.formulation.machine
        pairs, inverse = np.unique(np.stack([groups, num_bytes]), axis=1, return_inverse=True)
        members = self.members[pairs[0].astype(np.int64)]
        times = gradient_time(machine.topology, members, pairs[1], machine.training.all_reduce)
        found: Floats = np.where(pairs[1] > 0.0, times, 0.0)[inverse.reshape(-1)]
        return found

    def _number(self, state: Buckets) -> int:
        """The number of what waits."""
        if state not in self.known:
            self.known[state] = len(self.states)
            self.states.append(state)
            self.beyond.append(sum(row[2] for row in state[1]))
        return self.known[state]
