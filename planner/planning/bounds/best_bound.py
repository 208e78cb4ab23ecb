"""The best bound that additive problems give: the maximum of a concave function of weights.

A step takes at least each of several terms (see `planner.planning.space.step_terms`). Weights that
sum to 1 turn them into one additive problem, whose optimum bounds the step; how tightly depends on
the weights. Between two choices of weights every answer gives a line above which the bound cannot
lie, so a few problems suffice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from planner.planning.bounds.additive_search import AdditiveSearch, Floats
from planner.planning.memory.prices import MemoryPrices
from planner.planning.space.profile import NUM_KINDS, SLOWED, Profile
from search import Assignment
from search.problem.incumbent import RELATIVE_TOLERANCE

# How often the bound is moved towards another term, and how many places between two are tried.
# Chosen by trial: each costs a whole solve, and bounds rise little after the first few.
MAX_ROUNDS = 4
MAX_PLACES = 4
# Bounds this close to what is possible between two terms are good enough to go on from: a tenth of
# what is printed of a gap.
CLOSE = 1e-4


class Weighted(Struct, frozen=True, kw_only=True, eq=False):
    """Weights of the terms, and the answer to the problem they make.

    Parameters
    ----------
    weights
        They sum to 1; (kinds, 1 + layers).
    answer
        What a solver found.
    """

    weights: Floats
    answer: Assignment


def maximise_bound(search: AdditiveSearch, memory: MemoryPrices | None = None) -> Weighted:
    """The weights that give the best bound found, and their answer; the search keeps the bound.

    It starts from the term without exposed all-reduces. Each round finds the largest term of the
    answer and moves weight to it as far as that helps; a bound that its own answer reaches is the
    optimum.

    Parameters
    ----------
    search
        What is known so far.
    memory
        Prices on memory, or None where it costs nothing.
    """
    start = _corner(search, (SLOWED, 0))
    found = Weighted(weights=start, answer=search.solve(Profile.of(start), memory))
    for _ in range(MAX_ROUNDS):
        if not found.answer.choices or search.stopped:
            break
        terms = _terms(search, found.answer.choices, memory)
        place = int(terms.argmax())
        largest = (place // terms.shape[1], place % terms.shape[1])
        if terms[largest] <= found.answer.lower_bound * (1.0 + RELATIVE_TOLERANCE):
            break
        better = _better_weights(search, found, _corner(search, largest), memory)
        if better is None:
            break
        found = better
    return found


def _corner(search: AdditiveSearch, term: tuple[int, int]) -> Floats:
    """All weight on one term."""
    weights = np.zeros((NUM_KINDS, len(search.formulation.layers) + 1))
    weights[term] = 1.0
    return weights


def _terms(search: AdditiveSearch, choices: Sequence[int], memory: MemoryPrices | None) -> Floats:
    """The terms of an assignment, with what it pays for memory. [s]"""
    paid = 0.0 if memory is None else memory.paid(choices)
    return search.formulation.terms(choices) + paid


def _better_weights(
    search: AdditiveSearch, start: Weighted, end: Floats, memory: MemoryPrices | None
) -> Weighted | None:
    """The best weights between two, or None where none are better than the first.

    Every answer is a line (its cost as a function of the place between the two) above which the
    bound cannot lie; the next place is where the lines of both sides meet.
    """

    def line(answer: Assignment) -> tuple[float, float]:
        terms = _terms(search, answer.choices, memory)
        return float((start.weights * terms).sum()), float((end * terms).sum())

    best = None
    left, right = line(start.answer), None
    bound, place = start.answer.lower_bound, 1.0
    for _ in range(MAX_PLACES):
        weights = (1.0 - place) * start.weights + place * end
        answer = search.solve(Profile.of(weights), memory)
        if not answer.choices or search.stopped:
            break
        if answer.lower_bound > bound * (1.0 + RELATIVE_TOLERANCE):
            best, bound = Weighted(weights=weights, answer=answer), answer.lower_bound
        here = line(answer)
        if here[1] >= here[0]:
            left = here
        else:
            right = here
        if right is None:
            break
        place = (left[0] - right[0]) / ((left[0] - right[0]) - (left[1] - right[1]))
        place = min(max(place, 0.0), 1.0)  # answers that are not optimal may meet outside
        if bound >= (left[0] + place * (left[1] - left[0])) * (1.0 - CLOSE):
            break
    return best
