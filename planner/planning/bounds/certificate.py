"""A bound for every distribution, and the candidates that a search should have seen.

The additive problem over every distribution (see `planner.planning.bounds.whole_space`) is solved
exactly. Where its optimum takes a class, candidates of the classes that are part of something cheap
come back into the search, which then runs again; until no class is left that could lower the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.distribution import count_candidates
from planner.planning.bounds.additive_search import AdditiveSearch, time_left
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.bounds.layer_bounds import LayerBounds
from planner.planning.bounds.whole_space import PAIR_SECONDS, WholeSpace
from planner.planning.space.formulate import Formulation
from planner.planning.space.profile import Profile
from planner.planning.space.shuffles import TooManyLayouts
from planner.planning.space.widen import extend
from search import SOLVERS, Problem, ProblemError
from search.elimination.buckets import eliminate, plan
from search.elimination.marginals import min_marginals
from search.problem.deadline import Deadline, OutOfTime
from search.problem.notes import Note

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Bounds so close to that of the search are as good, and what costs no less does not matter.
CLOSE = 3e-3
# With more candidates of all distinct layers than these, those that could not lower the bound by
# more than that part are not even costed. [items]
FEW_CANDIDATES = 100_000
# The most candidates of all layers that are looked at; there are more on thousands of GPUs. [items]
MOST_CANDIDATES = 2_500_000
# The most layouts of candidates that are near, with those of the search, for which the shuffles of
# each are costed: comparing so many takes a second. And the most pairs of such candidates along all
# edges that are unlike, of which three numbers are held each: half a gigabyte. [items]
MOST_NEAR_LAYOUTS, MOST_NEAR_PAIRS = 2_000, 2.0e7
# Entries that one elimination over every distribution may visit: a few seconds.
MOST_WORK = 5.0e8
# Work of message passing where elimination would take too long, about as many seconds.
WIDE_WORK = 1.0
# Candidates of a layer that come back in a round, and rounds. Chosen by trial.
EACH_ROUND = 16
MAX_ROUNDS = 4
# A round after which the gap between the two bounds is still that part of what it was, and the plan
# no faster, is the last one.
SLOW_PROGRESS = 0.7
# Profiles for which every distribution is priced.
MAX_PROFILES = 2


class PricedSpace(Struct, frozen=True, kw_only=True, eq=False):
    """What the additive problem over every distribution came to.

    Parameters
    ----------
    bound
        No assignment costs less. [s]
    wanted
        Candidates that should be searched: their places among those left out, by the first layer
        that is alike.
    near
        Which of those left out can be part of something that matters.
    """

    bound: float
    wanted: Mapping[str, Ints]
    near: Mapping[str, NDArray[np.bool_]]


def certify(
    search: AdditiveSearch, profile: Profile, *, widen: bool = True, enough: float = np.inf
) -> float:
    """Bring back what should have been searched; returns what bounds every distribution. [s]

    Parameters
    ----------
    search
        What is known so far: its bound holds for the candidates that it sees. Candidates that come
        back go behind these.
    profile
        Profile of the additive problem with the best bound.
    widen
        Whether anything may come back: what is cheap without a memory limit need not be under one.
    enough
        What takes longer does not matter. [s]
    """
    bound, least = 0.0, None
    for _ in range(MAX_PROFILES):
        seen = search.formulation.num_candidates
        # what layers cost does not depend on the profile
        least = LayerBounds.of(search.formulation, profile, least)
        worst = min(search.incumbent.bound, enough / (1.0 - CLOSE))
        one, least = _certify_profile(search, profile, least, worst, widen=widen)
        bound = max(bound, one)
        if search.formulation.num_candidates == seen or search.stopped:
            break
        # among more candidates other weights may bound better
        profile = Profile.of(maximise_bound(search).weights)
        if bound >= _matters(search.incumbent.bound):
            break
    return bound


def _certify_profile(
    search: AdditiveSearch, profile: Profile, least: LayerBounds, worst: float, *, widen: bool
) -> tuple[float, LayerBounds]:
    """The same for one profile.

    Parameters
    ----------
    search, profile, widen
        As above.
    least
        What layers compute at least, for that profile.
    worst
        What costs no less does not matter. [s]

    Returns
    -------
    The bound, and what layers cost as far as that was needed. [s]
    """
    formulation, bound = search.formulation, least.bound
    if bound >= _matters(worst):
        return min(bound, worst), least
    shape = formulation.machine.topology.shape
    counts = [count_candidates(formulation.graph.layers[n], shape) for n in least.computation]
    if sum(counts) > MOST_CANDIDATES:
        search.incumbent.add_note(Note.of("space-not-priced", candidates=sum(counts)))
        return bound, least
    try:
        far = _matters if sum(counts) > FEW_CANDIDATES else float
        least = least.sharpened(formulation, profile, far(worst), search.deadline)
        bound = least.bound
        if bound >= _matters(worst):
            return min(bound, worst), least
        least = least.costed(formulation, least.near(far(worst)), search.deadline)
        whole = WholeSpace.of(formulation, profile, least, far(worst), search.deadline)
        gap, fastest = np.inf, search.fastest.step.total
        for _ in range(MAX_ROUNDS):
            priced = price(whole, far(worst), search.deadline)
            if priced.bound < _matters(worst):
                priced = _priced_one_by_one(search, whole, priced, far(worst))
            bound = max(bound, priced.bound)
            slow = worst - bound > SLOW_PROGRESS * gap and search.fastest.step.total >= fastest
            done = slow or bound >= _matters(worst)
            if not (priced.wanted and widen) or done or search.stopped:
                break
            gap, fastest = worst - bound, search.fastest.step.total
            more = {n: whole.left[n].candidates.take(rows) for n, rows in priced.wanted.items()}
            search.widen(extend(search.formulation, more, search.deadline))
            whole = whole.widened(search.formulation, priced.wanted, priced.near)
            worst = min(worst, search.solve(profile).lower_bound)
            if bound >= _matters(worst):
                break
    except TooManyLayouts:
        search.incumbent.add_note(Note.of("space-not-priced", candidates=sum(counts)))
    except OutOfTime:
        search.incumbent.stopped_by = "time limit"
        search.incumbent.add_note(Note.of("no-time-to-price"))
    return bound, least


def _matters(bound: float) -> float:
    """What costs more than that does not matter beside a bound of the search. [s]"""
    return bound * (1.0 - CLOSE)


def price(whole: WholeSpace, worst: float, deadline: Deadline) -> PricedSpace:
    """Solve the additive problem over every distribution.

    Parameters
    ----------
    whole
        Every distribution that can be part of something cheap.
    worst
        Nothing that costs more matters. [s]
    deadline
        When to give up by raising `OutOfTime`.
    """
    problem, kept = whole.problem(worst)
    marginals = None
    try:
        order = plan(problem, max_work=MOST_WORK)
        eliminated = eliminate(problem, order, deadline=deadline)
        bound, choices = eliminated.minimum, eliminated.decode()
        if bound < _matters(worst):
            marginals = min_marginals(eliminated, deadline)
    except ProblemError:
        answer = SOLVERS["auto"](problem, time_limit=time_left(deadline), work=WIDE_WORK)
        if answer.stopped_by == "interrupt":
            raise KeyboardInterrupt from None  # a solver keeps it to hand in what it has
        bound, choices = answer.lower_bound, list(answer.choices)
    if bound >= _matters(worst):
        return PricedSpace(bound=min(bound, worst), wanted={}, near={})
    if marginals is None:
        values = values_left_out(whole, problem, kept, _of_answer(problem, choices, bound))
        near = {space: np.ones(len(value), dtype=bool) for space, value in values.items()}
    else:
        values = values_left_out(whole, problem, kept, marginals)
        near = {space: value < worst for space, value in values.items()}
    return PricedSpace(bound=bound, wanted=_wanted(values, worst), near=near)


def _of_answer(problem: Problem, choices: Sequence[int], cost: float) -> list[Floats]:
    """Min-marginals as far as one answer tells them: only what it takes is known to be cheap."""
    marginals = [np.full(size, np.inf) for size in problem.sizes]
    for marginal, choice in zip(marginals, choices, strict=False):
        marginal[choice] = cost
    return marginals


def _priced_one_by_one(
    search: AdditiveSearch, whole: WholeSpace, priced: PricedSpace, worst: float
) -> PricedSpace:
    """Solve the problem again with each candidate that is near by itself, where these are few.

    What changes of layout within hosts and shared weights cost, which classes leave out, counts.

    Parameters
    ----------
    search
        What is known so far.
    whole, worst
        As of `price`.
    priced
        What classes came to.
    """
    rows = {name: np.flatnonzero(mask) for name, mask in priced.near.items() if mask.any()}
    if _num_pairs(search.formulation, rows) > MOST_NEAR_PAIRS:
        return priced
    more = {name: whole.left[name].candidates.take(some) for name, some in rows.items()}
    in_time = math.sqrt(search.deadline.remaining / PAIR_SECONDS)
    try:
        every = extend(search.formulation, more, search.deadline, min(MOST_NEAR_LAYOUTS, in_time))
        marginals = marginals_of(every.problem(whole.profile), search.deadline)
    except (ProblemError, TooManyLayouts):
        return priced
    values = {name: np.full(len(mask), np.inf) for name, mask in priced.near.items()}
    for layer, marginal in zip(every.layers, marginals, strict=True):
        name = every.first_alike[layer.name]
        if name in rows:
            some = marginal[len(search.formulation.spaces[name].candidates) :]
            values[name][rows[name]] = np.minimum(values[name][rows[name]], some)
    return PricedSpace(
        bound=max(priced.bound, min(float(marginals[0].min()), worst)),
        wanted=_wanted(values, worst),
        near={name: value < worst for name, value in values.items()},
    )


def marginals_of(problem: Problem, deadline: Deadline) -> list[Floats]:
    """What any assignment with each candidate costs at least. [s]

    Raises
    ------
    ProblemError
        Where that takes too much work or memory.
    """
    eliminated = eliminate(problem, plan(problem, max_work=MOST_WORK), deadline=deadline)
    marginals = min_marginals(eliminated, deadline)
    if marginals is None:
        raise ProblemError("the tables of some layers are too large to hold")
    return marginals


def _num_pairs(formulation: Formulation, more: Mapping[str, Ints]) -> int:
    """Pairs of candidates along all edges that are unlike, with more of some layers. [items]"""
    alike, spaces = formulation.first_alike, formulation.spaces
    edges = {(alike[edge.source], alike[edge.target]) for edge in formulation.edges}
    counts = {n: len(spaces[n].candidates) + len(more.get(n, ())) for n in set(alike.values())}
    return sum(counts[source] * counts[target] for source, target in edges)


def values_left_out(
    whole: WholeSpace, problem: Problem, kept: Mapping[str, Ints], marginals: list[Floats]
) -> dict[str, Floats]:
    """What any assignment costs at least that has a candidate left out, by the first alike. [s]

    Parameters
    ----------
    whole, problem, kept
        Every distribution, as an additive problem that holds these classes.
    marginals
        The least cost of any assignment with each candidate and class. [s]
    """
    values: dict[str, Floats] = {}
    formulation = whole.formulation
    keys = formulation.cost_keys(whole.profile)
    for i, (layer, key) in enumerate(zip(formulation.layers, keys, strict=True)):
        left, classes = whole.left[key.space], kept[key.space]
        seen = len(formulation.spaces[layer.name].candidates)
        around = np.full(len(left.first), np.inf)
        around[classes] = marginals[i][seen:] - problem.costs[i][seen:]
        value = around[left.class_of] + left.prices(key)
        values[key.space] = np.minimum(values.get(key.space, np.inf), value)
    return values


def _wanted(values: Mapping[str, Floats], worst: float) -> dict[str, Ints]:
    """The candidates that are part of what is cheapest.

    Parameters
    ----------
    values
        What any assignment with each of them costs at least, as of `values_left_out`. [s]
    worst
        What costs more does not matter. [s]
    """
    wanted = {}
    for space, value in values.items():
        best = np.argsort(value, kind="stable")[:EACH_ROUND]
        best = best[value[best] < worst]
        if len(best):
            wanted[space] = best
    return wanted
