"""Where the fastest assignments do not fit in memory: search under the limit, or for the least.

First come a few levels of prices that depend on no limit, so that more memory finds what less
memory found; where nothing fits by then, what neighbours hold together at least, and prices so high
that nothing but memory counts, which show how little is possible; then the prices that give the
best bound under the limit, without what cannot be part of anything that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from costmodels.distribution import Candidates
from planner.planning.bounds.additive_search import AdditiveSearch
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.bounds.least_memory import least_memory
from planner.planning.bounds.least_on_tree import least_on_tree
from planner.planning.bounds.memory_search import HIGHEST, MemorySearch
from planner.planning.memory.by_moment import memory_by_moment
from planner.planning.options import Overtaken
from planner.planning.space.profile import Profile
from planner.planning.space.widen import extend

# Levels of prices, in steps a peak of the fastest assignment: from where memory hardly counts to
# where next to nothing else does. At each of them prices move between moments that often at most.
LEVELS = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
LEVEL_ROUNDS = 6
# How often prices move under a limit, and how often the best answers are crossed.
LIMIT_ROUNDS, CROSSINGS = 20, 2


def save_memory(
    search: AdditiveSearch,
    profile: Profile,
    levels: Sequence[float] = LEVELS,
    rival: Callable[[], float] | None = None,
) -> MemorySearch:
    """Look at what is best when memory costs more and more, whatever the limit.

    Parameters
    ----------
    search
        What is known so far.
    profile
        How much of each layer's all-reduce counts in the best bound without a limit.
    levels
        Of prices, rising, in steps a peak of the fastest assignment.
    rival
        As of `planner.planning.options.SearchOptions`.

    Raises
    ------
    Overtaken
        When prices on memory show that all candidates that fit are slower than the rival.
    """
    rows, fastest = memory_by_moment(search.formulation), search.fastest
    inside = MemorySearch(
        search=search,
        rows=rows,
        profile=profile,
        limit=float(search.formulation.cluster.device.usable_memory),
        unit=(fastest.step.total, float(rows.profile(fastest.choices).max())),
    )
    for level in levels:
        inside.move_prices(limit=0.0, level=level, rounds=LEVEL_ROUNDS)
        # what none of them takes less than by now
        within = search.incumbent.bound
        if rival is not None and not search.stopped and within > rival():
            raise Overtaken(within)
    return inside


def fit_into_memory(
    search: AdditiveSearch, profile: Profile, rival: Callable[[], float] | None = None
) -> float:
    """Look for the fastest assignments that fit, where the fastest of all does not.

    Parameters
    ----------
    search
        What is known so far.
    profile
        How much of each layer's all-reduce counts in the best bound without a limit.
    rival
        As of `planner.planning.options.SearchOptions`.

    Returns
    -------
    What no assignment of any distributions holds less than, as far as it was looked for. [B]

    Raises
    ------
    Overtaken
        As of `save_memory`.
    """
    limit = search.formulation.cluster.device.usable_memory
    inside = None if rival is None else save_memory(search, profile, rival=rival)
    least = least_memory(search.formulation, limit, search.deadline)
    proven, bound = least.bound > limit, least.bound
    if inside is None:
        # where nothing fits, to say how much is missing at the least
        inside = save_memory(search, profile, LEVELS[-1:] if proven else LEVELS)
    if not (proven or inside.fits):
        least = least_on_tree(search.formulation, least, search.deadline)
        bound = max(bound, least.bound)
    # what holds least of all comes last: with what holds little enough by other weights more fits
    for enough in (limit, math.inf):
        if bound > limit or inside.fits or search.stopped:
            break
        few = (
            least if enough == limit else least_memory(search.formulation, enough, search.deadline)
        )
        if few.small:
            inside = _widened(inside, few.small)
        inside.allow(least.fitting(search.formulation))
        inside.look_for_least(inside.limit)
        bound = max(bound, inside.least * search.formulation.is_complete)
    if max(bound, inside.least) > limit:
        search.incumbent.raise_bound(math.inf)
    else:
        inside.allow(least.fitting(search.formulation))
        _fit(inside)
    if not inside.fits:
        smallest = min(inside.met.items(), key=lambda item: float(item[1].max()))
        search.cost_once(smallest[0])
    return bound


def _widened(inside: MemorySearch, small: Mapping[str, Candidates]) -> MemorySearch:
    """The same search among more candidates.

    Parameters
    ----------
    inside
        What is known so far.
    small
        Further candidates, by the first layer that is alike.
    """
    search, met = inside.search, tuple(inside.met)
    search.widen(extend(search.formulation, small, search.deadline))
    wider = replace(inside, rows=memory_by_moment(search.formulation), met={}, least=0.0)
    wider.meet(*met)
    return wider


def _fit(inside: MemorySearch) -> None:
    """Look for the fastest assignments under the limit of a search."""
    search = inside.search
    prices = inside.move_prices(limit=inside.limit, level=HIGHEST, rounds=LIMIT_ROUNDS)
    for _ in range(CROSSINGS):
        if search.stopped or not inside.cross(inside.limit, prices.prices):
            break
    inside.line_up(inside.limit, prices.prices)
    if inside.fits and not search.stopped:
        best = maximise_bound(search, prices)
        inside.profile = Profile.of(best.weights)
        prices = inside.move_prices(limit=inside.limit, level=HIGHEST, rounds=LIMIT_ROUNDS)
        inside.line_up(inside.limit, prices.prices)
        inside.cross(inside.limit, prices.prices)


def hold_least(search: AdditiveSearch, profile: Profile) -> float:
    """Look for the assignments that hold least, whatever time they take.

    Parameters
    ----------
    search
        What is known so far.
    profile
        How much of each layer's all-reduce counts in the best bound without a limit.

    Returns
    -------
    What no assignment of any distributions holds less than. [B]
    """
    inside = save_memory(search, profile)
    least = least_memory(search.formulation, math.inf, search.deadline)
    if least.small:
        inside = _widened(inside, least.small)
    inside.look_for_least()
    return max(least.bound, inside.least * search.formulation.is_complete)
