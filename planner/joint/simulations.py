"""The simulations of one question: which choices are worth one, and the best of them.

Variants come after plain choices, and those with some of what they hold in the memory of the hosts
after all others. They take no places of theirs: whoever rules them out gets no better plan by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from costmodels.simulation import Runtime
from costmodels.simulation.shared_pieces import PiecesByBatch
from planner.joint.alike import BY_MEMORY, alike_but_for_zero
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import Choice
from planner.joint.contenders import TURNS, Contender, Contenders
from planner.joint.estimate import Estimate, Estimates
from planner.joint.fewer_again import fewest_within, one_fewer_again, those_with_fewer_again
from planner.joint.hybrid import judged
from planner.joint.known_splits import NO_SPLITS, KnownSplits
from planner.joint.misfits import Misfits
from planner.joint.misjudged import Misjudged
from planner.joint.pace import Pace
from planner.joint.ranking import MARGIN, MEMORY_MARGIN, most_estimated
from planner.joint.runtimes import choice_runtime
from planner.joint.variants import turn_of
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep, tried
from planner.request.setting import Setting

# Simulations of what fits: the first ones nearly always hold the best one. [items]
MOST_SIMULATED = 3
# Layers, once for each micro-batch that is laid out by itself, that are simulated to prove that
# nothing is faster, beside splits that are known (nearly always the answer) the second number, and
# to compare the best with others that are estimated to be as fast. [items]
MOST_WORK, MOST_BESIDE, MOST_COMPARED = 6_000, 1_500, 40_000
# How near to the least estimates do not tell which of them is the fastest; and by how much one may
# be above the best step and yet be simulated where that is cheap: half are within 2 %. [parts]
TIED, ABOUT_AS_FAST = 5e-3, 1e-2
# Of the fastest, and then of the smallest, so many that do not fit are simulated, and so many where
# others were tried in vain. [items]
MOST_MISSES, LATER_MISSES = 8, 2
# The fastest estimates among which better ones are looked for then: most are passed over without a
# simulation, by what is known of those like them. [items]
MOST_AHEAD = 64


@dataclass(slots=True, kw_only=True, eq=False)
class Simulations:
    """What was simulated of one question.

    Parameters
    ----------
    setting, runtime, options, splits
        As of `planner.joint.search.JointSearch`.
    estimates
        What choices are expected to cost.
    pace
        How long simulations take.
    offloads
        Whether what does not fit may wait in the memory of the hosts.
    left_out
        Why ways to train were left out, to which others are added.
    misfits
        What is told not to fit before it is simulated.
    simulated, best
        All that was simulated, and the fastest that fits.
    cut_short
        Whether there was no time for all that is worth it.
    tried, fitting
        The choices that were simulated, and what those of them take that fit. [s]
    misjudged
        How far off estimates were.
    known
        What layers cost in all that was simulated.
    """

    setting: Setting
    runtime: Runtime
    options: SearchOptions
    estimates: Estimates
    pace: Pace
    offloads: bool
    left_out: list[str]
    misfits: Misfits
    splits: KnownSplits = NO_SPLITS
    simulated: list[StagedStep] = field(default_factory=list)
    best: StagedStep | None = None
    cut_short: bool = False
    tried: set[Choice] = field(default_factory=set)
    fitting: dict[Choice, float] = field(default_factory=dict)
    misjudged: Misjudged = field(init=False)
    known: PiecesByBatch = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.misjudged = Misjudged(misfits=self.misfits)

    @property
    def rival(self) -> float:
        """What others must take less than to be the best, +inf where nothing is known. [s]"""
        return min(self.splits.seconds, judged(self.best))

    def refuted(self, ranked: Sequence[Estimate]) -> set[Choice]:
        """What was estimated to fit, and does not."""
        capacity = self.setting.cluster.device.memory
        missed = self.tried - self.fitting.keys()
        return {one.choice for one in ranked if one.memory <= capacity and one.choice in missed}

    def run(self, ranked: Sequence[Estimate], bound: float, *, partly: bool) -> None:
        """Simulate the most promising choices, those without offload first.

        Parameters
        ----------
        ranked
            Estimates, the fastest first.
        bound
            What no choice takes less than. [s]
        partly
            Whether some blocks may be computed again.
        """
        capacity = self.setting.cluster.device.memory
        timely = self.pace.timely(ranked, capacity)
        self.cut_short |= timely[:1] != list(ranked[:1])
        most, ahead = (LATER_MISSES,) * 2 if self.tried else (MOST_MISSES, MOST_AHEAD)
        untried = (one for one in timely if one.choice not in self.tried)
        timely = sorted(untried, key=lambda one: self.splits.counted(one.seconds, one.memory))
        for rows in ([one for one in timely if turn_of(one.choice) == turn] for turn in range(3)):
            fitting = [one for one in rows if one.memory <= most_estimated(self.estimates)]
            # where what may fit does not, what is expected to fit may do
            surely = [one for one in fitting if one.memory <= capacity]
            # what turns out to be too slow, or not to fit, takes no place of others
            self.simulate([*fitting[:ahead], *surely[:most]], bound, most)
            if partly:
                self._compute_fewer_again(rows, bound)
        if self.rival == math.inf:
            # where that does not either, what holds the least may do
            smallest = sorted(timely, key=BY_MEMORY)
            self.simulate(smallest[:most], bound)
            if partly:
                self._compute_fewer_again(smallest, bound)

    def run_untried(self, ranked: Sequence[Estimate], bound: float) -> None:
        """Simulate what is expected to be faster than the best and may fit, as far as is cheap.

        Most of it does not fit, and is told so before it is simulated. Takes what `run` takes.
        """
        most, work = self.most_estimated, 0
        near = [one for one in ranked if one.memory <= most and self._is_faster(one)]
        for rows in alike_but_for_zero(near, self.misjudged.expected):
            for one in rows:
                if not self._is_settled(one.choice) and self._is_faster(one):
                    if work > MOST_WORK or not self.has_time(one.choice):
                        return
                    found = self.attempt(one.choice, bound)
                    work += self.pace.layers if found is None else self.pace.work(one.choice)
                if one.choice in self.tried - self.fitting.keys():
                    break

    def _is_faster(self, one: Estimate) -> bool:
        """Whether an estimate is below the best by more than estimates are off."""
        best = 0.0 if self.best is None else judged(self.best)
        return self.misjudged.expected(one) < best * (1.0 - MARGIN)

    def simulate(self, rows: Sequence[Estimate], bound: float, most: float = math.inf) -> None:
        """Simulate estimates in order that promise to be better, if as far off as those alike.

        Parameters
        ----------
        rows, bound
            As of `run`.
        most
            Misfits after which no more is tried of what is expected to fit, and as many of what
            only may. [items]
        """
        room, work, more, count = self.setting.cluster.device.memory, 0, 0, 0
        missed = {True: 0, False: 0}
        near = rows[0].seconds * (1.0 + TIED) if rows else 0.0
        waiting, place = list(rows), -1
        while waiting:
            one, place = waiting.pop(0), place + 1
            misfit = self.best is not None and self.misjudged.memory(one) > room
            slow = self.misjudged.least(one) > self.rival * (1.0 + MARGIN)
            should = one.memory <= room
            if misfit or slow or missed[should] >= most or self._is_settled(one.choice):
                continue
            if (self.simulated or self.splits.any) and not self.has_time(one.choice):
                continue
            own = self.pace.work(one.choice)
            enough = count >= MOST_SIMULATED or work + own > MOST_COMPARED
            enough &= place >= MOST_SIMULATED or one.seconds > near
            cheap = more + own <= MOST_WORK and one.seconds < self.rival * (1.0 + ABOUT_AS_FAST)
            if enough and not cheap and self.misjudged.expected(one) > self.rival * (1.0 - MARGIN):
                continue
            work, more = work + own, more + own * (enough and cheap)
            found = self.attempt(one.choice, bound)
            fits = found is not None and found.fits
            count, missed[should] = count + fits, missed[should] + (not fits)
            self.misjudged.learn(one, found)
            if count >= MOST_SIMULATED:
                waiting.sort(key=self.misjudged.expected)

    @property
    def most_estimated(self) -> float:
        """What may fit is estimated to hold at most, as far off as others were. [B]"""
        return most_estimated(self.estimates) * self.misjudged.above

    def _compute_fewer_again(self, ranked: Sequence[Estimate], bound: float) -> None:
        """Simulate what computes blocks less again than is estimated to fit, as far as is cheap."""
        # what fits by a little is found by simulation alone, and may do so with yet a block less
        if not self.fitting:
            return
        most, work = self.most_estimated, 0
        near = (one for one in ranked if one.memory <= most)
        rows = those_with_fewer_again(self.estimates, near, self.rival, most)
        while rows:
            rows.remove(one := min(rows, key=self.misjudged.expected))
            if self._is_settled(one.choice):
                continue
            fewest = fewest_within(self.estimates, replace(one.choice, again=0), most)
            # whatever this one takes by itself
            expected = self.misjudged.expected(self.estimates.of(fewest))
            slow = expected >= self.rival * (1.0 + ABOUT_AS_FAST)
            enough = work + self.pace.work(one.choice) > MOST_WORK or slow
            if enough or not self.has_time(one.choice):
                return
            self.misjudged.learn(one, found := self.attempt(one.choice, bound))
            work += self.pace.layers if found is None else self.pace.work(one.choice)
            if found is not None and found.fits:
                rows += one_fewer_again(self.estimates, one.choice, most)

    def has_time(self, choice: Choice) -> bool:
        """Whether there is time to simulate a choice."""
        self.cut_short |= not (allowed := self.pace.allows(choice))
        return allowed

    def prove(
        self,
        ranked: Sequence[Estimate],
        passed: Sequence[Choice],
        left: float,
        bounds: ChoiceBounds,
    ) -> float:
        """Simulate what may still be faster, those with the least bound first, as far as is cheap.

        Parameters
        ----------
        ranked
            What was estimated.
        passed
            What was not in full, as its passes take long.
        left
            What no other choice takes less than. [s]
        bounds
            Of choices.

        Returns
        -------
        What no choice that fits takes less than, with whatever numbers of blocks. [s]
        """
        may_offload = self._may_offload if self.offloads else None
        contenders = Contenders(bounds, ranked, passed, may_offload, self.pace.deadline)
        for turn in range(TURNS):
            left = self._proven(contenders, turn, left)
        many = {one.of_any_cut for one in self.tried if self.estimates.cuts.are_many(one)}
        return min([left, *(bounds.of_stages(one, bounds.of(one), left) for one in many)])

    def _proven(self, contenders: Contenders, turn: int, left: float) -> float:
        """As `prove`, of the choices of a turn.

        Parameters
        ----------
        contenders, turn
            The choices, and which of them.
        left
            As of `prove`.
        """
        work = 0
        while (row := contenders.pop(turn, self._limit)) is not None:
            members = self._open(contenders, row)
            if not members:
                continue
            work += self.pace.work(row.choice) * len(members)
            known = self.splits.any and not self.splits.distributions
            enough = work > (MOST_BESIDE if known else MOST_WORK)
            for other in () if enough else members:
                if not self._is_settled(other):
                    # each of them takes time that the next one lacks
                    if enough := not self.has_time(other):
                        break
                    self.attempt(other, min(left, row.least))
                    if enough := other in self.pace.too_long:
                        break
            if enough:
                while row is not None and not self._open(contenders, row):
                    row = contenders.pop(turn, self._limit)
                left = min(left, self._limit, math.inf if row is None else row.least)
                break
        if self.pace.deadline.passed:
            self.cut_short = True
            left = min(left, contenders.least(turn))
        return left

    @property
    def _limit(self) -> float:
        """The best step that is known, or a bound of splits: others matter if less. [s]"""
        return min(judged(self.best), self.options.limit, self.splits.bound)

    def _open(self, contenders: Contenders, row: Contender) -> list[Choice]:
        """The choices that a bound holds for, but those that are settled."""
        return [one for one in contenders.bounds.members(row.choice) if not self._is_settled(one)]

    def _may_offload(self, one: Estimate) -> bool:
        """Whether some of a choice may have to wait in the memory of the hosts for it to fit."""
        least = self.setting.cluster.device.memory * (1.0 - MEMORY_MARGIN)
        fits = one.memory <= least or one.choice in self.fitting
        return self.offloads and turn_of(one.choice) == 0 and not fits

    def _is_settled(self, choice: Choice) -> bool:
        """Whether a choice was simulated, or fits with less computed again or copied: faster."""
        less = (*choice.less_again(), *choice.less_copied())
        return choice in self.tried or not self.fitting.keys().isdisjoint(less)

    def attempt(self, choice: Choice, bound: float, *, anyhow: bool = False) -> StagedStep | None:
        """Simulate a choice, unless it was; keep it where it is the best that fits.

        Parameters
        ----------
        choice, bound
            As above.
        anyhow
            Whether it is simulated although it is known not to fit.
        """
        if choice in self.pace.too_long or (choice in self.tried and not anyhow):
            return None
        misfits, runtime = self.misfits, choice_runtime(self.runtime, choice.zero)
        # what is the smallest of all that do not fit is told where nothing does
        keeps = None if self.best is None else partial(misfits.keeps_more, choice)
        holds = None if anyhow else partial(misfits.holds_more, choice)
        asked = partial(tried, self.setting, choice.degrees, runtime, self.known, keeps, holds)
        found, reason = self.pace.timed(choice, asked)
        if choice in self.pace.too_long:
            self.cut_short = True
            return None
        self.tried.add(choice)
        if found is None:
            self.left_out += [reason] if reason else []
            return None
        self.simulated.append(found)
        misfits.short.pop(choice, None)
        if found.fits:
            self.fitting[choice] = found.seconds
        if found.fits and judged(found) < judged(self.best) and self.splits.give_way_to(found):
            self.best = found
            self.options.tell("simulating", found.seconds, bound)
        return found
