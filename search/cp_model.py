"""A problem as a CP-SAT model.

Models: one Boolean per candidate, exactly one true per node. Equal rows of an edge matrix form one
class, and so do equal columns; one Boolean per allowed pair of classes, tied to the candidates by
sums (the local polytope of the pairwise problem). One linear row per time step, less those that
another row implies.
Assumes: CP-SAT wants integers. Every array of costs is lowered by its least entry, divided by a
power of two (which is exact) and rounded down, so the integer optimum bounds the true one from
below as it stands; the two differ by at most one unit per array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from search.problem import Problem, ProblemError

# Integer objectives stay below this, so that they survive a detour over float64.
MAX_OBJECTIVE = 2.0**52
MAX_PAIRS = 1_000_000
# All roundings together should not matter at the precision to which answers are called optimal.
TARGET_ROUNDING = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How float costs became integers.

    Parameters
    ----------
    unit
        What one integer step is worth.
    offset
        What was taken off before.
    noise
        The most by which lowering and summing floats may itself have rounded.
    """

    unit: float
    offset: float
    noise: float

    def bound(self, objective: float) -> float:
        """A lower bound on true costs from a lower bound on the integer objective."""
        return self.offset + self.unit * objective - self.noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model with the variables that say which candidate each node takes."""

    model: Any
    chosen: list[list[Any]]
    scale: Scale


def build_model(problem: Problem, *, known_cost: float = math.inf) -> Built:
    """Model the cost as the objective and the usage limit as rows.

    Parameters
    ----------
    problem
        A problem of which no node is forbidden altogether.
    known_cost
        Cost of an assignment known to fit, by which the rounding is chosen.
    """
    from ortools.sat.python import cp_model

    num_pairs = _count_pairs(problem)
    scale = _scale_of(problem, known_cost)
    model = cp_model.CpModel()
    chosen = _choices(model, problem)
    weights = [_integers(c, scale.unit) for c in problem.costs]
    terms: list[Any] = []
    factors: list[int] = []
    for edge in problem.edges:
        rows, columns, matrix = num_pairs[id(edge.matrix)]
        costs = _integers(matrix, scale.unit)
        if matrix.shape[0] == 1 and np.isfinite(matrix).all():
            weights[edge.target] = weights[edge.target] + costs[0][columns]
        elif matrix.shape[1] == 1 and np.isfinite(matrix).all():
            weights[edge.source] = weights[edge.source] + costs[:, 0][rows]
        else:
            heads = _class_sums(chosen[edge.source], rows, matrix.shape[0])
            tails = _class_sums(chosen[edge.target], columns, matrix.shape[1])
            _add_pairs(model, heads, tails, matrix, costs, terms, factors)
    for literals, weight, cost in zip(chosen, weights, problem.costs, strict=True):
        for literal, w, c in zip(literals, weight.tolist(), cost.tolist(), strict=True):
            if c == math.inf:
                model.add(literal == 0)
            elif w:
                terms.append(literal)
                factors.append(w)
    model.minimize(cp_model.LinearExpr.weighted_sum(terms, factors))
    for base, nodes in usage_rows(problem):
        literals, sizes = _usage_terms(problem, chosen, nodes)
        assert problem.usage_limit is not None
        room = int(problem.usage_limit - base)
        model.add(cp_model.LinearExpr.weighted_sum(literals, sizes) <= room)
    return Built(model=model, chosen=chosen, scale=scale)


def build_peak_model(problem: Problem) -> Built:
    """Model the peak usage as the objective; costs only say what is forbidden."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = _choices(model, problem)
    for literals, cost in zip(chosen, problem.costs, strict=True):
        for literal, c in zip(literals, cost.tolist(), strict=True):
            if c == math.inf:
                model.add(literal == 0)
    for edge in problem.edges:
        for i, j in np.argwhere(np.isinf(edge.matrix)).tolist():
            model.add_bool_or([~chosen[edge.source][i], ~chosen[edge.target][j]])
    most = int(problem.timeline.profile(np.array([u.max() for u in problem.usages])).max())
    peak = model.new_int_var(0, most, "peak")
    for base, nodes in usage_rows(problem):
        literals, sizes = _usage_terms(problem, chosen, nodes)
        model.add(cp_model.LinearExpr.weighted_sum(literals, sizes) + int(base) <= peak)
    model.minimize(peak)
    return Built(model=model, chosen=chosen, scale=Scale(unit=1.0, offset=0.0, noise=0.0))


def usage_rows(problem: Problem) -> list[tuple[float, np.ndarray]]:
    """Per time step that matters, what is used there at least, and the nodes that may use more.

    Nodes whose usage is the same for all candidates only add to the base; a step is left out
    where a neighbouring one has the same variable nodes, or more, and no smaller a base.
    """
    if problem.usage_limit is None or not problem.timeline.steps.size:
        return []
    timeline = problem.timeline
    least = np.array([u.min() for u in problem.usages])
    most = np.array([u.max() for u in problem.usages])
    base, worst = timeline.profile(least), timeline.profile(most)
    variable = np.flatnonzero(most > least)
    first, last = timeline.first[variable], timeline.last[variable]
    kept: list[int] = []
    for step in np.flatnonzero(worst > problem.usage_limit).tolist():
        implied = False
        while kept and not implied:
            before = kept[-1]
            leaves = bool(((first <= before) & (before < last) & (last <= step)).any())
            enters = bool(((before < first) & (first <= step) & (step < last)).any())
            if not leaves and base[before] <= base[step]:
                kept.pop()
            elif not enters and base[step] <= base[before]:
                implied = True
            else:
                break
        if not implied:
            kept.append(step)
    return [(float(base[s]), variable[(first <= s) & (s < last)]) for s in kept]


