"""The K best distinct assignments, in increasing order of cost; exact.

Models: without a usage limit that binds, one elimination and Lawler's partition on its buckets (see
`search.elimination.ranking`): every further assignment costs one pass backwards over the nodes it
changes. Under a limit the same enumeration runs at the best prices on usage (see
`search.elimination.dual`). Costs at these prices, less what the limit is worth, never exceed the
true costs of assignments that fit; so once they reach the K-th best true cost seen, nothing better
can follow (Handler and Zang 1980). Assumes: elimination accepts the graph and takes seconds; else
the problem is refused.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator
from itertools import islice

from search.elimination.buckets import MOST_WORK, Eliminated, eliminate, plan
from search.elimination.dual import Dual, tighten
from search.elimination.ranking import increasing_assignments
from search.problem import Assignment, Problem, ProblemError
from search.problem.answers import make_assignment
from search.problem.cut_short import stopped_answer
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import tolerated
from search.problem.notes import Note

NAME = "k-best"
# Under a limit, assignments over it turn up too; this many are looked at before giving up.
MAX_LOOKED_AT = 20_000


def k_best(
    problem: Problem,
    k: int,
    *,
    time_limit: float | None = None,
    seed: int = 0,
) -> list[Assignment]:
    """Find the K best assignments.

    Each carries the optimum as its lower bound, so that its gap says how far it is from the best.
    The list is shorter than K where fewer assignments fit; it is empty where none does. Where the
    search was cut short, every entry says so in `stopped_by` or in its notes.

    Parameters
    ----------
    problem
        The problem.
    k
        How many.
    time_limit
        Time after which the best assignments so far are returned. [s]
    seed
        Not used: nothing is random here.

    Raises
    ------
    ProblemError
        When fewer than one is asked for, or where elimination refuses the graph.
    """
    if k < 1:
        raise ProblemError.rule(
            "the number of best assignments", "be at least 1", k, "ask for more"
        )
    deadline = Deadline(time_limit)
    order = plan(problem, max_work=MOST_WORK)
    if problem.limit_is_slack:
        try:
            eliminated = eliminate(problem, order, deadline=deadline)
        except (OutOfTime, KeyboardInterrupt) as stop:
            best = stopped_answer(problem, solver=NAME, stop=stop)
            if not best.choices and isinstance(stop, KeyboardInterrupt):
                raise
            return [best] if best.choices else []
        found, stopped_by = _cheapest(eliminated, k, deadline)
        # What came out before a stop is exact; only what would have followed is missing.
        return _wrapped(problem, found, eliminated.minimum, stopped_by, ())
    dual = Dual(problem=problem, order=order)
    tighten(dual, deadline=deadline)
    return _within_limit(problem, dual, k, deadline)


def _cheapest(
    eliminated: Eliminated, k: int, deadline: Deadline
) -> tuple[list[tuple[float, list[int]]], str]:
    """The first assignments with their costs, and what cut them short, if anything."""
    found: list[tuple[float, list[int]]] = []
    try:
        for pair in islice(increasing_assignments(eliminated), k):
            found.append(pair)
            if deadline.passed and len(found) < k:
                return found, "time limit"
    except KeyboardInterrupt:
        if not found:
            raise  # no answer could tell of it
        return found, "interrupt"
    return found, ""


def _within_limit(problem: Problem, dual: Dual, k: int, deadline: Deadline) -> list[Assignment]:
    """Enumerate at the best prices until the K-th best true cost is reached."""
    kept: list[tuple[float, list[int]]] = []
    known = dual.known
    stopped_by = known.stopped_by
    notes: tuple[Note, ...] = ()
    floor = known.bound
    if dual.shortage is None and dual.eliminated is not None and not stopped_by:
        try:
            for looked_at, (floor, choices) in enumerate(_priced(dual)):
                worst = kept[k - 1][0] if len(kept) >= k else math.inf
                if floor >= tolerated(worst):
                    floor = math.inf
                    break
                if looked_at >= MAX_LOOKED_AT:
                    notes = (Note.of("ranking-cut-short", assignments=looked_at),)
                    break
                if deadline.passed:
                    stopped_by = "time limit"
                    break
                if not problem.flat.is_over(choices):
                    insort(kept, (problem.flat.cost(choices), choices))
            else:
                floor = math.inf
        except KeyboardInterrupt:
            stopped_by = "interrupt"
    if known.choices is not None and all(known.choices != choices for _, choices in kept):
        insort(kept, (known.cost, known.choices))
    least = kept[0][0] if kept else math.inf
    return _wrapped(problem, kept[:k], min(max(floor, known.bound), least), stopped_by, notes)


def _priced(dual: Dual) -> Iterator[tuple[float, list[int]]]:
    """Assignments with what they cost at least if they fit, cheapest first."""
    assert dual.eliminated is not None
    worth = dual.worth(dual.prices).offset
    for cost, choices in increasing_assignments(dual.eliminated):
        yield cost - worth, choices


def _wrapped(
    problem: Problem,
    found: list[tuple[float, list[int]]],
    bound: float,
    stopped_by: str,
    notes: tuple[Note, ...],
) -> list[Assignment]:
    return [
        make_assignment(
            problem, choices, lower_bound=bound, solver=NAME, stopped_by=stopped_by, notes=notes
        )
        for _, choices in found
    ]
