"""Which choices are estimated, and which are left with a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, field

from costmodels.errors import InputError
from planner.joint.choices import Choice
from planner.joint.estimate import Estimate, Estimates
from search.problem.deadline import Deadline

# Estimates and simulations differ by a few percent: what is estimated to be slower than the best
# simulated step by more than this is not simulated.
MARGIN = 0.03
# How far the estimate of memory may be above the memory of a device. The simulation decides. Where
# an allocator holds more than its tensors, what lies between is told by a few blocks: of three
# transformers under nanotron and megatron-core, nine of ten estimates are at most 7 % too large.
MEMORY_MARGIN, CACHED_MARGIN = 0.03, 0.1
# What takes longer than the best estimate by more, by its passes alone, is not estimated in full.
PASSED_OVER = 0.2
# So many are estimated, none of which fits, before others are asked whether they may. [items]
IN_VAIN = 256
# A choice with what no step of it takes less than, and many of them, the least first. [s]
Row = tuple[float, Choice]
Rows = Sequence[Row]


def most_estimated(estimates: Estimates) -> float:
    """What may fit is estimated to hold at most. [B]"""
    margin = CACHED_MARGIN if estimates.runtime.caching else MEMORY_MARGIN
    return estimates.setting.cluster.device.memory * (1.0 + margin)


class Ranking(Struct, kw_only=True, eq=False):
    """Estimates of the choices of one question.

    Parameters
    ----------
    estimates
        Makes them.
    deadline
        When to stop, once there are some.
    capacity
        The memory of a device. [B]
    limit
        Steps that take longer do not matter. [s]
    margin
        As `PASSED_OVER`, +inf to estimate all in full. [parts]
    left_out
        Why ways of parallelism were left out that do not fit the network.
    cut_short
        Whether there was no time for all of them.
    refuted
        What does not fit, whatever is estimated.
    passed
        What is not estimated in full, with what its passes take. [s]
    needless
        What is not either, as the same is expected to fit with less computed again, and what that
        takes. [s]
    known
        Estimates by the choice that was asked for, wherever it is cut.
    counts
        Of those choices, what they have in common with others that compute more again.
    refutes, at_least
        Whether a choice is known not to fit, and what one of which some waits in the hosts takes
        at least, as far as that tells it from what may be taken: less work than estimates. [s]
    """

    estimates: Estimates
    deadline: Deadline
    capacity: float
    limit: float = math.inf
    margin: float = PASSED_OVER
    left_out: list[str] = field(default_factory=list)
    cut_short: bool = False
    refuted: set[Choice] = field(default_factory=set)
    passed: list[tuple[float, Choice]] = field(default_factory=list)
    needless: list[tuple[float, Choice]] = field(default_factory=list)
    known: dict[Choice, Estimate] = field(default_factory=dict)
    counts: set[tuple[int, ...]] = field(default_factory=set)
    refutes: Callable[[Choice], bool] = lambda _: False
    at_least: Callable[[Choice, float], float] = lambda _, most: 0.0

    def of(self, rows: Rows, every: bool) -> tuple[list[Estimate], float]:
        """Estimates of choices, the fastest first, and what all others take at least. [s]

        Those in `passed` and `needless` are no others: what they take at least is not known yet.

        Parameters
        ----------
        rows
            Choices by what no step of them takes less than. [s]
        every
            Whether also of those that cannot be the fastest.
        """
        found: list[Estimate] = []
        for past in (self.passed, self.needless, self.known, self.counts):
            past.clear()
        left = self._estimate_all(rows, every, found)
        return sorted(found, key=lambda one: one.seconds), left

    def add(
        self,
        rows: Iterable[Row],
        found: list[Estimate],
        *,
        every: bool = False,
        margin: float | None = None,
    ) -> float:
        """Estimate others that may be the fastest; what the rest of them takes at least. [s]

        Parameters
        ----------
        rows, every
            As of `of`.
        found
            Estimates so far, to which these are added.
        margin
            As that of the ranking, which it is by default. [parts]
        """
        return self._estimate_all(rows, every, found, margin)

    def _estimate_all(
        self,
        rows: Iterable[Row],
        every: bool,
        found: list[Estimate],
        margin: float | None = None,
    ) -> float:
        """Estimate choices that may be the fastest; return what all others take at least. [s]

        Where nothing fits, those that are known not to are told with what they take at least.

        Parameters
        ----------
        rows, every
            As of `of`.
        found
            Estimates so far, to which these are added.
        margin
            As of `add`.
        """
        margin = self.margin if margin is None else min(margin, self.margin)
        hopeless: list[Row] = []
        left = self._estimate(rows, every, found, margin, hopeless)
        if any(map(self.fits, found)):
            return min(left, self._estimate(hopeless, every, found, margin))
        found += [Estimate(choice=one, seconds=least, memory=math.inf) for least, one in hopeless]
        return left

    def _estimate(
        self,
        rows: Iterable[Row],
        every: bool,
        found: list[Estimate],
        margin: float,
        hopeless: list[Row] | None = None,
    ) -> float:
        """As `_estimate_all`.

        Parameters
        ----------
        rows, every, found, margin
            As of `_estimate_all`.
        hopeless
            To which those are added instead that are known not to fit, as long as nothing does.
        """
        fitting = [one.seconds for one in found if self.fits(one)]
        best = min([self.limit, *fitting])
        refused: set[object] = set()
        for floor, choice in rows:
            late = self.deadline.passed and bool(found)
            self.cut_short |= late
            if late or (floor > best * (1.0 + MARGIN) and not every):
                return floor
            # of what waits in the hosts that is known before
            in_vain = not (fitting or every or choice.offload) and len(found) >= IN_VAIN
            if hopeless is not None and in_vain and self.refutes(choice):
                hopeless.append((floor, choice))
                continue
            # a network may be cut into few stages, and not into many
            kind = choice.inside, choice.pp * choice.chunks
            if kind in refused:
                continue
            try:
                # splits alone are told of what they are estimated to take
                if not every and self._is_left_out(choice, best * (1.0 + margin)):
                    continue
                one = self.estimates.of(choice)
            except InputError as error:
                refused.add(kind)
                self.left_out.append(str(error))
                continue
            found.append(one)
            self.known[choice] = one
            self.counts.add(_besides_again(choice))
            if self.fits(one):
                fitting.append(one.seconds)
                best = min(best, one.seconds)
        return math.inf

    def _is_left_out(self, choice: Choice, most: float) -> bool:
        """Whether a choice is too slow by its passes, or computes more again than it has to.

        Parameters
        ----------
        choice
            The choice.
        most
            What its passes may take. [s]
        """
        if choice.is_split_alone or self.margin == math.inf:
            return False  # of splits alone is told what they are estimated to take
        # what is computed again only adds to the rest
        less = self._with_less_again(choice)
        passes = max([self.estimates.least(choice), *(one.seconds for one in less)])
        if choice.offload and passes <= most < math.inf:
            passes = max(passes, self.at_least(choice, most))
        if passes > most:
            self.passed.append((passes, choice))
            return True
        room = self.capacity * (1.0 - MEMORY_MARGIN)
        if any(one.memory <= room and one.choice not in self.refuted for one in less):
            self.needless.append((passes, choice))
            return True
        return False

    def _with_less_again(self, choice: Choice) -> list[Estimate]:
        """Estimates of the same choice with less computed again, as far as there are any."""
        if _besides_again(choice) not in self.counts:
            return []
        rows = map(self.known.get, choice.less_again())
        return [one for one in rows if one is not None]

    @property
    def unseen(self) -> list[Choice]:
        """What was left out although nothing is known of it but what it is like."""
        return [choice for _, choice in (*self.passed, *self.needless)]

    def left_without(self, missed: AbstractSet[Choice]) -> float:
        """What all that was left out takes, by its passes, where others turn out not to fit. [s]

        Parameters
        ----------
        missed
            What does not fit although it was expected to.
        """
        rows = [passes for passes, _ in self.passed]
        for passes, choice in self.needless if missed else ():
            if any(one.choice in missed for one in self._with_less_again(choice)):
                rows.append(passes)
        return min(rows, default=math.inf)

    def fits(self, one: Estimate) -> bool:
        """Whether an estimate is expected to fit."""
        return one.memory <= self.capacity and one.choice not in self.refuted


def _besides_again(choice: Choice) -> tuple[int, ...]:
    """Of a choice, what does not depend on what is computed again, and is quick to compare."""
    inside = choice.inside
    return inside.tp, choice.samples, choice.dp, choice.pp, choice.chunks, choice.zero
