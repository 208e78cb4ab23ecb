"""The search over all global choices: estimate every one, simulate the most promising, bound all.

Each choice is taken with the splits of its degrees of parallelism. Estimates say which to simulate;
what a plan states is simulated, and its bound holds for every split under every choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from costmodels.errors import InputError
from costmodels.simulation import Runtime
from costmodels.simulation.host_links import host_of
from costmodels.strategy.blocks import is_transformer
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import Choice, choices, insides
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate, Estimates
from planner.joint.fewer_again import one_fewer_again, with_fewer_again
from planner.joint.offload import can_wait
from planner.joint.offloading import heavy_rows, with_offload
from planner.joint.pace import Pace
from planner.joint.ranking import MARGIN, MEMORY_MARGIN, Ranking
from planner.joint.result import JointResult
from planner.joint.runtimes import choice_runtime, stages_of_zero
from planner.joint.weights import LeastWeights
from planner.joint.wishes import NO_WISHES, Wishes
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep, tried
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Parts of the time left that may go into bounds, and then into estimates.
BOUND_SHARE, ESTIMATE_SHARE = 0.3, 0.5
# Simulations of a question: the first ones nearly always hold the best one. [items]
MOST_SIMULATED = 3
# Layers, once for each micro-batch that is laid out by itself, that are simulated to prove that
# nothing is faster, and to compare the best with others that are estimated to be as fast. [items]
MOST_WORK, MOST_COMPARED = 6_000, 40_000
# What is slower than the best by more is not faster with a block less computed again. [times]
PROMISING_AGAIN = 1.2
# Of the fastest, and then of the smallest: so many are simulated until one fits. [items]
MOST_MISSES = 8
# Where none of them does, others are estimated and simulated so often. [times]
MOST_ROUNDS = 4


@dataclass(slots=True, kw_only=True, eq=False)
class JointSearch:
    """The search for one question.

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which steps are simulated.
    options
        How to search.
    deadline
        When to stop with the best so far.
    wishes
        What is held fixed or ruled out.
    """

    setting: Setting
    runtime: Runtime
    options: SearchOptions
    deadline: Deadline
    wishes: Wishes = NO_WISHES
    simulated: list[StagedStep] = field(default_factory=list)
    best: StagedStep | None = None
    left_out: list[str] = field(default_factory=list)
    num_choices: int = 0
    num_wished: int = 0
    tried: set[Choice] = field(default_factory=set)
    fitting: set[Choice] = field(default_factory=set)
    heavy: list[Choice] = field(default_factory=list)
    cut_short: bool = False
    estimates: Estimates = field(init=False)
    pace: Pace = field(init=False)

    def run(self) -> JointResult:
        """Estimate all choices, and simulate the best."""
        return self._result(simulates=True, every=False)

    def look(self) -> JointResult:
        """Estimate all choices, those that cannot be the fastest as well."""
        return self._result(simulates=False, every=True)

    def _result(self, *, simulates: bool, every: bool) -> JointResult:
        """Search as far as is asked for.

        Parameters
        ----------
        simulates
            Whether the best are simulated.
        every
            Whether all choices are estimated.
        """
        self.pace = Pace(deadline=self.deadline, layers=len(self.setting.graph.compute_layers))
        self.estimates = Estimates(self.setting, self.runtime)
        floors = PipelineBounds(self.setting, self.estimates.plain.reduced)
        partly = self.wishes.leaves_some_again and bool(self.estimates.cuts.first)
        bounds = ChoiceBounds(
            setting=self.setting, estimates=self.estimates, floors=floors, partly=partly
        )
        single, anyhow, bound, left, stopped = 0.0, 0.0, 0.0, math.inf, ""
        ranked: list[Estimate] = []
        try:
            early = self.deadline.part(BOUND_SHARE)
            rows = self._floors(floors, early)
            bound = min((floor for floor, _ in rows), default=math.inf)
            anyhow, single = floors.least(early), floors.of(1, 1, 1)
            ranking = Ranking(
                estimates=self.estimates,
                deadline=self.deadline.part(ESTIMATE_SHARE),
                capacity=self.setting.cluster.device.memory,
                left_out=self.left_out,
            )
            # transformers are asked for fewer GPUs as well
            attends = is_transformer(self.setting.graph)
            for _ in range(1 if attends else MOST_ROUNDS):
                ranked, left = ranking.of(rows, every)
                if not simulates:
                    break
                if partly:
                    ranked = with_fewer_again(self.estimates, ranked)
                if self._offloads:
                    heavy = heavy_rows(self.setting, self.heavy, floors, ranking.deadline)
                    ranked, least = with_offload(ranking, ranked, heavy)
                    left = min(left, least)
                self._simulate(ranked, bound)
                if self.best is not None or left == math.inf or ranking.cut_short:
                    break
                # what was expected to fit does not: what is slower is estimated as well
                ranking.refuted.update(self.tried)
            self.cut_short |= ranking.cut_short
            if simulates:
                if partly:
                    self._compute_fewer_again(ranked, bound)
                bound = self._prove(ranked, left, bounds)
                bound = bound if self.best is None else min(bound, self.best.seconds)
            else:
                bound = min(left, min((bounds.of(one.choice) for one in ranked), default=left))
        except KeyboardInterrupt:
            stopped = "interrupt"
        if (self.deadline.passed or self.cut_short) and not stopped:
            stopped = "time limit"
        asked = self.setting.asked_runtime
        return JointResult(
            best=self.best,
            simulated=tuple(self.simulated),
            bound=bound,
            any_split=anyhow,
            runtime=None if asked is None else asked.name,
            single_bound=single,
            num_choices=self.num_choices,
            num_wished=self.num_wished,
            estimates=tuple(ranked),
            costs=self.estimates,
            offloads=simulates and (self._offloads or bool(self.wishes.kept_offload)),
            left_out=tuple(dict.fromkeys(self.left_out)),
            stopped_by=stopped,
        )

    @property
    def _offloads(self) -> bool:
        """Whether what does not fit may wait in the memory of the hosts."""
        cluster = self.setting.cluster
        known = cluster.host is not None and not cluster.groups
        # images leave much to copy for what they compute
        known = known and is_transformer(self.setting.graph)
        return known and self.wishes.framework is None and self.wishes.kept_offload is None

    def _floors(self, floors: PipelineBounds, deadline: Deadline) -> list[tuple[float, Choice]]:
        """All choices whose weights fit, with what no step of them takes less than, by that.

        Parameters
        ----------
        floors
            Knows it.
        deadline
            After which a choice gets 0.

        Raises
        ------
        InputError
            When what is held fixed and ruled out leaves nothing.
        """
        fitting: list[Choice] = []
        weights = LeastWeights(self.setting)
        kept = self.wishes.kept_offload
        if kept:
            host_of(self.setting.cluster)
        zero, cuts = stages_of_zero(self.setting), self.estimates.cuts
        for choice in choices(self.setting, list(insides(self.setting)), zero):
            if not cuts.are_possible(choice.parts):
                continue
            self.num_choices += 1
            if kept:
                choice = replace(choice, offload=kept)
            if self.wishes.allows(choice) and can_wait(choice):
                self.num_wished += 1
                (fitting if weights.fit(choice) else self.heavy).append(choice)
        if self.wishes.any and not self.num_wished:
            model, gpus, batch = self.setting.model.name, self.setting.gpus, self.setting.batch
            raise InputError(
                f"what is kept and forbidden must leave something of the {self.num_choices:,} ways "
                f"to train {model} on {gpus} GPUs with a batch of {batch} but leaves nothing; keep "
                "or forbid less"
            )
        # what a part of some samples takes comes with what all of them take
        known = {
            choice: 0.0 if deadline.passed else floors.floor(choice)
            for choice in sorted(fitting, key=lambda choice: -choice.samples)
        }
        return sorted(((known[choice], choice) for choice in fitting), key=lambda row: row[0])

    def _simulate(self, ranked: list[Estimate], bound: float) -> None:
        """Simulate the fastest estimates that may fit, until none promises to be better."""
        capacity = self.setting.cluster.device.memory
        timely = self.pace.timely(ranked, capacity)
        self.cut_short |= timely[:1] != ranked[:1]
        timely = [one for one in timely if one.choice not in self.tried]
        fitting = [one for one in timely if one.memory <= capacity * (1.0 + MEMORY_MARGIN)]
        # where what may fit does not, what is expected to fit, and what holds the least, may do
        surely = [one for one in fitting if one.memory <= capacity][:MOST_MISSES]
        smallest = sorted(timely, key=lambda one: (one.memory, one.seconds))[:MOST_MISSES]
        work, count = 0, 0
        for one in [*fitting[:MOST_MISSES], *surely, *smallest]:
            best = math.inf if self.best is None else self.best.seconds
            if one.seconds > best * (1.0 + MARGIN):
                break
            if one.choice in self.tried or not self.fitting.isdisjoint(one.choice.less_again()):
                continue
            if self.simulated and not self._has_time(one.choice):
                continue
            work += self.pace.work(one.choice)
            enough = count >= MOST_SIMULATED or work > MOST_COMPARED
            if enough and one.seconds > best * (1.0 - MARGIN):
                break
            self._try(one.choice, bound)
            count += 1

    def _compute_fewer_again(self, ranked: Sequence[Estimate], bound: float) -> None:
        """Simulate what computes a block less again than is estimated to fit, as far as is cheap.

        Estimates of memory are not exact, and what fits by a little is found by simulation alone.
        """
        if self.best is None:
            return
        most = self.setting.cluster.device.memory * (1.0 + MEMORY_MARGIN)
        near = [
            one.choice
            for one in ranked
            if one.choice.inside.recompute == "full"
            and one.memory <= most
            and one.seconds < self.best.seconds * PROMISING_AGAIN
        ]
        rows = [one for choice in near for one in one_fewer_again(self.estimates, choice)]
        work = 0
        for one in sorted(rows, key=lambda row: row.seconds):
            work += self.pace.work(one.choice)
            enough = work > MOST_WORK or one.seconds >= self.best.seconds
            if enough or not self._has_time(one.choice):
                return
            if one.memory <= most:
                self._try(one.choice, bound)

    def _has_time(self, choice: Choice) -> bool:
        """Whether there is time to simulate a choice."""
        self.cut_short |= not (allowed := self.pace.allows(choice))
        return allowed

    def _prove(self, ranked: Sequence[Estimate], left: float, bounds: ChoiceBounds) -> float:
        """Simulate what may still be faster, those with the least bound first, as far as is cheap.

        Parameters
        ----------
        ranked
            What was estimated.
        left
            What no other choice takes less than. [s]
        bounds
            Of choices.

        Returns
        -------
        What no choice that fits takes less than. [s]
        """
        if self.best is None:
            return 0.0  # there is no plan to bound
        fastest = self.best.seconds
        rows: list[tuple[float, float, Choice]] = []
        beside: set[Choice] = set()  # that are bounded with what they are without offload
        for one in sorted(ranked, key=lambda one: len(one.choice.offload)):
            self.cut_short |= self.deadline.passed
            if self.deadline.passed:
                return 0.0
            if not one.choice.again and one.choice not in beside:
                rows.append((bounds.of(one.choice), one.seconds, one.choice))
                if self._may_offload(one):
                    others = bounds.offloaded(one.choice, fastest)
                    rows += [(least, one.seconds, other) for least, other in others]
                    beside.update(other for _, other in others)
        rows = sorted((row for row in rows if row[0] < fastest), key=lambda row: row[:2])
        work = 0
        for place, (least, _, choice) in enumerate(rows):
            fastest = self.best.seconds
            if least >= fastest:
                return min(left, least)
            members = [other for other in bounds.members(choice) if other not in self.tried]
            if not members:
                continue
            work += self.pace.work(choice) * len(members)
            if work > MOST_WORK or not all(map(self._has_time, members)):
                rest = (row[0] for row in rows[place:] if not self._is_tried(row[2], bounds))
                return min(left, fastest, *rest)
            for other in members:
                self._try(other, min(left, least))
        return left

    def _may_offload(self, one: Estimate) -> bool:
        """Whether some of a choice may have to wait in the memory of the hosts for it to fit."""
        least = self.setting.cluster.device.memory * (1.0 - MEMORY_MARGIN)
        fits = one.memory <= least or one.choice in self.fitting
        return self._offloads and not one.choice.offload and not fits

    def _is_tried(self, choice: Choice, bounds: ChoiceBounds) -> bool:
        """Whether all that a bound is of was simulated."""
        return self.tried.issuperset(bounds.members(choice))

    def _try(self, choice: Choice, bound: float) -> None:
        """Simulate a choice; keep it where it is the best that fits."""
        if choice in self.tried:
            return
        self.tried.add(choice)
        runtime = choice_runtime(self.runtime, choice.zero)
        with self.pace.measured(choice):
            found, reason = tried(self.setting, choice.degrees, runtime)
        if found is None:
            self.left_out.append(reason)
            return
        self.simulated.append(found)
        if found.fits:
            self.fitting.add(choice)
        if found.fits and (self.best is None or found.seconds < self.best.seconds):
            self.best = found
            self.options.tell("simulating", found.seconds, bound)
