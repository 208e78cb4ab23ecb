"""The problem and its answer.

Models: nodes that each take one of several candidates, a cost per candidate, a cost per pair of
candidates along every edge, and something used over time (bytes, say) under a limit. The cost of
an assignment is the sum of its node and edge costs; its peak usage is the largest sum, over time
steps, of the usages of the nodes whose interval holds that step.
Assumes: costs are finite or +inf (forbidden). Arrays are taken over, not copied, and made
read-only; edges may share one matrix object, and solvers reuse work for arrays that are shared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from msgspec import Struct, structs

from search.errors import ProblemError
from search.problem.checks import (
    check_edges,
    check_lengths,
    check_limit,
    cost_array,
    interval_pair,
    node_costs,
    usage_arrays,
)
from search.problem.flat import Flat, flatten
from search.problem.notes import Note
from search.problem.timeline import UsageTimeline, make_timeline

__all__ = [
    "Assignment",
    "CostEdge",
    "Problem",
    "ProblemError",
    "Shortage",
    "Status",
    "cost_and_peak",
    "costs_and_peaks",
]


class CostEdge(Struct, frozen=True, kw_only=True, eq=False):
    """A cost for every pair of candidates of two nodes.

    Parameters
    ----------
    source
        Node whose candidates index the rows.
    target
        Node whose candidates index the columns.
    matrix
        Cost per pair, candidates of the source x candidates of the target; +inf forbids the pair.
    """

    source: int
    target: int
    matrix: np.ndarray

    def __post_init__(self) -> None:
        label = f"edge {self.source}->{self.target}"
        structs.force_setattr(self, "matrix", cost_array(self.matrix, label, 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Choose one candidate per node at the least cost, within the usage limit.

    Raises a `ProblemError` where these do not fit together.

    Parameters
    ----------
    costs
        Cost per candidate, one array per node; +inf forbids the candidate.
    edges
        Pair costs; several edges between two nodes add up.
    usages
        Usage per candidate, one array per node, or none at all; a fraction of a byte counts as a
        whole one. [B]
    intervals
        Half-open time interval per node during which its usage counts, None for never; left
        empty, every node counts all the time.
    usage_limit
        The most that may be used at any time step, or None for no limit. [B]
    names
        What to call each node in messages; left empty, its number.
    """

    costs: tuple[np.ndarray, ...]
    edges: tuple[CostEdge, ...] = ()
    usages: tuple[np.ndarray, ...] = ()
    intervals: tuple[tuple[int, int] | None, ...] = ()
    usage_limit: float | None = None
    names: tuple[str, ...] = ()
    _timeline: UsageTimeline | None = field(init=False, default=None, repr=False)
    _flat: Flat | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "names", tuple(self.names))
        put(self, "costs", node_costs(self.costs))
        put(self, "edges", tuple(self.edges))
        put(self, "intervals", tuple(interval_pair(i, v) for v, i in enumerate(self.intervals)))
        put(self, "usages", usage_arrays(self.usages))
        sizes = self.sizes
        check_lengths(sizes, self.usages, len(self.intervals), len(self.names))
        check_edges(sizes, [(e.source, e.target, e.matrix.shape) for e in self.edges])
        put(self, "usage_limit", check_limit(self.usage_limit, bool(self.usages)))

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.costs)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many candidates each node has."""
        return tuple(c.size for c in self.costs)

    @property
    def timeline(self) -> UsageTimeline:
        """The time steps at which usage can peak."""
        if self._timeline is None:
            # A property of a frozen value, computed once when first asked for.
            intervals = self.intervals or ((0, 1),) * self.num_nodes
            object.__setattr__(self, "_timeline", make_timeline(intervals))
        assert self._timeline is not None
        return self._timeline

    @property
    def limit_is_slack(self) -> bool:
        """Whether no assignment at all can exceed the usage limit."""
        if self.usage_limit is None or not self.usages:
            return True
        worst = self.timeline.profile(np.array([u.max() for u in self.usages]))
        return bool(worst.max(initial=0.0) <= self.usage_limit)

    @property
    def flat(self) -> Flat:
        """The problem's numbers end to end."""
        if self._flat is None:
            triples = [(e.source, e.target, e.matrix) for e in self.edges]
            flat = flatten(
                self.costs,
                triples,
                self.usages,
                owners=np.arange(len(self.usages)),
                timeline=self.timeline if self.usages else make_timeline(()),
                limit=math.inf if self.usage_limit is None else self.usage_limit,
            )
            object.__setattr__(self, "_flat", flat)
        assert self._flat is not None
        return self._flat

    def name_of(self, node: int) -> str:
        """What to call a node in a message."""
        return self.names[node] if self.names else f"node {node}"


