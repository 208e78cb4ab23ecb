"""The finals: what may be the best assignment is simulated, under the buckets that suit it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct, field

from planner.planning.decision.simulator import Choices, PlanSimulator, SimulatedChoices
from planner.planning.search_plan import ASSEMBLY, SIMULATION
from planner.planning.space.costing import Costed
from planner.planning.tuning import buckets_between
from search.problem.deadline import Deadline

# How much slower than the fastest a simpler plan may be.
SIMPLER_WITHIN = 0.01
# A finalist so many times as slow as the fastest under the usual buckets is not tried under others:
# on the built-in networks they change a step by up to a fifth.
TUNED_WITHIN = 1.25
# Of what should fit so many are simulated until one does. [items]
MOST_MISSES = 8


class TimeToDecide(Struct, frozen=True, kw_only=True):
    """The time until a plan must be there, and how long things take.

    Parameters
    ----------
    deadline
        When the plan must be there.
    pace
        Time that costing one assignment takes. [s]
    """

    deadline: Deadline
    pace: float

    def allows(self, costings: float) -> bool:
        """Whether so many costings can end before the plan must be put together."""
        return self.deadline.remaining >= (costings + ASSEMBLY) * self.pace


class Finals(Struct, kw_only=True, eq=False):
    """What was simulated so far.

    Parameters
    ----------
    simulator
        Simulates assignments.
    buckets
        Sizes of gradient buckets that may be chosen, the usual one first. [B]
    time
        The time until a plan must be there.
    best_of
        By assignment its best trial, in the order in which they were simulated.
    wanted
        Assignments that were to be simulated. [items]
    """

    simulator: PlanSimulator
    buckets: Sequence[float]
    time: TimeToDecide
    best_of: dict[Choices, SimulatedChoices] = field(default_factory=dict)
    wanted: int = 0

    def simulate(self, finalists: Iterable[Choices], bucket_bytes: float | None = None) -> None:
        """Simulate assignments, each under the buckets that suit it, as long as time allows.

        Parameters
        ----------
        finalists
            The assignments.
        bucket_bytes
            The size of buckets that others are tried after; the usual one by default. [B]
        """
        first = bucket_bytes or self.buckets[0]
        for choices in finalists:
            if choices in self.best_of:
                continue
            self.wanted += 1
            if not self.time.allows(SIMULATION):
                continue
            trial = self.best_of[choices] = self.simulator.simulate(choices, first)
            if trial.seconds <= self._tuned_within(bucket_bytes) * self.fastest.seconds:
                others = [self.simulator.simulate(choices, size) for size in self.buckets]
                self.best_of[choices] = min([trial, *others], key=self._rank)

    def tune(self, trial: SimulatedChoices) -> None:
        """Try buckets of further sizes on an assignment that was simulated, if time allows."""
        for size in buckets_between(self.buckets):
            if self.time.allows(SIMULATION):
                other = self.simulator.simulate(trial.choices, size)
                best = self.best_of[trial.choices]
                self.best_of[trial.choices] = min(best, other, key=self._rank)

    @staticmethod
    def _tuned_within(bucket_bytes: float | None) -> float:
        """How many times as slow as the fastest one may be to be tried under other buckets."""
        return TUNED_WITHIN if bucket_bytes is None else 1.0

    def _rank(self, trial: SimulatedChoices) -> tuple[bool, float]:
        return not self.simulator.fits(trial), trial.seconds

    @property
    def fits(self) -> bool:
        """Whether any of them fits when it is simulated, or none was."""
        return not self.best_of or self.simulator.fits(self.fastest)

    @property
    def misfits(self) -> list[SimulatedChoices]:
        """Those that do not fit, the fastest first."""
        return [one for one in self.ranked if not self.simulator.fits(one)]

    @property
    def ranked(self) -> list[SimulatedChoices]:
        """All of them, those that fit first, each by its step."""
        return sorted(self.best_of.values(), key=self._rank)

    @property
    def fastest(self) -> SimulatedChoices:
        """The fastest that fits when it is simulated, or the fastest if none does."""
        return self.fastest_of(None)

    def fastest_of(self, among: Container[Choices] | None) -> SimulatedChoices:
        """The same of some assignments, None for all."""
        rows = self.best_of.items()
        return min((t for c, t in rows if among is None or c in among), key=self._rank)


def simulate_smaller(finals: Finals, met: Mapping[Choices, Costed]) -> None:
    """Simulate what was found to need less memory, the fastest first, until one fits.

    The search counts memory a little otherwise than the simulation does. What it met is taken to
    fit where it does so with all that the count was seen to be short of.

    Parameters
    ----------
    finals
        What was simulated so far, none of which fits.
    met
        All assignments that the search costed.
    """
    memory = finals.simulator.formulation.cluster.device.memory
    for _ in range(MOST_MISSES):
        counted = [(t, met[c].memory.total) for c, t in finals.best_of.items() if c in met]
        short = max((trial.peak_memory - total for trial, total in counted), default=0.0)
        left = [
            one
            for choices, one in met.items()
            if choices not in finals.best_of and one.memory.total + short <= memory
        ]
        if not left or finals.fits or not finals.time.allows(SIMULATION):
            return
        fastest = min(left, key=lambda one: (one.step.total, one.choices))
        finals.simulate([fastest.choices], min(finals.buckets))
