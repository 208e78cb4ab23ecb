"""A core as a CP-SAT model, with some of its rows or none.

Models: one Boolean per candidate, exactly one true per node. What an edge costs is split into a sum
of one term per candidate, which joins the node's costs, and the rest; rows of the rest that are
equal form one class, and so do columns. One Boolean per pair of classes that is left, tied to the
candidates by sums (the local polytope of the pairwise problem); where the rest only forbids,
cliques say so if that takes fewer literals. A row of usage is a linear inequality.
Assumes: usages are whole numbers; costs become so in `search.cpsat.integers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from search.core.core import Core
from search.core.fixing import Alive, edges_of
from search.cpsat.integers import GONE, Scale, classes_of, scale_of, split_sums, whole_units
from search.problem import ProblemError
from search.problem.deadline import Deadline

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

# The most pairs of classes that a model may have.
MAX_PAIRS = 1_000_000
# Variables with what each is multiplied by.
Terms = list[tuple["IntVar", int]]


class Built(Struct, frozen=True, kw_only=True):
    """A model with the variables that say which candidate each node takes.

    Parameters
    ----------
    model
        The model.
    kept
        Per node the candidates that have a variable.
    chosen
        Their variables.
    scale
        How the objective relates to costs.
    """

    model: CpModel
    kept: list[np.ndarray]
    chosen: list[list[IntVar]]
    scale: Scale

    def choices(self, is_true: Callable[[IntVar], bool]) -> np.ndarray:
        """The assignment of a solution, which says of a variable whether it is true."""
        picked = [
            kept[next(i for i, literal in enumerate(literals) if is_true(literal))]
            for kept, literals in zip(self.kept, self.chosen, strict=True)
        ]
        return np.array(picked, dtype=np.int64)

    def hint(self, choices: np.ndarray) -> None:
        """Let the search start near an assignment."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for kept, literals, choice in zip(self.kept, self.chosen, choices.tolist(), strict=True):
            for candidate, literal in zip(kept.tolist(), literals, strict=True):
                self.model.add_hint(literal, candidate == choice)


