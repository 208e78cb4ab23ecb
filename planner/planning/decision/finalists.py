"""Assignments that are worth a simulation, besides those that the search proposes.

A *pattern* is a split of samples, space and features at each level
(`planner.planning.space.candidates`). Under each promising one all layers are split alike where
they can be. Patterns may leave devices without work of their own, so that plans of fewer devices
are among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodels.distribution.rows import unique_rows
from planner.planning.decision.simulator import Choices
from planner.planning.space.candidates import COUNTED_ALL_REDUCE, LACKING_PATTERN, pattern_rows
from planner.planning.space.formulate import Formulation
from planner.planning.space.layer_space import LayerSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Patterns that are looked at: the fastest without regard to shuffles. [items]
NUM_PATTERNS = 16
# The same of those that leave devices without work of their own. [items]
NUM_IDLE_PATTERNS = 6
# Weights whose users are moved together: the largest, of which most networks share one. [items]
MOST_SHARED = 2


def _layer_time(space: LayerSpace) -> Floats:
    """What a layer takes by itself, shuffles left out; (candidates,). [s]"""
    return space.costs.total + COUNTED_ALL_REDUCE * space.costs.gradient_time


class Patterns:
    """The patterns of a formulation, numbered.

    Parameters
    ----------
    formulation
        The network on the machine.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation
        self.spaces = {id(s): s for s in formulation.spaces.values()}
        rows = [pattern_rows(space.candidates) for space in self.spaces.values()]
        first, inverse = unique_rows(np.concatenate(rows))
        parts = np.split(inverse, np.cumsum([len(r) for r in rows])[:-1])
        self.numbers: dict[int, Ints] = dict(zip(self.spaces, parts, strict=True))
        self.count = len(first)
        levels = len(formulation.machine.topology.shape)
        # the last columns of a pattern: how many members of each level repeat the work of others
        self.repeats = np.any(np.concatenate(rows)[first, -levels:] > 1, axis=1).reshape(-1)
        self.of_layer = [self.numbers[id(formulation.spaces[x.name])] for x in formulation.layers]
        self.replication = {key: s.candidates.replication for key, s in self.spaces.items()}
        self.space_of = [id(formulation.spaces[layer.name]) for layer in formulation.layers]
        times = {key: _layer_time(space) for key, space in self.spaces.items()}
        # what each layer takes by itself, by candidate [s]
        self.layer_times = [times[key] for key in self.space_of]
        self.known_best: dict[int, Ints] = {}
        self.has_weights = [layer.parameters > 0 for layer in formulation.layers]
        index = {layer.name: i for i, layer in enumerate(formulation.layers)}
        self.edges = [(index[e.source], index[e.target]) for e in formulation.edges]
        self.into: list[list[tuple[int, Floats]]] = [[] for _ in formulation.layers]
        shuffles: dict[int, Floats] = {}
        for edge in formulation.edges:
            times_of = formulation.edge_times[edge]
            if id(times_of) not in shuffles:
                shuffles[id(times_of)] = times_of.forward + times_of.backward
            self.into[index[edge.target]].append((index[edge.source], shuffles[id(times_of)]))
        # what each user of another layer's weight adds, by candidate of the owner and its own [s]
        self.users: dict[int, dict[int, Floats]] = {}
        for pair in formulation.shared_costs(COUNTED_ALL_REDUCE):
            self.users.setdefault(pair.source, {})[pair.target] = pair.matrix
        largest = sorted(self.users, key=lambda i: -formulation.layers[i].parameters)
        self.most_shared = largest[:MOST_SHARED]

    def changes(self, choices: Choices) -> int:
        """How often neighbours are split unlike: the measure of how simple a plan is. [items]"""
        mine = [int(of[c]) for of, c in zip(self.of_layer, choices, strict=True)]
        return sum(mine[source] != mine[target] for source, target in self.edges)

    @cached_property
    def most_promising(self) -> Ints:
        """The patterns that are fastest for all layers together, shuffles left out.

        Those that leave devices without work of their own are few of them, and looked at besides.
        """
        time = np.zeros(self.count)
        layers = self.formulation.layers
        users: dict[int, int] = {}
        for layer in layers:
            key = id(self.formulation.spaces[layer.name])
            users[key] = users.get(key, 0) + 1
        for key, space in self.spaces.items():
            score = _layer_time(space)
            best = np.full(self.count, np.inf)
            np.minimum.at(best, self.numbers[key], score)
            lacking = LACKING_PATTERN * score.min()
            time += users[key] * np.where(np.isfinite(best), best, lacking)
        order = np.argsort(time, kind="stable")
        idle = order[self.repeats[order]][:NUM_IDLE_PATTERNS]
        others = sorted({*idle.tolist()}.difference(order[:NUM_PATTERNS].tolist()))
        return np.concatenate([order[:NUM_PATTERNS], np.array(others, dtype=np.int64)])

    def assignments(self, patterns: Ints) -> list[Choices]:
        """All layers under each pattern; those that lack it as suits the layers that they read."""
        formulation = self.formulation
        chosen = np.zeros((len(formulation.layers), len(patterns)), dtype=np.int64)
        for i in range(len(chosen)):
            times = np.repeat(self.layer_times[i][None], len(patterns), axis=0)
            for source, seconds in self.into[i]:
                times += seconds[chosen[source]]
            lacking = self.best_of(i)[patterns] < 0
            allowed = (self.of_layer[i] == patterns[:, None]) | lacking[:, None]
            chosen[i] = np.where(allowed, times, np.inf).argmin(axis=1)
        return [tuple(row) for row in chosen.T.tolist()]

    def merged(self, choices: Choices) -> list[Choices]:
        """The assignment with one run split as the run before or after it, for every run."""
        mine = np.array([of[c] for of, c in zip(self.of_layer, choices, strict=True)])
        starts = [0, *(np.flatnonzero(np.diff(mine)) + 1).tolist(), len(mine)]
        found = []
        for start, end in itertools.pairwise(starts):
            for place in (start - 1, end):
                if 0 <= place < len(mine):
                    found.append(self._with_pattern(choices, start, end, int(mine[place])))
        return list(dict.fromkeys(found))

    @cached_property
    def under_promising(self) -> Ints:
        """The fastest candidate of each layer under each of these, -1 where it has none."""
        rows = [self.best_of(i)[self.most_promising] for i in range(len(self.of_layer))]
        return np.stack(rows, axis=1)

    def with_another_split(self, choices: Choices) -> Ints:
        """The assignment with all layers of one pattern under a promising one, for each pair.

        Runs that are split alike move together, whatever lies between them; (pairs, layers).
        """
        mine = np.array([of[c] for of, c in zip(self.of_layer, choices, strict=True)])
        others, moves = self.under_promising, []
        for pattern in np.unique(mine):
            moved = (mine == pattern) & (others >= 0)
            moves.append(np.where(moved, others, np.array(choices)))
        return np.concatenate(moves)

    def with_borders_moved(self, choices: Choices, most: int) -> list[Choices]:
        """The assignment itself, and with the border of two runs moved by some layers either way.

        Parameters
        ----------
        choices
            The assignment.
        most
            Layers by which a border is moved at most. [items]
        """
        mine = np.array([of[c] for of, c in zip(self.of_layer, choices, strict=True)])
        found = [choices]
        for border in (np.flatnonzero(np.diff(mine)) + 1).tolist():
            before, behind = int(mine[border - 1]), int(mine[border])
            for by in range(1, most + 1):
                if border >= by:
                    found.append(self._with_pattern(choices, border - by, border, behind))
                if border + by <= len(mine):
                    found.append(self._with_pattern(choices, border, border + by, before))
        return list(dict.fromkeys(found))

    def _with_pattern(self, choices: Choices, start: int, end: int, pattern: int) -> Choices:
        """The assignment with some layers under a pattern, as far as they have it.

        Parameters
        ----------
        choices
            The assignment.
        start, end
            The first layer, and the one after the last.
        pattern
            Its number.
        """
        changed = list(choices)
        for i in range(start, end):
            best = int(self.best_of(i)[pattern])
            changed[i] = changed[i] if best < 0 else best
        return tuple(changed)

    def best_of(self, layer: int) -> Ints:
        """The fastest candidate of a layer under each pattern, -1 where it has none."""
        key = self.space_of[layer]
        if key not in self.known_best:
            numbers, order = self.numbers[key], np.argsort(-self.layer_times[layer], kind="stable")
            best = np.full(self.count, -1, dtype=np.int64)
            best[numbers[order]] = order  # the fastest of equal numbers is written last
            self.known_best[key] = best
        return self.known_best[key]

    def followed(self, rows: Ints, layer: int) -> Ints:
        """Assignments with the layers behind one split as it is, up to the next with weights.

        Parameters
        ----------
        rows
            Assignments; (assignments, layers).
        layer
            Number of the layer.
        """
        rows = rows.copy()
        patterns = self.of_layer[layer][rows[:, layer]]
        for i in range(layer + 1, rows.shape[1]):
            if self.has_weights[i]:
                break
            best = self.best_of(i)[patterns]
            rows[:, i] = np.where(best >= 0, best, rows[:, i])
        return rows

    def with_users_moved(self, choices: Choices) -> Ints:
        """The assignment with all users of one weight under other candidates, for each weight.

        Under each candidate of the owner, or of the user that takes longest, the others go where
        that costs least. With those two go the layers behind that have no weights, or stay;
        (assignments, layers).
        """
        rows = [np.zeros((0, len(choices)), dtype=np.int64)]
        for owner in self.most_shared:
            users = self.users[owner]
            several = {owner, *users}
            alone = {i: self._beside_others(choices, i, several) for i in several}
            # by candidate of the owner, and of one user
            pairs = {i: alone[owner][:, None] + more + alone[i] for i, more in users.items()}
            longest = max(users, key=lambda i: (self.layer_times[i].min(), -i))
            mine, theirs = pairs[longest].shape
            moved = np.repeat(np.array(choices)[None], mine + theirs, axis=0)
            moved[:, owner] = np.append(np.arange(mine), pairs[longest].argmin(axis=0))
            for i, costs in pairs.items():
                moved[:, i] = costs[moved[:, owner]].argmin(axis=1)
            moved[mine:, longest] = np.arange(theirs)
            rows += [moved, moved := self.followed(moved, owner), self.followed(moved, longest)]
        return np.concatenate(rows)

    def _beside_others(self, choices: Choices, layer: int, apart: Collection[int]) -> Floats:
        """What a layer takes by candidate, with its shuffles from and to others as they are. [s]

        Parameters
        ----------
        choices
            The assignment.
        layer
            Number of the layer.
        apart
            Layers that move as well, with which it has no shuffles.
        """
        seconds = self.layer_times[layer].copy()
        for source, times in self.into[layer]:
            seconds += 0.0 if source in apart else times[choices[source]]
        for target, into in enumerate(self.into):
            for source, times in into:
                if source == layer and target not in apart and self.has_weights[target]:
                    seconds += times[:, choices[target]]
        return seconds

    def replicated(self, choices: Choices) -> float:
        """Part of the computation that is done more than once."""
        twice = total = 0.0
        for layer, choice in zip(self.formulation.layers, choices, strict=True):
            space = self.formulation.spaces[layer.name]
            seconds = float(space.costs.compute[choice])
            total += seconds
            twice += seconds * bool((self.replication[id(space)][choice] > 1).any())
        return twice / total if total else 0.0
