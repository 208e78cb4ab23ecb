"""What may still be faster than the best, those first that take the least time at least.

Most choices are ruled out by their passes alone, which is little work. Bounds that know all that a
choice does are found out only of those that come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import Choice
from planner.joint.computation import pipelined
from planner.joint.estimate import ROUNDING, Estimate
from planner.joint.variants import turn_of
from planner.simulation.run import waiting_time
from search.problem.deadline import Deadline

# Choices are simulated in so many turns, the last of which has those with the memory of the hosts;
# see `planner.joint.variants.turn_of`.
TURNS = 3
HOSTS = TURNS - 1


# No bound method: contenders that refer to those that hold them would stay in memory for good.
Sharpen = Callable[["Contenders", float], Iterable["Contender"]]


class Contender(NamedTuple):
    """A choice, or several, and what no step of them takes less than.

    Parameters
    ----------
    least
        That. [s]
    sharp
        Whether it is the bound that knows the most.
    seconds
        The estimate of the choice, 0 where it does not matter yet. [s]
    place
        Of two that are alike otherwise, the first one comes first.
    choice
        The choice, or the one that the others are like.
    sharpen
        Finds out more, given all contenders and the best step: what the choice becomes.
    """

    least: float
    sharp: bool
    seconds: float
    place: tuple[int, ...]
    choice: Choice
    sharpen: Sharpen | None = None


class Contenders:
    """Choices by their bounds, in turns.

    Parameters
    ----------
    bounds
        Of choices.
    ranked
        What was estimated.
    passed
        What was not in full, as its passes take long.
    may_offload
        Whether some of a choice may have to wait in the memory of the hosts for it to fit; None
        where that is not asked for.
    deadline
        After which nothing more is found out.
    """

    def __init__(
        self,
        bounds: ChoiceBounds,
        ranked: Iterable[Estimate],
        passed: Iterable[Choice],
        may_offload: Callable[[Estimate], bool] | None,
        deadline: Deadline,
    ) -> None:
        self.bounds, self.may_offload, self.deadline = bounds, may_offload, deadline
        self.turns: list[list[Contender]] = [[] for _ in range(TURNS)]
        rows = [one for one in ranked if not self._is_refined(one.choice)]
        for number, one in enumerate(sorted(rows, key=lambda one: len(one.choice.offload))):
            place = (number,)
            self._add(one.choice, number, partial(Contenders._estimated, one=one, place=place))
            if may_offload is not None and may_offload(one):
                by_ways = partial(Contenders._by_ways, one=one, place=place)
                self._add_with_hosts(one.choice, number, by_ways)
        for number, choice in enumerate(passed, len(rows)):
            place = (number,)
            self._add(choice, number, partial(Contenders._passed, choice=choice, place=place))
            if may_offload is not None and turn_of(choice) == 0:
                by_ways = partial(Contenders._passed_by_ways, choice=choice, place=place)
                self._add_with_hosts(choice, number, by_ways)
        for heap in self.turns:
            heapify(heap)

    def _is_refined(self, choice: Choice) -> bool:
        """Whether the bound of another choice holds for a choice as well."""
        return bool(choice.again or (self.bounds.hybrid and choice.shard_size))

    def _add(
        self,
        choice: Choice,
        number: int,
        sharpen: Sharpen,
        turn: int | None = None,
    ) -> None:
        turn = turn_of(choice) if turn is None else turn
        least = least_of_passes(self.bounds, choice)
        self.turns[turn].append(Contender(least, False, 0.0, (number,), choice, sharpen))

    def _add_with_hosts(self, choice: Choice, number: int, by_ways: Sharpen) -> None:
        hosts = partial(Contenders._hosts, choice=choice, place=(number,), by_ways=by_ways)
        self._add(choice, number, hosts, HOSTS)

    def least(self, turn: int) -> float:
        """What none takes less than of those of a turn that are left. [s]"""
        rows = self.turns[turn]
        return rows[0].least if rows else math.inf

    def pop(self, turn: int, best: float) -> Contender | None:
        """The choice of a turn with the least bound, None if none may be faster than the best.

        After the deadline there is none either.

        Parameters
        ----------
        turn
            The turn.
        best
            The best step. [s]
        """
        rows = self.turns[turn]
        while rows and rows[0].least < best and not self.deadline.passed:
            one = heappop(rows)
            if one.sharpen is None:
                return one
            for other in one.sharpen(self, best):
                # what is known already holds all the same
                if max(one.least, other.least) < best:
                    heappush(rows, other._replace(least=max(one.least, other.least)))
        return None

    def _estimated(self, best: float, one: Estimate, place: tuple[int, ...]) -> Iterator[Contender]:
        """An estimated choice, with the ranks that its weights may be cut over."""
        least = self.bounds.of(one.choice)
        if least < best:
            yield from self._by_shards(least, one, one.choice, place)

    def _passed(self, best: float, choice: Choice, place: tuple[int, ...]) -> Iterator[Contender]:
        """A choice that was passed over, estimated where it may be faster."""
        least = self.bounds.of(choice)
        if least < best:
            sharpen = partial(Contenders._passed_estimated, choice=choice, place=place)
            yield Contender(least, False, 0.0, place, choice, sharpen)

    def _passed_estimated(
        self, best: float, choice: Choice, place: tuple[int, ...]
    ) -> Iterator[Contender]:
        yield from self._estimated(best, self.bounds.estimates.of(choice), place)

    def _hosts(
        self, best: float, choice: Choice, place: tuple[int, ...], by_ways: Sharpen
    ) -> Iterator[Contender]:
        """A choice by what it takes at least with anything in the memory of the hosts."""
        least = self.bounds.of(choice, fitting=False, may_wait=True)
        if least < best:
            yield Contender(least, False, 0.0, place, choice, by_ways)

    def _passed_by_ways(
        self, best: float, choice: Choice, place: tuple[int, ...]
    ) -> Iterator[Contender]:
        """As `_by_ways`, of a choice that was passed over, where it does not fit without."""
        one = self.bounds.estimates.of(choice)
        if self.may_offload is not None and self.may_offload(one):
            yield from self._by_ways(best, one, place)

    def _by_ways(self, best: float, one: Estimate, place: tuple[int, ...]) -> Iterator[Contender]:
        """An estimated choice with whatever may wait in the memory of the hosts."""
        for number, (least, other) in enumerate(self.bounds.offloaded(one.choice, best)):
            yield from self._by_shards(least, one, other, (*place, number))

    def _by_shards(
        self, least: float, one: Estimate, choice: Choice, place: tuple[int, ...]
    ) -> Iterator[Contender]:
        for number, (row, way) in enumerate(self.bounds.by_shards(least, choice)):
            found = Contender(row, True, one.seconds, (*place, number), way)
            yield found._replace(sharp=False, sharpen=partial(Contenders._in_stages, one=found))

    def _in_stages(self, best: float, one: Contender) -> Iterator[Contender]:
        """A choice by what its stages take as well, of those that come first alone."""
        least = self.bounds.of_stages(one.choice, one.least, best)
        if least < best:
            yield one._replace(least=least)


def least_of_passes(bounds: ChoiceBounds, choice: Choice) -> float:
    """What no step of a choice takes less than, whatever is computed again, by its passes. [s]

    Parameters
    ----------
    bounds
        Of choices.
    choice
        The choice.
    """
    estimates, key = bounds.estimates, (choice.split, choice.samples)
    # where weights are cut, layers take no less than otherwise
    inside = estimates.insides(choice.zero).known.get(key) or estimates.plain.known.get(key)
    if inside is None:
        return bounds.floors.floor(choice) * (1.0 - 2.0 * ROUNDING)
    pp, count = choice.pp, choice.micro_batches
    if choice.fills_bubbles:
        least = count * inside.total_least_apart / pp
    else:
        least = pipelined(inside.total_least, pp, choice.chunks, count, chain=bounds.floors.chain)
    least += waiting_time(count * inside.total_computed / pp, bounds.setting.gpus)
    # a little below what other sums of the same come to
    return least * (1.0 - 2.0 * ROUNDING)
