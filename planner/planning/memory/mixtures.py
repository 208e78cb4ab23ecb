"""Assignments in between: each layer as in one of several others, the best such under a limit.

What prices on memory find lies on either side of a limit, since what is best by them is so for all
layers that are alike. What takes some layers from one assignment and the rest from others lies
closer to it. A few assignments take so few candidates that CP-SAT chooses among them at once.
Moments come in only when an answer holds too much there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.planning.memory.rows import MemoryRows
from planner.planning.space.formulate import Floats
from search.cpsat.run import run_model
from search.problem import Problem
from search.problem.deadline import Deadline
from search.problem.interrupts import listening
from search.problem.problem import costs_and_peaks

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar, LinearExprT

Ints = NDArray[np.int64]
Choices = tuple[int, ...]

# CP-SAT wants whole numbers: costs are in such parts of the least cost, sizes of the least peak.
UNIT = 1e-8
# How often moments come in, and work of CP-SAT each time, about as many seconds.
ROUNDS, WORK = 16, 0.3
# Pairs of candidates of neighbours that a model may have: more take seconds to write down. [items]
MOST_PAIRS = 20_000
# Moments that come in at once: those at which an answer holds most. [items]
MOMENTS_AT_ONCE = 8


class Mixtures(Struct, frozen=True, kw_only=True, eq=False):
    """What a few assignments take of each layer.

    Parameters
    ----------
    problem
        What assignments cost.
    rows
        What a device holds at each moment.
    assignments
        The assignments; (assignments, layers).
    deadline
        When to end with the best so far.
    """

    problem: Problem
    rows: MemoryRows
    assignments: Ints
    deadline: Deadline

    @classmethod
    def of(
        cls,
        problem: Problem,
        rows: MemoryRows,
        assignments: Sequence[Choices],
        deadline: Deadline,
    ) -> Mixtures:
        """Mixtures of as many of the first of some assignments as there is room for.

        Parameters
        ----------
        problem, rows, deadline
            As above.
        assignments
            The assignments.
        """
        table = np.array(assignments, dtype=np.int64)
        ends = {(edge.source, edge.target) for edge in problem.edges}
        ends |= {(pair.source, pair.target) for pair in rows.pairs}

        def num_pairs() -> int:
            counts = [len(set(column)) for column in table.T.tolist()]
            return sum(counts[a] * counts[b] for a, b in ends)

        while len(table) > 1 and num_pairs() > MOST_PAIRS:
            table = table[: len(table) // 2]
        return cls(problem=problem, rows=rows, assignments=table, deadline=deadline)

    def cheapest(self, limit: float) -> Choices | None:
        """What costs least within a limit, None where nothing was found.

        Parameters
        ----------
        limit
            What may be held at any moment. [B]
        """
        return self._answer(_Model(self, limit), limit)

    def smallest(self, enough: float = 0.0) -> Choices | None:
        """What holds least at its peak, None where nothing was found.

        Parameters
        ----------
        enough
            A peak that is small enough. [B]
        """
        return self._answer(_Model(self, None), enough)

    def _answer(self, model: _Model, limit: float) -> Choices | None:
        """The answer of a model to which moments are added as its answers need them.

        Parameters
        ----------
        model
            The model.
        limit
            What may be held at any moment. [B]
        """
        held = self.rows.held(self.assignments)
        model.hint(self.assignments[int(held.max(axis=1).argmin())].tolist())
        best, lowest = None, np.inf
        moments: set[int] = set()
        for _ in range(ROUNDS if len(self.assignments) > 1 else 0):
            if self.deadline.passed:
                break
            new = {moment for row in held for moment in _fullest(row)} - moments
            if not new:
                break
            moments |= new
            for moment in sorted(new):
                model.add(moment)
            found = model.solve(self.deadline)
            if found is None:
                break
            held = self.rows.held(np.array([found]))
            peak = float(held.max())
            if peak <= limit:
                return found
            if model.is_of_peak and peak < lowest:
                best, lowest = found, peak
        return best


def _fullest(held: Floats) -> list[int]:
    """The moments at which most is held: peaks between moments with less."""
    rises = held >= np.append(-np.inf, held[:-1])
    falls = held > np.append(held[1:], -np.inf)
    peaks = np.flatnonzero(rises & falls)
    found: list[int] = peaks[np.argsort(-held[peaks], kind="stable")][:MOMENTS_AT_ONCE].tolist()
    return found


class _Use(Struct, eq=False):
    """What is held from one moment until before another one, by variable. [units]"""

    first: int
    last: int
    sizes: list[tuple[IntVar, int]]


class _Model:
    """The choice among the candidates of a pool as a model of CP-SAT.

    Parameters
    ----------
    pool
        The pool.
    limit
        What may be held at any moment, None where the peak is to be least. [B]
    """

    def __init__(self, pool: Mixtures, limit: float | None) -> None:
        from ortools.sat.python import cp_model

        self.model: CpModel = cp_model.CpModel()
        self.rows = pool.rows
        self.unit = UNIT * float(pool.rows.held(pool.assignments).max(axis=1).min())
        self.kept = [sorted(set(column.tolist())) for column in pool.assignments.T]
        self.chosen = [{c: self.model.new_bool_var("") for c in kept} for kept in self.kept]
        for literals in self.chosen:
            self.model.add_exactly_one(literals.values())
        self.both: dict[tuple[int, int], dict[tuple[int, int], IntVar]] = {}
        self.uses = [self._of_layer(u.layer, u.sizes, u.first, u.last) for u in self.rows.layers]
        self.uses += [
            _Use(u.first, u.last, self._of_pair(u.source, u.target, u.sizes, self.unit))
            for u in self.rows.pairs
        ]
        most = round(1.0 / UNIT) * 4
        self.beyond = self.model.new_int_var(0, most, "")
        self._bound_beyond()
        self.most: LinearExprT
        self.is_of_peak = limit is None
        if limit is None:
            self.most = self.model.new_int_var(0, most, "")
            self.model.minimize(self.most)
        else:
            self.most = int(limit / self.unit)
            self._minimise_cost(pool)

    def _of_layer(self, layer: int, sizes: Floats, first: int, last: int) -> _Use:
        """What a layer holds."""
        chosen = self.chosen[layer].items()
        return _Use(first, last, [(var, round(sizes[c] / self.unit)) for c, var in chosen])

    def _of_pair(
        self, source: int, target: int, sizes: Floats, unit: float
    ) -> list[tuple[IntVar, int]]:
        """Numbers of two layers together, in units, by the variable of each pair.

        Parameters
        ----------
        source, target
            The layers.
        sizes
            The numbers, by the candidates of both.
        unit
            What they are divided by.
        """
        whole = {
            (a, b): round(float(sizes[a, b]) / unit)
            for a in self.kept[source]
            for b in self.kept[target]
        }
        if not any(whole.values()):
            return []
        pairs = self._pairs(source, target)
        return [(pairs[pair], number) for pair, number in whole.items() if number]

    def _pairs(self, source: int, target: int) -> dict[tuple[int, int], IntVar]:
        """Variables that say which candidates two layers take."""
        ends = (source, target)
        if ends not in self.both:
            one, other = (self.chosen[end] for end in ends)
            both = {(a, b): self.model.new_bool_var("") for a in one for b in other}
            for a, var in one.items():
                self.model.add(sum(both[a, b] for b in other) == var)
            for b, var in other.items():
                self.model.add(sum(both[a, b] for a in one) == var)
            self.both[ends] = both
        return self.both[ends]

    def _bound_beyond(self) -> None:
        """What is in flight, beyond what layers count of it: a bucket or all, if that is less."""
        in_flight = self.rows.in_flight
        if in_flight is None:
            return
        uses = [self._of_layer(i, sizes, 0, 1) for i, sizes in in_flight.gradients.items()]
        gradients = sum(var * size for use in uses for var, size in use.sizes)
        counted = sum(var * round(size * in_flight.part) for use in uses for var, size in use.sizes)
        is_full = self.model.new_bool_var("")
        full = round(in_flight.most / self.unit)
        self.model.add(self.beyond >= full - counted).only_enforce_if(is_full)
        self.model.add(self.beyond >= gradients - counted).only_enforce_if(is_full.Not())

    def _minimise_cost(self, pool: Mixtures) -> None:
        """Let costs be what counts."""
        least = float(costs_and_peaks(pool.problem, pool.assignments)[0].min())
        unit = UNIT * (least or 1.0)
        terms = [
            (var, round(float(costs[c]) / unit))
            for costs, chosen in zip(pool.problem.costs, self.chosen, strict=True)
            for c, var in chosen.items()
        ]
        for edge in pool.problem.edges:
            terms += self._of_pair(edge.source, edge.target, edge.matrix, unit)
        self.model.minimize(sum(var * number for var, number in terms))

    def hint(self, choices: Sequence[int]) -> None:
        """Let the search start from an assignment of the pool."""
        for chosen, choice in zip(self.chosen, choices, strict=True):
            for c, var in chosen.items():
                self.model.add_hint(var, c == choice)
        for (source, target), both in self.both.items():
            for pair, var in both.items():
                self.model.add_hint(var, pair == (choices[source], choices[target]))

    def add(self, moment: int) -> None:
        """Limit what is held at a moment."""
        sizes: dict[int, int] = defaultdict(int)
        variables: dict[int, IntVar] = {}
        for use in self.uses:
            if use.first <= moment < use.last:
                for var, size in use.sizes:
                    sizes[var.index] += size
                    variables[var.index] = var
        held = sum(variables[index] * size for index, size in sizes.items())
        self.model.add(held + self.beyond <= self.most)

    def solve(self, deadline: Deadline) -> Choices | None:
        """The best answer found, None without one."""
        with listening():
            outcome = run_model(self.model, deadline=deadline, seed=0, work=WORK)
        if outcome.stopped_by == "interrupt":
            raise KeyboardInterrupt  # CP-SAT held it back
        if not outcome.feasible:
            return None
        is_true = outcome.solver.boolean_value
        return tuple(next(c for c, var in chosen.items() if is_true(var)) for chosen in self.chosen)
