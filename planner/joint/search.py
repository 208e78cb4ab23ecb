"""The search over all global choices: estimate every one, simulate the most promising, bound all.

Each choice is taken with the splits of its degrees of parallelism. Estimates say which to simulate;
what a plan states is simulated, and its bound holds for every split under every choice.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from costmodels.simulation import Runtime
from costmodels.simulation.host_links import host_of
from costmodels.strategy.blocks import is_transformer
from planner.errors import ContradictionError
from planner.joint.activations import LeastOfStages, least_of_heavy
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import Choice, choices
from planner.joint.computation import PipelineBounds
from planner.joint.contradiction import contradiction, leaves_nothing
from planner.joint.estimate import Estimate, Estimates
from planner.joint.fewer_again import of_replicas
from planner.joint.forward_first import bound_of_all_orders, run_forward_first
from planner.joint.known_splits import NO_SPLITS, KnownSplits
from planner.joint.misfits import Misfits
from planner.joint.offload import can_wait
from planner.joint.offloading import heavy_rows, may_offload, with_offload
from planner.joint.pace import Pace
from planner.joint.ranking import MARGIN, PASSED_OVER, Ranking, Rows
from planner.joint.refined import with_refinements
from planner.joint.result import JointResult, estimates_like
from planner.joint.runtimes import stages_of_zero
from planner.joint.shifted import cut_otherwise, shift_blocks
from planner.joint.simulations import Simulations
from planner.joint.smallest import run_smallest
from planner.joint.variants import is_variant, lacked, with_variants
from planner.joint.ways_inside import insides
from planner.joint.weights import LeastWeights
from planner.joint.wishes import NO_WISHES, Wishes
from planner.planning.options import SearchOptions
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Parts of the time left that may go into bounds, and then into estimates.
BOUND_SHARE, ESTIMATE_SHARE = 0.3, 0.5
# Estimates that were cut short go on where more than that of the time is left after simulations.
MORE_WORTH = 0.2
# Where none of what is simulated fits, others are estimated and simulated so often. [times]
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
    passes_over
        Whether what is slower than others by its passes alone is not estimated in full.
    splits
        Splits of one stage that are known: others matter where they are faster.
    like
        What the same question came to on another number of GPUs: what that costed is known here.
    under_another
        What the same question came to under another runtime: what passes take is known there.
    unlisted
        What choices take at least that there was no time to list. [s]
    """

    setting: Setting
    runtime: Runtime
    options: SearchOptions
    deadline: Deadline
    wishes: Wishes = NO_WISHES
    passes_over: bool = True
    splits: KnownSplits = NO_SPLITS
    like: JointResult | None = None
    under_another: JointResult | None = None
    left_out: list[str] = field(default_factory=list)
    num_choices: int = 0
    num_wished: int = 0
    heavy: list[Choice] = field(default_factory=list)
    refused: ContradictionError | None = None
    cut_short: bool = False
    unlisted: float = math.inf
    ranked: list[Estimate] = field(default_factory=list)
    least: LeastOfStages | None = None
    estimates: Estimates = field(init=False)
    floors: PipelineBounds = field(init=False)
    pace: Pace = field(init=False)
    simulations: Simulations = field(init=False)

    def run(self) -> JointResult:
        """Estimate all choices, and simulate the best."""
        return self._result(simulates=True)

    def look(self) -> JointResult:
        """Estimate all choices, those that cannot be the fastest as well."""
        return self._result(simulates=False)

    def _result(self, *, simulates: bool) -> JointResult:
        """Search as far as is asked for.

        Parameters
        ----------
        simulates
            Whether the best are simulated, else all choices are estimated.
        """
        self.pace = Pace(deadline=self.deadline, layers=len(self.setting.graph.compute_layers))
        self.estimates = estimates_like(
            self.setting, self.runtime, like=self.like, under_another=self.under_another
        )
        if not is_transformer(self.setting.graph) and not self.wishes.kept_offload:
            self.least = LeastOfStages(self.setting)
        self.simulations = simulations = Simulations(
            setting=self.setting,
            runtime=self.runtime,
            options=self.options,
            estimates=self.estimates,
            pace=self.pace,
            offloads=may_offload(self.setting, self.wishes),
            left_out=self.left_out,
            splits=self.splits,
            misfits=Misfits(setting=self.setting, least=self.least),
        )
        bounds, floors = self._bounds(), self.floors
        # where the best is known, there is nothing to allow for but what estimates are off
        margin = MARGIN if self.splits.any else PASSED_OVER
        single, anyhow, bound, stopped = 0.0, 0.0, 0.0, ""
        passed: list[Choice] = []
        try:
            early = self.deadline.part(BOUND_SHARE)
            rows = self._floors(floors, early)
            bound = min((floor for floor, _ in rows), default=math.inf)
            if not self.splits.any:
                anyhow, single = floors.least(early), floors.of(1, 1, 1)
            rows = self.splits.others(rows, floors)
            ranking = Ranking(
                estimates=self.estimates,
                deadline=self.pace.before_one.part(ESTIMATE_SHARE),
                capacity=self.setting.cluster.device.memory,
                margin=margin if self.passes_over else math.inf,
                left_out=self.left_out,
            )
            if simulations.offloads:
                ranking.refutes, ranking.at_least = bounds.memory.refutes, bounds.with_hosts
            if simulates:
                left, passed = self._simulate(ranking, rows, bounds, bound)
                rival = simulations.rival < math.inf  # else nothing is known of single choices
                bound = simulations.prove(self.ranked, passed, left, bounds) if rival else anyhow
                bound = bound_of_all_orders(simulations, bound, floors, early)
                limit = self.options.limit if simulations.best is not None else math.inf
                bound = min([bound, *simulations.fitting.values(), limit])
            else:
                plain = [row for row in rows if not is_variant(row[1])]
                self.ranked, left = ranking.of(plain or rows, every=True)
                bound = min([left, self.unlisted, *(bounds.of(one.choice) for one in self.ranked)])
            self.cut_short |= ranking.cut_short
            looked = self.ranked or passed or simulations.tried or self.cut_short
            if self.wishes.any and self.left_out and not looked:
                why = f"{self.left_out[0].split(';')[0]}; keep something else"
                self.refused = leaves_nothing(self.setting, self.num_choices, why)
        except KeyboardInterrupt:
            stopped = "interrupt"
        if (self.deadline.passed or self.cut_short or simulations.cut_short) and not stopped:
            stopped = "time limit"
        return JointResult(
            best=simulations.best,
            simulated=tuple(simulations.simulated),
            misfits=tuple(simulations.misfits.short.values()),
            bound=bound,
            any_split=anyhow,
            runtime=None if self.setting.asked_runtime is None else self.runtime.name,
            single_bound=single,
            num_choices=self.num_choices,
            num_wished=self.num_wished,
            heavy=tuple(self.heavy),
            under=(self.runtime.name,),
            estimates=tuple(self.ranked),
            passed=tuple(passed),
            costs=self.estimates,
            floors=self.floors,
            offloads=simulates and (simulations.offloads or bool(self.wishes.kept_offload)),
            left_out=tuple(dict.fromkeys(self.left_out)),
            stopped_by=stopped,
            refused=self.refused,
        )

    def _bounds(self) -> ChoiceBounds:
        """Bounds of choices."""
        apart = self.wishes.leaves_bubbles and "zero-bubble" not in lacked(self.setting)
        reduced = self.estimates.plain.reduced
        same = self.like or self.under_another
        known = None if same is None else same.floors
        self.floors = (
            PipelineBounds(self.setting, reduced, fills_bubbles=apart)
            if known is None
            else known.on(self.setting)
        )
        return ChoiceBounds(
            setting=self.setting,
            estimates=self.estimates,
            floors=self.floors,
            partly=self.wishes.leaves_some_again,
            hybrid=self.wishes.leaves_shards,
        )

    def _simulate(
        self, ranking: Ranking, rows: Rows, bounds: ChoiceBounds, bound: float
    ) -> tuple[float, list[Choice]]:
        """Estimate choices and simulate the best, again where what was expected to fit does not.

        Parameters
        ----------
        ranking, bounds
            Of choices.
        rows
            Those that fit by their weights, by what no step of them takes less than. [s]
        bound
            What no choice takes less than. [s]

        Returns
        -------
        What all take at least that are neither estimated nor passed over, and the latter. [s]
        """
        simulations = self.simulations
        # what is estimated to be slower is not simulated
        margin = MARGIN if self.passes_over else math.inf
        plain = [row for row in rows if not is_variant(row[1])]
        variants = [row for row in rows if is_variant(row[1])]
        refine = partial(
            with_refinements, ranking=ranking, partly=bounds.partly, hybrid=bounds.hybrid
        )
        for turn in range(1, MOST_ROUNDS + 1):
            last, before = turn == MOST_ROUNDS and simulations.best is None, self.deadline.remaining
            ranking.limit = self.splits.seconds
            if bounds.partly and not self.splits.any:
                ranking.limit = of_replicas(self.estimates, rows, ranking.refuted)
            found, left = ranking.of(plain, every=last)
            found = refine(found, deadline=(until := self.pace.before_one.part(ESTIMATE_SHARE)))
            # they take no places of the others, and are compared with all of them
            count = len(found)
            left = min(left, self.unlisted, ranking.add(variants, found, every=last, margin=margin))
            best = min(
                (one.seconds for one in found[:count] if ranking.fits(one)), default=math.inf
            )
            found[count:] = refine(found[count:], limit=best, deadline=until)
            self.ranked = sorted(found, key=lambda one: one.seconds)
            if simulations.rival == math.inf and self._is_refuted(rows, left, bounds):
                return left, []
            if simulations.offloads:
                heavy, unseen = heavy_rows(
                    self.setting, self.heavy, bounds.floors, ranking.deadline
                )
                ranking.cut_short |= unseen < math.inf
                until = self.pace.before_one.part(ESTIMATE_SHARE)
                self.ranked, least = with_offload(ranking, self.ranked, heavy, until)
                left = min(left, least, unseen)
            simulations.run(self.ranked, bound, partly=bounds.partly)
            self.ranked = cut_otherwise(simulations, self.ranked, bound, partly=bounds.partly)
            missed = simulations.refuted(self.ranked) - ranking.refuted
            ranking.refuted |= missed
            if simulations.offloads:
                self._offload(ranking, missed, bound)
            others = min(left, ranking.left_without(missed))
            if ranking.cut_short and self._has_more(turn, before):
                ranking.deadline, ranking.cut_short = self.deadline.part(ESTIMATE_SHARE), False
                continue
            if not missed or others >= simulations.rival or ranking.cut_short:
                break
        if simulations.rival == math.inf:
            run_smallest(simulations, self.ranked, bound)
        simulations.run_untried(self.ranked, bound)
        shift_blocks(simulations, self.ranked, bound)
        run_forward_first(simulations, self.ranked, bound, self.wishes.allows)
        return left, ranking.unseen

    def _has_more(self, turn: int, before: float) -> bool:
        """Whether simulations took less time than was left to them, of what there was before."""
        return turn < MOST_ROUNDS and self.deadline.remaining > MORE_WORTH * before

    def _offload(self, ranking: Ranking, missed: AbstractSet[Choice], bound: float) -> None:
        """Simulate what does not fit although it was expected to with some of it in the hosts.

        Parameters
        ----------
        ranking, missed, bound
            Of choices, what does not fit, and what no choice takes less than. [s]
        """
        limit = self.simulations.rival
        alike = [one for one in self.ranked if one.choice in missed and one.seconds < limit]
        rows, _ = with_offload(ranking, alike, [])
        more = [one for one in rows if one not in self.ranked and one.seconds < limit]
        self.ranked = sorted([*self.ranked, *more], key=lambda one: one.seconds)
        self.simulations.run(more, bound, partly=False)

    def _is_refuted(self, rows: Rows, left: float, bounds: ChoiceBounds) -> bool:
        """Whether every choice is known to hold more than a device has.

        Parameters
        ----------
        rows, bounds
            As of `_simulate`.
        left
            What choices take at least that are not estimated. [s]
        """
        device = self.setting.cluster.device
        offloads = may_offload(self.setting, self.wishes) or bool(self.wishes.kept_offload)
        if offloads or left < math.inf or any(one.memory <= device.memory for one in self.ranked):
            return False
        least = least_of_heavy(self.setting, self.heavy, self.least)
        least += bounds.memory.of_all(choice for _, choice in rows)
        return min(least, default=0.0) > device.memory

    def _floors(self, floors: PipelineBounds, deadline: Deadline) -> list[tuple[float, Choice]]:
        """All choices whose weights fit, with what no step of them takes less than, by that.

        That is 0 after the deadline, and what there is no time to list is not among them.
        """
        fitting: list[Choice] = []
        weights, listed = LeastWeights(self.setting), self.pace.before_one
        if self.wishes.kept_offload:
            host_of(self.setting.cluster)
        zero, cuts = stages_of_zero(self.setting), self.estimates.cuts
        every: list[Choice] = []
        inside = list(insides(self.setting, kept_tp=self.wishes.kept_tp))
        for choice in with_variants(self.setting, choices(self.setting, inside, zero)):
            if not cuts.are_possible(choice.parts):
                continue
            if fitting and listed.passed:
                self.cut_short, self.unlisted = True, 0.0
                break
            every.append(choice)
            choice = self.wishes.as_kept(self.setting, choice)
            if self.wishes.allows(choice) and can_wait(choice):
                self.num_wished += 1
                fits = weights.fit(choice) and (self.least is None or self.least.fit(choice))
                (fitting if fits else self.heavy).append(choice)
        self.num_choices += len(every)
        if self.wishes.any and every and not self.num_wished and not self.cut_short:
            self.refused = contradiction(self.setting, self.wishes, every)
        if not (floors.attends or deadline.passed):
            floors.learn_of(fitting)
        rows = [(0.0 if deadline.passed else floors.floor(one), one) for one in fitting]
        return sorted(rows, key=lambda row: row[0])
