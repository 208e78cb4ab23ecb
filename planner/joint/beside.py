"""Ways to train that may be faster than the splits of one stage, where memory does not bind.

Networks without attention are searched layer by layer then. Stages, micro-batches and sharding are
for where memory is short; yet a pipeline may be a little faster where launches of operations bind.
Ways to train whose floor is below the step of the splits are estimated, and the best simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import Choice, choices, insides
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate, Estimates
from planner.joint.pace import Pace
from planner.joint.ranking import MARGIN, MEMORY_MARGIN, PROMISING, Ranking
from planner.joint.result import JointResult
from planner.joint.runtimes import choice_runtime, searched_runtime, stages_of_zero
from planner.plan import Plan
from planner.planning.staged import StagedStep, tried
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Simulations of a question: the first ones nearly always hold the best one. [items]
MOST_SIMULATED = 3
# The usual strategy that cuts filters as tensor parallelism does, in all layers.
CUTS_FILTERS = "data+filter"


@dataclass(slots=True, kw_only=True, eq=False)
class BesideSplits:
    """The search beside the plan of one stage, which fits.

    Parameters
    ----------
    setting, deadline
        The question, and when to stop.
    single
        The plan.
    """

    setting: Setting
    deadline: Deadline
    single: Plan
    estimates: Estimates = field(init=False)
    floors: PipelineBounds = field(init=False)
    simulated: dict[Choice, StagedStep | None] = field(default_factory=dict)
    num_choices: int = 0

    def run(self) -> JointResult:
        """Estimate what may be faster than the plan, and simulate the best of it.

        The bound is of all ways to train but the splits of one stage; it is no more than the step
        of the plan.
        """
        limit, stopped, left_out = self.single.step_time_s, "", list[str]()
        bound = 0.0
        try:
            self.estimates = Estimates(self.setting, searched_runtime(self.setting))
            self.floors = PipelineBounds(self.setting, self.estimates.plain.reduced)
            rows = self._rows(limit)
            bound = min((floor for floor, _ in rows), default=limit)
            ranking = Ranking(
                estimates=self.estimates,
                deadline=self.deadline,
                capacity=self.setting.cluster.device.memory,
                limit=limit,
                left_out=left_out,
            )
            ranked, left = ranking.of(rows, every=False)
            bounds = ChoiceBounds(
                setting=self.setting, estimates=self.estimates, floors=self.floors
            )
            least = {one.choice: bounds.of(one.choice) for one in ranked}
            self._simulate([one for one in ranked if least[one.choice] < limit])
            waiting = (floor for choice, floor in least.items() if choice not in self.simulated)
            known = (one.seconds for one in self._fitting())
            bound = min(limit, left, *waiting, *known)
        except KeyboardInterrupt:
            stopped = "interrupt"
        if self.deadline.passed and not stopped:
            stopped = "time limit"
        best = min(self._fitting(), key=lambda one: one.seconds, default=None)
        return JointResult(
            best=best,
            simulated=tuple(one for one in self.simulated.values() if one is not None),
            bound=bound,
            single_bound=self.single.search.lower_bound_s,
            num_choices=self.num_choices,
            num_wished=self.num_choices,
            left_out=tuple(dict.fromkeys(left_out)),
            stopped_by=stopped,
        )

    def _rows(self, limit: float) -> list[tuple[float, Choice]]:
        """Ways to train whose floor is below the plan's step, the least first. [s]

        Parameters
        ----------
        limit
            The step. [s]
        """
        rows = []
        cuts_filters = self._cuts_filters(limit)
        ways = [one for one in insides(self.setting) if one.tp == 1 or cuts_filters]
        found = sorted(
            choices(self.setting, ways, stages_of_zero(self.setting)),
            key=lambda choice: -choice.samples,
        )
        for choice in found:
            self.num_choices += 1
            whole = choice.parts == choice.micro_batches == 1
            # nothing is gained by computing again what fits, nor are splits new without sharding
            if whole and (choice.inside.recompute != "none" or choice.is_split_alone):
                continue
            floor = 0.0 if self.deadline.passed else self.floors.floor(choice)
            if whole and choice.inside.tp == 1:
                floor += self._gathered(choice)
            if floor < limit:
                rows.append((floor, choice))
        return sorted(rows, key=lambda row: row[0])

    def _cuts_filters(self, limit: float) -> bool:
        """Whether filters cut in every layer come near the plan, as a usual strategy has them."""
        known = {one.name: one.step_time_s for one in self.single.baselines if one.step_time_s}
        return known.get(CUTS_FILTERS, 0.0) < PROMISING * limit

    def _gathered(self, choice: Choice) -> float:
        """What weights take that are gathered once the update of their parts is through. [s]"""
        if choice.zero not in (1, 2):
            return 0.0
        setting = self.setting
        whole = float(setting.graph.parameters) * setting.machine.training.activation_size
        nowhere = tuple(1 for _ in setting.machine.topology.shape)
        return self.estimates.exchanges.time("all_gather", choice.pp, nowhere, whole)

    def _simulate(self, ranked: list[Estimate]) -> None:
        """Simulate the fastest estimates that may fit, until none promises to be better.

        Parameters
        ----------
        ranked
            Estimates whose bounds are below the plan's step, the fastest first.
        """
        capacity = self.setting.cluster.device.memory * (1.0 + MEMORY_MARGIN)
        pace = Pace(deadline=self.deadline, layers=len(self.setting.graph.compute_layers))
        for one in ranked:
            fitting = (other.seconds for other in self._fitting())
            best = min([self.single.step_time_s, *fitting])
            enough = len(self.simulated) == MOST_SIMULATED
            if enough or one.seconds > best * (1.0 + MARGIN) or not pace.allows(one.choice):
                return
            if one.memory <= capacity:
                runtime = choice_runtime(self.estimates.runtime, one.choice.zero)
                with pace.measured(one.choice):
                    found, _ = tried(self.setting, one.choice.degrees, runtime)
                self.simulated[one.choice] = found

    def _fitting(self) -> list[StagedStep]:
        """What was simulated and fits."""
        return [one for one in self.simulated.values() if one is not None and one.fits]