def _choices(model: Any, problem: Problem) -> list[list[Any]]:
    chosen = [
        [model.new_bool_var(f"{v}:{i}") for i in range(size)]
        for v, size in enumerate(problem.sizes)
    ]
    for literals in chosen:
        model.add_exactly_one(literals)
    return chosen


Classes = tuple[np.ndarray, np.ndarray, np.ndarray]


def _count_pairs(problem: Problem) -> dict[int, Classes]:
    """Per distinct matrix the class of every row and column, and the matrix of classes."""
    classes: dict[int, Classes] = {}
    total = 0
    for edge in problem.edges:
        if id(edge.matrix) not in classes:
            small, rows = np.unique(edge.matrix, axis=0, return_inverse=True)
            small, columns = np.unique(small, axis=1, return_inverse=True)
            classes[id(edge.matrix)] = (rows.ravel(), columns.ravel(), small)
        total += classes[id(edge.matrix)][2].size
    if total > MAX_PAIRS:
        raise ProblemError(
            f"The solver cp-sat takes edges with at most {MAX_PAIRS} pairs of different rows and"
            f" columns in all, but there are {total}; give fewer candidates or use the solver auto."
        )
    return classes


def _scale_of(problem: Problem, known_cost: float) -> Scale:
    arrays = [*problem.costs, *(e.matrix for e in problem.edges)]
    spans = {id(a): _lowered(a) for a in arrays}
    offset = math.fsum(spans[id(a)][0] for a in arrays)
    spread = math.fsum(spans[id(a)][1] for a in arrays)
    if all(spans[key][2] for key in spans) and spread < MAX_OBJECTIVE:
        return Scale(unit=1.0, offset=offset, noise=0.0)
    magnitude = abs(known_cost) if 0 < abs(known_cost) < math.inf else spread
    wanted = TARGET_ROUNDING * magnitude / max(1, len(arrays))
    unit = 2.0 ** math.floor(math.log2(max(wanted, spread / MAX_OBJECTIVE * 2, 1e-300)))
    assert spread / unit < 2 * MAX_OBJECTIVE, "the objective would leave the exact integers"
    sums = spread + math.fsum(abs(spans[id(a)][0]) for a in arrays)
    return Scale(unit=unit, offset=offset, noise=2.0**-50 * sums)


def _lowered(array: np.ndarray) -> tuple[float, float, bool]:
    """The least allowed entry, the spread above it, and whether all entries are whole."""
    allowed = array[np.isfinite(array)]
    if not allowed.size:
        return 0.0, 0.0, True
    return (
        float(allowed.min()),
        float(allowed.max() - allowed.min()),
        bool((allowed == np.floor(allowed)).all()),
    )


def _integers(array: np.ndarray, unit: float) -> np.ndarray:
    """Whole units above the least entry, rounded down; 0 where forbidden."""
    allowed = np.isfinite(array)
    lowered = np.where(allowed, array - _lowered(array)[0], 0.0)
    return np.floor(lowered / unit).astype(np.int64)


def _class_sums(literals: list[Any], classes: np.ndarray, count: int) -> list[Any]:
    members: list[list[Any]] = [[] for _ in range(count)]
    for literal, c in zip(literals, classes.tolist(), strict=True):
        members[c].append(literal)
    return [m[0] if len(m) == 1 else sum(m) for m in members]


def _add_pairs(
    model: Any,
    heads: list[Any],
    tails: list[Any],
    matrix: np.ndarray,
    costs: np.ndarray,
    terms: list[Any],
    factors: list[int],
) -> None:
    """One Boolean per allowed pair of classes; they sum to what the candidates say."""
    by_head: list[list[Any]] = [[] for _ in heads]
    by_tail: list[list[Any]] = [[] for _ in tails]
    for i, j in np.argwhere(np.isfinite(matrix)).tolist():
        pair = model.new_bool_var("")
        by_head[i].append(pair)
        by_tail[j].append(pair)
        if costs[i, j]:
            terms.append(pair)
            factors.append(int(costs[i, j]))
    for pairs, end in [*zip(by_head, heads, strict=True), *zip(by_tail, tails, strict=True)]:
        model.add(sum(pairs) == end)


def _usage_terms(
    problem: Problem, chosen: Sequence[list[Any]], nodes: np.ndarray
) -> tuple[list[Any], list[int]]:
    """The candidates of some nodes with what each uses above the node's least."""
    literals: list[Any] = []
    sizes: list[int] = []
    for v in nodes.tolist():
        above = problem.usages[v] - problem.usages[v].min()
        for literal, size in zip(chosen[v], above.astype(np.int64).tolist(), strict=True):
            if size:
                literals.append(literal)
                sizes.append(size)
    return literals, sizes
