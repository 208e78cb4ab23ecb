"""The search over all global choices: estimate every one, simulate the most promising, bound all.

Each choice is taken with the splits of its degrees of parallelism. Estimates say which to simulate;
what a plan states is simulated, and its bound holds for every split under every choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from costmodels.errors import InputError
from costmodels.simulation import Runtime, load_runtime
from planner.joint.bounds import PipelineBounds
from planner.joint.choices import Choice, choices, insides
from planner.joint.estimate import Estimate, Estimates
from planner.joint.inside import Insides
from planner.joint.wishes import NO_WISHES, Wishes
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep, tried
from planner.request.parts import Degrees
from planner.request.setting import Setting
from search.problem.deadline import Deadline

# Parts of the time left that may go into bounds, and then into estimates.
BOUND_SHARE, ESTIMATE_SHARE = 0.3, 0.5
# Estimates and simulations differ by a few percent: what is estimated to be slower than the best
# simulated step by more than this is not simulated.
MARGIN = 0.03
# Simulations of a question: the first ones nearly always hold the best one. [items]
MOST_SIMULATED = 3
# How far the estimate of memory may be above the memory of a device. The simulation decides.
MEMORY_MARGIN = 0.03
# Of the fastest, and then of the smallest: so many are simulated until one fits. [items]
MOST_MISSES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointResult:
    """What a joint search came to.

    Parameters
    ----------
    best
        The fastest strategy that fits, None where none was found.
    simulated
        All strategies that were simulated.
    bound
        What no step takes less than. [s]
    single_bound
        What no step of one stage and one micro-batch takes less than. [s]
    num_choices, num_wished
        Global choices there are, and those as wished for. [items]
    estimates
        Of those that can be among the best, the fastest first.
    left_out
        Why ways of parallelism were left out that do not fit the network.
    stopped_by
        What cut the search short.
    """

    best: StagedStep | None
    simulated: tuple[StagedStep, ...]
    bound: float
    single_bound: float
    num_choices: int
    num_wished: int
    estimates: tuple[Estimate, ...] = ()
    left_out: tuple[str, ...] = ()
    stopped_by: str = ""


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
    cut_short: bool = False

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
        made = Insides(self.setting, self.runtime)
        bounds = PipelineBounds(self.setting, made.reduced)
        bound, single, stopped, ranked = 0.0, 0.0, "", list[Estimate]()
        try:
            early = self.deadline.part(BOUND_SHARE)
            groups = self._groups(bounds, early)
            wished = groups[0][0] if groups else math.inf
            bound = wished if self.wishes.any else bounds.least(early)
            single = bounds.of(1, 1, 1)
            ranked = self._estimated(Estimates(self.setting, self.runtime, made), groups, every)
            if simulates:
                self._simulate(ranked, bound)
        except KeyboardInterrupt:
            stopped = "interrupt"
        if (self.deadline.passed or self.cut_short) and not stopped:
            stopped = "time limit"
        return JointResult(
            best=self.best,
            simulated=tuple(self.simulated),
            bound=bound,
            single_bound=single,
            num_choices=self.num_choices,
            num_wished=self.num_wished,
            estimates=tuple(ranked),
            left_out=tuple(dict.fromkeys(self.left_out)),
            stopped_by=stopped,
        )

    def _estimated(
        self, estimates: Estimates, groups: Sequence[tuple[float, list[Choice]]], every: bool
    ) -> list[Estimate]:
        """Estimates of choices, the fastest first.

        Parameters
        ----------
        estimates
            Makes them.
        groups
            Choices with what no step of them takes less than. [s]
        every
            Whether also of those that cannot be the fastest.
        """
        found, refused = list[Estimate](), set[Degrees]()
        capacity = self.setting.cluster.device.memory
        best = math.inf
        deadline = self.deadline.part(ESTIMATE_SHARE)
        for least, group in groups:
            self.cut_short |= deadline.passed
            if (deadline.passed and found) or (least > best * (1.0 + MARGIN) and not every):
                break
            for choice in group:
                if choice.inside in refused:
                    continue
                if deadline.passed and found:
                    break
                try:
                    one = estimates.of(choice)
                except InputError as error:
                    refused.add(choice.inside)
                    self.left_out.append(str(error))
                    continue
                found.append(one)
                if one.memory <= capacity:
                    best = min(best, one.seconds)
        return sorted(found, key=lambda one: one.seconds)

    def _groups(
        self, bounds: PipelineBounds, deadline: Deadline
    ) -> list[tuple[float, list[Choice]]]:
        """All choices with the same bound, those with the least one first.

        Parameters
        ----------
        bounds
            What no step takes less than.
        deadline
            After which a group gets 0 for a bound.

        Raises
        ------
        InputError
            When what is held fixed and ruled out leaves nothing.
        """
        groups: dict[tuple[int, int, int], list[Choice]] = {}
        for choice in choices(self.setting, list(insides(self.setting))):
            self.num_choices += 1
            if self.wishes.allows(choice):
                self.num_wished += 1
                key = (choice.pp, min(choice.chunks, 2), choice.micro_batches)
                groups.setdefault(key, []).append(choice)
        if self.wishes.any and not self.num_wished:
            model, gpus, batch = self.setting.model.name, self.setting.gpus, self.setting.batch
            raise InputError(
                f"what is kept and forbidden must leave something of the {self.num_choices:,} ways "
                f"to train {model} on {gpus} GPUs with a batch of {batch} but leaves nothing; keep "
                "or forbid less"
            )
        rows = [
            (0.0 if deadline.passed else bounds.of(*key), group) for key, group in groups.items()
        ]
        return sorted(rows, key=lambda row: row[0])

    def _simulate(self, ranked: list[Estimate], bound: float) -> None:
        """Simulate the fastest estimates that may fit, until none promises to be better."""
        capacity = self.setting.cluster.device.memory
        fitting = [one for one in ranked if one.memory <= capacity * (1.0 + MEMORY_MARGIN)]
        # where what is expected to fit does not, what holds the least may do after all
        smallest = sorted(ranked, key=lambda one: (one.memory, one.seconds))[:MOST_MISSES]
        for count, one in enumerate([*fitting[:MOST_MISSES], *smallest]):
            limit = math.inf if self.best is None else self.best.seconds * (1.0 + MARGIN)
            # without one that was simulated there is no plan
            if one.seconds > limit or (self.deadline.passed and self.simulated):
                break
            if count >= MOST_SIMULATED and self.best is not None:
                break
            found, reason = tried(
                self.setting, one.choice.degrees, choice_runtime(self.runtime, one.choice)
            )
            if found is None:
                self.left_out.append(reason)
                continue
            self.simulated.append(found)
            if found.fits and (self.best is None or found.seconds < self.best.seconds):
                self.best = found
                self.options.tell("simulating", found.seconds, bound)


def choice_runtime(runtime: Runtime, choice: Choice) -> Runtime:
    """The runtime of a choice: one that gathers weights ahead where those are cut."""
    return load_runtime("fsdp") if choice.zero == 3 else runtime