class Status(StrEnum):
    """What is known about an answer."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Shortage(Struct, frozen=True, kw_only=True):
    """Why nothing fits: one time step, and a proof of what is used there at the least.

    Parameters
    ----------
    time_step
        The time step that is short.
    usage_limit
        What may be used. [B]
    peak_bound
        No assignment has a lower peak than this. [B]
    holders
        The nodes that hold most at that step at the least, largest first, with what they hold. [B]
    """

    time_step: int
    usage_limit: float
    peak_bound: float
    holders: tuple[tuple[str, float], ...]

    @property
    def missing(self) -> float:
        """How much is missing at the least. [B]"""
        return self.peak_bound - self.usage_limit


class Assignment(Struct, frozen=True, kw_only=True):
    """An answer: one candidate per node, and how good it is.

    Parameters
    ----------
    choices
        The candidate of each node; empty where no assignment was found.
    cost
        What `cost_and_peak` says of the choices; +inf where there are none.
    lower_bound
        No assignment costs less.
    status
        Proven optimal, feasible, proven infeasible, or unknown (nothing found, nothing proven).
    peak_usage
        The most used at any time step. [B]
    solver
        The path taken, such as "presolve > elimination".
    notes
        What is worth knowing of the answer.
    shortage
        Where and by how much the usage limit is missed, where that is why nothing fits.
    stopped_by
        "time limit", "work limit" or "interrupt" where the search was cut short, else empty.
    """

    choices: tuple[int, ...]
    cost: float
    lower_bound: float
    status: Status
    peak_usage: float
    solver: str
    notes: tuple[Note, ...] = ()
    shortage: Shortage | None = None
    stopped_by: str = ""

    @property
    def gap(self) -> float:
        """How far the cost may lie above the optimum, as a fraction of the cost."""
        if not self.choices and math.isinf(self.cost):
            return math.inf
        if self.cost <= self.lower_bound:
            return 0.0
        return (self.cost - self.lower_bound) / abs(self.cost) if self.cost else math.inf


def cost_and_peak(problem: Problem, choices: Sequence[int]) -> tuple[float, float]:
    """Cost and peak usage [B] of one assignment; the cost is +inf where it is forbidden.

    Parameters
    ----------
    problem
        The problem.
    choices
        The candidate of each node.

    Raises
    ------
    ProblemError
        When there is not one choice per node, or a choice that does not exist.
    """
    costs, peaks = costs_and_peaks(problem, np.array(choices, dtype=np.int64).reshape(1, -1))
    return float(costs[0]), float(peaks[0])


def costs_and_peaks(problem: Problem, choices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Costs and peak usages [B] of many assignments at once; +inf is the cost of a forbidden one.

    Parameters
    ----------
    problem
        The problem.
    choices
        Whole numbers, assignments x nodes.

    Raises
    ------
    ProblemError
        When there is not one choice per node, or a choice that does not exist.
    """
    if choices.ndim != 2 or choices.shape[1] != problem.num_nodes:
        raise ProblemError(
            f"an assignment needs one choice per node, that is {problem.num_nodes},"
            f" but has {choices.shape[-1]}; give one per node"
        )
    sizes = np.array(problem.sizes, dtype=np.int64)
    if ((choices < 0) | (choices >= sizes)).any():
        node = int(np.argmax(((choices < 0) | (choices >= sizes)).any(axis=0)))
        raise ProblemError(
            f"a choice for {problem.name_of(node)} must lie between 0 and {sizes[node] - 1},"
            f" but one is {choices[:, node].tolist()}; choose one of its candidates"
        )
    flat = problem.flat
    costs = flat.costs_of(choices)
    if not flat.timeline.steps.size:
        return costs, np.zeros(len(choices))
    used = flat.used(choices)
    if len(choices) == 1:
        return costs, flat.timeline.profile(used[0]).max(keepdims=True)
    return costs, flat.timeline.profiles(used).max(axis=1)
