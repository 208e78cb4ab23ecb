"""Fewer GPUs, the others without work: a number that divides neither batch nor blocks costs time.

Every plan of fewer GPUs is one of more. All smaller numbers are estimated with what micro-batches
are known to cost; those that may be faster are asked for in full, the most promising first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from planner.errors import ContradictionError, InfeasibleError
from planner.joint.activations import LeastOfStages
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import (
    Choice,
    choices,
    recomputations,
    with_any_recomputation,
    with_any_sharding,
)
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate, Estimates
from planner.joint.fewer_again import one_fewer_again
from planner.joint.fewer_by_splits import NO_FEWER_BY_SPLITS, FewerBySplits
from planner.joint.fewer_usual import fastest_usual
from planner.joint.hosts import on_gpus
from planner.joint.offload import can_wait
from planner.joint.offloading import heavy_rows, may_offload, with_offload
from planner.joint.other_runtime import estimates_under_other, with_those_under_other
from planner.joint.pace import Pace
from planner.joint.plans import bounded_by, left_idle
from planner.joint.ranking import MARGIN, Ranking, most_estimated
from planner.joint.refined import with_refinements
from planner.joint.runtimes import choice_runtime, searched_runtime, stages_of_zero
from planner.joint.shifted import MOST_GAINED, with_moved_blocks
from planner.joint.simulations import MOST_BESIDE
from planner.joint.variants import with_variants
from planner.joint.verdict import least_held
from planner.joint.ways_inside import insides
from planner.joint.weights import LeastWeights
from planner.joint.wishes import Wishes
from planner.joint.work import least_work
from planner.plan import Plan
from planner.planning.staged import tried
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Where nothing fits on so many smaller numbers that promised it, others are not asked for, but
# where there is no plan at all for those of at most half of them. [items]
MOST_MISSES_OF_FEWER = 2
# How often smaller numbers are estimated, where those that promised to be faster are not. [items]
MOST_TURNS = 3
# As of `FewerGpus._promising`.
Promise = tuple[float, Sequence[Choice], Setting]


@dataclass(eq=False)
class FewerGpus:
    """The smaller numbers of GPUs of one question.

    Parameters
    ----------
    setting
        The question.
    wishes
        What is held fixed or ruled out.
    estimates, floors
        Of all its GPUs, whose costs of micro-batches hold for fewer.
    deadline
        When to stop.
    by_splits
        Tells which of them are asked for their splits, of which nothing is estimated.
    in_hosts
        Whether what fits in the memory of the hosts alone matters: there is no other plan yet.
    best, left
        The best step so far [s], and numbers of GPUs on which some choice is as wished for.
    """

    setting: Setting
    wishes: Wishes
    estimates: Estimates
    floors: PipelineBounds
    deadline: Deadline
    by_splits: FewerBySplits = NO_FEWER_BY_SPLITS
    in_hosts: bool = False
    weights: LeastWeights = field(init=False)
    least: LeastOfStages | None = field(init=False, default=None)
    best: float = field(init=False, default=math.inf)
    left: set[int] = field(init=False, default_factory=set)

    @cached_property
    def held(self) -> float:
        """What all devices hold together at least where nothing waits in the hosts. [B]"""
        return least_held(self.setting)

    @cached_property
    def under_other(self) -> Estimates | None:
        """As `planner.joint.other_runtime.estimates_under_other`."""
        return estimates_under_other(self.estimates, self.wishes)

    @cached_property
    def again(self) -> tuple[str, ...]:
        """What of the network can be computed again."""
        return recomputations(self.setting.graph)

    def faster_plan(
        self,
        plan: Plan | InfeasibleError,
        asked: Callable[[Setting, float], Plan | InfeasibleError],
    ) -> Plan | InfeasibleError:
        """The plan of all GPUs, or that of fewer where the others would cost time.

        Parameters
        ----------
        plan
            That of all GPUs, or why there is none.
        asked
            The answer to a question on all of its GPUs, given the step of a plan that is known. [s]
        """
        if isinstance(plan, Plan):
            pace = Pace(deadline=self.deadline, layers=len(self.setting.graph.compute_layers))
            self.best, self.deadline = plan.step_time_s, pace.deadline.earlier(pace.one_plan)
        stopped, misses, missed = "", 0, self.setting.gpus
        try:
            for seconds, near, part in self._by_promise():
                if misses >= MOST_MISSES_OF_FEWER and self.best < math.inf:
                    break
                if misses >= MOST_MISSES_OF_FEWER and part.gpus > missed / 2:
                    continue
                if seconds >= self.best and not self._is_faster(near, part, self.best):
                    continue
                other = asked(part, self.best)
                # what is asked for without an estimate has promised nothing
                if isinstance(other, InfeasibleError) and seconds > 0.0:
                    misses, missed = misses + 1, min(missed, part.gpus)
                if isinstance(other, Plan) and other.step_time_s < self.best:
                    self.best = other.step_time_s
                    plan = left_idle(other, self.setting.gpus - part.gpus, plan)
                elif isinstance(other, Plan) and isinstance(plan, Plan):
                    plan = bounded_by(plan, other)
        except KeyboardInterrupt:
            stopped = "interrupt"
        if self.deadline.passed:
            stopped = stopped or "time limit"
        if isinstance(plan, InfeasibleError) or not stopped:
            return plan
        search = replace(plan.search, stopped_by=stopped)
        return dataclasses.replace(plan, search=search)

    def none_fits(self, refused: ContradictionError) -> InfeasibleError | ContradictionError:
        """Why nothing was found where all GPUs have nothing that is as wished for."""
        if not self.left:
            return refused
        most, gpus = max(self.left), self.setting.gpus
        return InfeasibleError(
            f"no plan that fits was found, though it is not proven that there is none: none of the "
            f"ways to train on all {gpus} GPUs is as asked for, and on {most} or fewer none is "
            f"known to fit; ask for {most} to see what is short, or use more memory",
            missing_bytes=0.0,
            layer="",
            proven=False,
        )

    def _is_faster(self, near: Sequence[Choice], part: Setting, seconds: float) -> bool:
        """Whether any that is estimated to be about as fast is faster when it is simulated.

        Parameters
        ----------
        near, part
            As of `_promising`.
        seconds
            The best step so far. [s]
        """
        layers, work = len(part.graph.compute_layers), 0
        for choice in near:
            work += layers * choice.micro_batches
            if work > MOST_BESIDE and choice is not near[0]:
                break
            runtimes = [choice_runtime(searched_runtime(part), choice.zero)]
            if choice.zero > 2 and self.under_other is not None:
                runtimes.append(self.under_other.runtime)
            for runtime in runtimes:
                trial, _ = tried(part, choice.degrees, runtime)
                if trial is not None and trial.fits and trial.seconds < seconds:
                    return True
        return False

    def _by_promise(self) -> Iterator[Promise]:
        """The smaller numbers that may be faster, as of `_promising`.

        Those that others were expected to be faster than come back where these are not.
        """
        told = set[int]()
        for _ in range(0 if self.deadline.passed else MOST_TURNS):
            rows, expected = self._promising(self.best, told)
            for row in rows:
                if self.deadline.passed:
                    return
                told.add(row[2].gpus)
                yield row
            if not rows or self.best <= expected * (1.0 + MARGIN):
                return

    def _promising(self, seconds: float, told: Collection[int]) -> tuple[list[Promise], float]:
        """The smaller numbers that may be faster, the most promising first.

        Parameters
        ----------
        seconds
            The best step so far. [s]
        told
            Numbers that are no longer asked for.

        Returns
        -------
        What the fastest with each is estimated to take, or to take under a runtime of its own [s],
        those that are estimated to be about as fast, and the question for it; and what others must
        take less than for that. [s]
        """
        self.weights, known = LeastWeights(self.setting), seconds
        if not (self.floors.attends or self.wishes.kept_offload):
            self.least = LeastOfStages(self.setting)
        rows: list[Promise] = []
        for part in self._parts(seconds):
            if self.deadline.passed:
                break
            if part.gpus in told:
                continue
            near = self._expected(part, known)
            near = near if near and near[0].seconds <= seconds * (1.0 + MARGIN) else []
            least = min([self._usual(part), *(one.seconds for one in near)])
            if near or least < seconds:
                rows.append((least, _of_each_layout(near), part))
            # what others are estimated to take matters as far as estimates are off
            if near and near[0].memory <= part.cluster.device.memory:
                known = min(known, near[0].seconds * (1.0 + MARGIN))
        of_splits = self.by_splits.parts(self.setting, seconds)
        rows = [row for row in rows if row[2].gpus not in of_splits]
        rows += [(0.0, (), part) for gpus, part in of_splits.items() if gpus not in told]
        return sorted(rows, key=lambda row: row[0]), known

    def _allows(self, choice: Choice) -> bool:
        """Whether a choice is as wished for, and can be."""
        return self.wishes.allows(choice) and can_wait(choice)

    def _may_fit(self, choice: Choice) -> bool:
        """Whether a choice fits, as far as is known before its micro-batches are costed."""
        return self.weights.fit(choice) and (self.least is None or self.least.fit(choice))

    def _usual(self, part: Setting) -> float:
        """As `planner.joint.fewer_usual.fastest_usual`, of what fits as a whole. [s]"""
        if self.held / part.gpus > part.cluster.device.usable_memory:
            return math.inf
        attends = self.floors.attends
        return fastest_usual(part, self.setting, self.wishes, self.deadline, attends=attends)

    def _parts(self, seconds: float) -> Iterator[Setting]:
        """The question for every smaller number whose work alone does not take as long."""
        setting = self.setting
        work = least_work(setting) * setting.gpus
        for gpus in range(setting.gpus - 1, 0, -1):
            if work / gpus >= seconds:
                return
            if setting.cluster.can_use(gpus):
                yield on_gpus(setting, gpus)

    def _expected(self, part: Setting, limit: float) -> list[Estimate]:
        """What are estimated to be the fastest ways to train on fewer GPUs that fit.

        Parameters
        ----------
        part
            The question.
        limit
            Steps that take longer do not matter. [s]
        """
        estimates, floors = self.estimates.on(part), self.floors.on(part)
        # what is computed again changes neither the memory of weights nor the least computation
        # of numbers that samples cannot be shared out among, others are faster
        few = insides(part, ("none",), short=False)
        once = [one for one in few if not estimates.plain.splits.refuses(one)]
        every = with_variants(part, choices(part, once, (0,)))
        found = [one for one in every if estimates.cuts.are_possible(one.parts)]
        stages = stages_of_zero(part)
        if not floors.attends:
            floors.learn_of(found)
        # what is known of them costs less than all that they can be combined with
        most = limit * (1.0 + MOST_GAINED)
        quick = (one for one in found if estimates.known_least(one) <= most)
        below = [(floors.floor(one), one) for one in quick if floors.may_take(one, limit)]
        rows: list[tuple[float, Choice]] = []
        heavy: list[tuple[float, Choice]] = []
        for floor, alone in below:
            for each in with_any_sharding(alone, stages):
                one = self.wishes.as_kept(part, each)
                light = self._may_fit(one)
                if light or self.in_hosts:
                    others = filter(self._allows, with_any_recomputation(one, self.again))
                    (rows if light else heavy).extend((floor, other) for other in others)
        rows.sort(key=lambda row: row[0])
        if not (rows or heavy):
            return []
        self.left.add(part.gpus)
        ranking = Ranking(
            estimates=estimates,
            deadline=self.deadline,
            capacity=part.cluster.device.memory,
            limit=most,
            # what is slower than another by its passes alone is not the fastest
            margin=0.0,
        )
        if self.in_hosts:
            bounds = ChoiceBounds(setting=part, estimates=estimates, floors=floors)
            ranking.refutes, ranking.at_least = bounds.memory.refutes, bounds.with_hosts
        ranked, _ = ranking.of(rows, every=False)
        room = most_estimated(estimates)
        partly, hybrid = self.wishes.leaves_some_again, self.wishes.leaves_shards
        ranked = with_refinements(ranked, ranking, partly=partly, hybrid=hybrid, limit=most)
        if partly:
            full = (one for one in ranked if one.choice.inside.recompute == "full")
            near = next((one.choice for one in full if one.memory <= room), None)
            # a block less, which may fit although it is not estimated to, is looked at as well
            ranked += [] if near is None else one_fewer_again(estimates, near, room)
        if self.under_other is not None:
            other = self.under_other.on(on_gpus(self.under_other.setting, part.gpus))
            ranked = with_those_under_other(other, ranked)
        rivals = [one for one in ranked if one.memory <= room]
        if self.in_hosts and may_offload(part, self.wishes):
            ranked.sort(key=lambda one: one.seconds)
            waiting, _ = heavy_rows(part, [one for _, one in heavy], floors, self.deadline)
            ranked, _ = with_offload(ranking, ranked, waiting, self.deadline)
            rivals = [one for one in ranked if one.memory <= room]
        rivals.sort(key=lambda one: one.seconds)
        rivals = with_moved_blocks(estimates, rivals, limit, self.deadline)
        return [one for one in rivals if one.seconds <= rivals[0].seconds * (1.0 + MARGIN)]


def _of_each_layout(near: Iterable[Estimate]) -> list[Choice]:
    """The choices of estimates, the first of each layout before all others.

    Those alike are about as far off: another one tells more.
    """
    every = list(dict.fromkeys(one.choice for one in near))  # some have two, of two runtimes
    first = {one.layout: one for one in reversed(every)}
    return sorted(every, key=lambda one: first[one.layout] != one)
