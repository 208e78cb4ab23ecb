"""Assignments unlike the fastest, from which moves end elsewhere.

The additive model knows little of what runs beside each other. What is the best by it where memory
has a price, or a part of all-reduces counts, is unlike what is the fastest by it, and moves often
make something faster of that.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from planner.planning.bounds.additive_search import time_left
from planner.planning.decision.room import Room
from planner.planning.decision.simulator import Choices
from planner.planning.search_plan import PlanSearchResult
from planner.planning.space.formulate import Formulation
from search.elimination.k_best import k_best
from search.problem import Problem, ProblemError
from search.problem.deadline import Deadline

# What all that the fastest holds at its peak costs: of five small transformers these led to the
# same plans as with 0.1 and 0.4 besides (2026-11-28). [steps]
PRICES = (0.05, 0.2, 0.8)
# What counts of all-reduces, most of which run beside computation: of a ResNet-18 on 16 hosts of
# one V100 moves end in the same plan with 0.5, and elsewhere with 0, 0.75 and 1 (2026-11-28).
# [parts]
COUNTED = 0.25


def with_reductions_counted(formulation: Formulation, deadline: Deadline) -> list[Choices]:
    """The best assignment of the additive model where a part of every all-reduce counts.

    Parameters
    ----------
    formulation
        The network on the machine.
    deadline
        When the plan must be there.
    """
    plain = formulation.problem(0.0)
    spaces = (formulation.spaces[layer.name] for layer in formulation.layers)
    times = (COUNTED * space.costs.gradient_time for space in spaces)
    costs = tuple(one + more for one, more in zip(plain.costs, times, strict=True))
    return _best_of_all(dataclasses.replace(plain, costs=costs), deadline)


def lighter_than(
    base: Choices, seconds: float, result: PlanSearchResult, room: Room, deadline: Deadline
) -> list[Choices]:
    """The best assignments of the additive model where memory has a price.

    Parameters
    ----------
    base, seconds
        The fastest assignment, and its step. [s]
    result
        The search; where the limit on memory binds it has looked for such ones itself, and where
        the graph is too wide for elimination there are none.
    room
        What assignments hold.
    deadline
        When the plan must be there.
    """
    if result.problem is None or result.memory_binds:
        return []
    if sum(map(len, result.problem.costs)) < room.formulation.num_candidates:
        return []  # something faster was found among candidates that the problem lacks
    held = room.rows.profile(base)
    prices = np.zeros(len(held))
    fullest, found = int(held.argmax()), dict[Choices, None]()
    for price in PRICES:
        prices[fullest] = price * seconds / held[fullest]
        problem = room.rows.priced(result.problem, prices)
        found.update(dict.fromkeys(_best_of_all(problem, deadline)))
    return [choices for choices in found if choices != base]


def _best_of_all(problem: Problem, deadline: Deadline) -> list[Choices]:
    """The best assignment of a problem; none where its graph is too wide for elimination."""
    try:
        answers = k_best(problem, 1, time_limit=time_left(deadline))
    except ProblemError:
        return []
    return [answer.choices for answer in answers if answer.choices]
