"""Find the fastest plan that fits: form the problem, bound it, search it, cost what was found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.costing import Costed, cost
from planner.formulate import Formulation
from search import SOLVERS, Assignment, Status
from search.k_best import k_best

# How many times the weight of gradient all-reduces is refined; each adds a line to a concave
# function of one variable, whose maximum is then known nearly always after three.
MAX_WEIGHTS = 8
# Rounds in which the memory limit of the additive model is corrected by the true peak.
MAX_MEMORY_ROUNDS = 6
_EXACT = 1e-9


@dataclass(slots=True, kw_only=True)
class Found:
    """What a search found.

    Parameters
    ----------
    best
        The fastest assignment that fits, or None.
    lower_bound
        No assignment has a faster step. [s]
    solver
        The path taken.
    num_costed
        Assignments costed on the timeline. [items]
    stopped_by
        "time limit" or "interrupt" where it was cut short.
    notes
        Sentences about approximations.
    tightest
        The assignment of least peak memory that was seen.
    """

    best: Costed | None = None
    lower_bound: float = 0.0
    solver: str = ""
    num_costed: int = 0
    stopped_by: str = ""
    notes: list[str] = field(default_factory=list)
    tightest: Costed | None = None


class _Search:
    """State of one search: every assignment met so far is costed once."""

    def __init__(
        self, formulation: Formulation, method: str, seed: int, deadline: float | None
    ) -> None:
        self.formulation = formulation
        self.method = method
        self.seed = seed
        self.deadline = deadline
        self.seen: dict[tuple[int, ...], Costed] = {}
        self.found = Found()
        self.capacity = formulation.cluster.device.memory

    def look(self, choices: Sequence[int]) -> Costed:
        key = tuple(int(c) for c in choices)
        if key not in self.seen:
            costed = cost(self.formulation, key)
            self.seen[key] = costed
            best, tightest = self.found.best, self.found.tightest
            if tightest is None or costed.memory.total < tightest.memory.total:
                self.found.tightest = costed
            if costed.memory.total <= self.capacity and (
                best is None or costed.step.total < best.step.total
            ):
                self.found.best = costed
        return self.seen[key]

    def left(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.01)

    def solve(self, weight: float, limit: float | None) -> Assignment:
        problem = self.formulation.problem(weight, limit)
        answer: Assignment = SOLVERS[self.method](problem, time_limit=self.left(), seed=self.seed)
        self.found.solver = answer.solver
        if answer.stopped_by:
            self.found.stopped_by = answer.stopped_by
        for note in answer.notes:
            if note not in self.found.notes:
                self.found.notes.append(note)
        if answer.choices:
            self.look(answer.choices)
        return answer

    def maximise_bound(self, limit: float | None) -> float:
        """The best weight of the all-reduces: the maximum of a concave function of one variable.

        Every answer is a line (its cost as a function of the weight) above which the function
        cannot lie; the next weight is where the lines of both sides meet.
        """

        def line(answer: Assignment) -> tuple[float, float]:
            """Cost at weight 0 and at weight 1."""
            return tuple(  # type: ignore[return-value]
                _additive(self.formulation, answer.choices, w) for w in (0.0, 1.0)
            )

        left = self.solve(0.0, limit)
        self.found.lower_bound = max(self.found.lower_bound, left.lower_bound)
        if not left.choices or self.found.stopped_by:
            return 0.0
        a = line(left)
        if a[1] <= a[0]:
            return 0.0
        right = self.solve(1.0, limit)
        self.found.lower_bound = max(self.found.lower_bound, right.lower_bound)
        if not right.choices:
            return 0.0
        b = line(right)
        if b[1] >= b[0]:
            return 1.0
        weight = 0.0
        for _ in range(MAX_WEIGHTS):
            weight = (a[0] - b[0]) / ((a[0] - b[0]) - (a[1] - b[1]))
            answer = self.solve(weight, limit)
            self.found.lower_bound = max(self.found.lower_bound, answer.lower_bound)
            if not answer.choices or self.found.stopped_by:
                break
            c = line(answer)
            met = a[0] + weight * (a[1] - a[0])
            if answer.cost >= met - _EXACT * abs(met):
                break
            if c[1] > c[0]:
                a = c
            else:
                b = c
        return weight


def _additive(formulation: Formulation, choices: Sequence[int], weight: float) -> float:
    """Cost of an assignment in the additive problem of a weight, without building it. [s]"""
    chosen = dict(zip((layer.name for layer in formulation.layers), choices, strict=True))
    total = 0.0
    for layer in formulation.layers:
        costs, c = formulation.spaces[layer.name].costs, chosen[layer.name]
        total += float(
            costs.forward_pass[c]
            + costs.update[c]
            + (1.0 - weight) * costs.backward_pass[c]
            + weight * costs.gradient_time[c]
        )
    for edge in formulation.edges:
        times = formulation.edge_times[edge]
        pair = (chosen[edge.source], chosen[edge.target])
        total += float(times.forward[pair] + (1.0 - weight) * times.backward[pair])
    return total


def find(
    formulation: Formulation,
    *,
    starts: Sequence[Sequence[int]] = (),
    method: str = "auto",
    num_best: int = 4,
    seed: int = 0,
    time_limit: float | None = None,
) -> Found:
    """Search a formulation.

    Parameters
    ----------
    formulation
        The network on the machine.
    starts
        Assignments to cost in any case, such as the usual strategies.
    method
        Name of a solver in `search.SOLVERS`.
    num_best
        How many best distinct assignments to cost on the timeline. [items]
    seed
        Seed of solvers that need one.
    time_limit
        When to stop with the best so far. [s]
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    search = _Search(formulation, method, seed, deadline)
    for start in starts:
        search.look(start)
    try:
        _run(search, num_best)
    except KeyboardInterrupt:
        search.found.stopped_by = "interrupt"
    search.found.num_costed = len(search.seen)
    return search.found


def _run(search: _Search, num_best: int) -> None:
    found, formulation = search.found, search.formulation
    weight = search.maximise_bound(None)
    unconstrained = min(search.seen.values(), key=lambda c: c.step.total)
    if unconstrained.memory.total <= search.capacity:
        _more(search, weight, None, num_best)
        return
    # memory binds: bound with all of it, then tighten by what the additive model leaves out
    usable = float(formulation.cluster.device.usable_memory)
    found.lower_bound = 0.0
    weight = search.maximise_bound(usable)
    limit = usable
    for _ in range(MAX_MEMORY_ROUNDS):
        if found.stopped_by:
            return
        last = search.solve(weight, limit)
        if last.status is Status.INFEASIBLE or not last.choices:
            break
        costed = search.look(last.choices)
        excess = costed.memory.total - search.capacity
        if excess <= 0.0:
            break
        limit = min(limit, last.peak_usage) - excess
    if found.best is not None and not found.stopped_by:
        _more(search, weight, limit, num_best)


def _more(search: _Search, weight: float, limit: float | None, num_best: int) -> None:
    """Cost the K best distinct assignments: the additive order need not be that of the steps."""
    best, found = search.found.best, search.found
    if (
        best is None
        or found.stopped_by
        or num_best < 2
        or search.method not in ("auto", "elimination")
    ):
        return
    if best.step.total - found.lower_bound <= _EXACT * best.step.total or limit is not None:
        return
    for answer in k_best(search.formulation.problem(weight), num_best):
        search.look(answer.choices)