def build_model(
    core: Core,
    alive: Alive,
    rows: Iterable[int],
    *,
    known_cost: float,
    cutoff: float,
    deadline: Deadline,
) -> Built:
    """Model the cost as the objective, and some rows.

    Parameters
    ----------
    core
        The core; at least one node.
    alive
        The candidates and pairs to choose from.
    rows
        The rows that must stay within the limit.
    known_cost
        Cost of an assignment known to fit, by which the rounding is chosen.
    cutoff
        What costs more need not be found.
    deadline
        `OutOfTime` is raised once it has passed.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    kept = [np.flatnonzero(m) for m in np.split(alive.candidates, core.graph.offsets[1:-1])]
    chosen = [[model.new_bool_var("") for _ in range(k.size)] for k in kept]
    for literals in chosen:
        model.add_exactly_one(literals)
    scale = scale_of(core, known_cost)
    costs = np.split(core.costs, core.graph.offsets[1:-1])
    weights = [whole_units(c, scale.unit)[k] for c, k in zip(costs, kept, strict=True)]
    terms: Terms = []
    _add_edges(core, model, alive, _Parts(kept, chosen, weights), scale.unit, terms, deadline)
    shift = _add_nodes(chosen, weights, terms)
    scale = replace(scale, offset=scale.offset + scale.unit * shift)
    objective = cp_model.LinearExpr.weighted_sum(*_columns(terms))
    model.minimize(objective)
    if cutoff < math.inf:
        # As a constraint it would be a dense row of the linear relaxation, and slow that down.
        model.proto.objective.domain.extend([0, max(0, scale.most(cutoff))])
    built = Built(model=model, kept=kept, chosen=chosen, scale=scale)
    for row in rows:
        add_row(built, core, row)
    return built


class _Parts(NamedTuple):
    """The nodes of a model while it is made: the candidates kept, their variables, and what each
    costs in whole units."""

    kept: list[np.ndarray]
    chosen: list[list[IntVar]]
    weights: list[np.ndarray]


def _add_edges(
    core: Core,
    model: CpModel,
    alive: Alive,
    parts: _Parts,
    unit: float,
    terms: Terms,
    deadline: Deadline,
) -> None:
    """Model what all edges cost; a part of it joins the weights of the nodes."""
    kept, chosen, weights = parts
    num_pairs = 0
    for edge, pairs in zip(edges_of(core), alive.pairs, strict=True):
        deadline.check()
        source, target = edge.source, edge.target
        matrix = np.where(edge.matrix < core.penalty, edge.matrix, np.inf)
        part = np.where(pairs, whole_units(matrix, unit), GONE)[np.ix_(kept[source], kept[target])]
        part, ahead, back = split_sums(part)
        weights[source] = weights[source] + ahead
        weights[target] = weights[target] + back
        classes = classes_of(part)
        heads = _by_class(chosen[source], classes.rows)
        tails = _by_class(chosen[target], classes.columns)
        num_pairs += _add_edge(model, classes.matrix, heads, tails, terms)
        if num_pairs > MAX_PAIRS:
            raise ProblemError(
                f"the solver cp-sat takes edges with at most {MAX_PAIRS} pairs of different rows"
                " and columns in all, but there are more; give fewer candidates or use the solver"
                " auto"
            )


def add_row(built: Built, core: Core, row: int) -> None:
    """Keep the usage in one row within the limit.

    Parameters
    ----------
    built
        The model to add to.
    core
        The core that it was built from.
    row
        The row.
    """
    from ortools.sat.python import cp_model

    held, offsets = core.holdings, core.graph.offsets
    used: dict[int, np.ndarray] = {}
    here = np.flatnonzero((held.first <= row) & (row < held.last))
    owners = np.searchsorted(held.starts, here, side="right") - 1
    for place, node in zip(held.places[here].tolist(), owners.tolist(), strict=True):
        usage = held.usages[place : place + offsets[node + 1] - offsets[node]]
        used[node] = used[node] + usage if node in used else usage
    room = math.floor(core.limit - core.base[row])
    terms: Terms = []
    for node, usage in used.items():
        if built.chosen[node]:
            whole = usage[built.kept[node]].astype(np.int64)
            least = int(whole.min())
            room -= least
            above = zip(built.chosen[node], (whole - least).tolist(), strict=True)
            terms += [(literal, more) for literal, more in above if more]
    step = max(1, math.gcd(*(more for _, more in terms)))
    total = cp_model.LinearExpr.weighted_sum(*_columns([(x, more // step) for x, more in terms]))
    built.model.add_linear_constraint(total, min(0, room // step), room // step)


def _by_class(literals: list[IntVar], labels: np.ndarray) -> list[list[IntVar]]:
    """The literals of every class."""
    members: list[list[IntVar]] = [[] for _ in range(int(labels.max(initial=-1)) + 1)]
    for literal, label in zip(literals, labels.tolist(), strict=True):
        members[label].append(literal)
    return members


def _add_edge(
    model: CpModel,
    matrix: np.ndarray,
    heads: list[list[IntVar]],
    tails: list[list[IntVar]],
    terms: Terms,
) -> int:
    """Model the rest of what an edge costs; returns how many pairs that took."""
    from ortools.sat.python import cp_model

    allowed = matrix < GONE
    if allowed.all() and not matrix.any():
        return 0
    if not matrix[allowed].any() and allowed.sum() > sum(matrix.shape):
        for head, mask in zip(heads, allowed, strict=True):
            model.add_at_most_one([*head, *_marked_literals(tails, ~mask)])
        for tail, mask in zip(tails, allowed.T, strict=True):
            model.add_at_most_one([*tail, *_marked_literals(heads, ~mask)])
        return sum(matrix.shape)
    by_end: list[list[IntVar]] = [[] for _ in (*heads, *tails)]
    for i, j in np.argwhere(allowed).tolist():
        pair = model.new_bool_var("")
        by_end[i].append(pair)
        by_end[len(heads) + j].append(pair)
        if matrix[i, j]:
            terms.append((pair, int(matrix[i, j])))
    for pairs, end in zip(by_end, [*heads, *tails], strict=True):
        signs = [1] * len(pairs) + [-1] * len(end)
        model.add_linear_constraint(cp_model.LinearExpr.weighted_sum(pairs + end, signs), 0, 0)
    return int(allowed.sum())


def _marked_literals(members: list[list[IntVar]], mask: np.ndarray) -> list[IntVar]:
    return [x for some, marked in zip(members, mask.tolist(), strict=True) if marked for x in some]


def _add_nodes(chosen: list[list[IntVar]], weights: list[np.ndarray], terms: Terms) -> int:
    """Add what candidates cost above the least of their node; returns the sum of the least."""
    shift = 0
    for literals, weight in zip(chosen, weights, strict=True):
        if literals:
            low = int(weight.min())
            shift += low
            costs = zip(literals, (weight - low).tolist(), strict=True)
            terms += [(literal, cost) for literal, cost in costs if cost]
    return shift


def _columns(terms: Terms) -> tuple[list[IntVar], list[int]]:
    return [x for x, _ in terms], [factor for _, factor in terms]
