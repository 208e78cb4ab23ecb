"""How long simulations take, told by those before: none is begun that would end too late."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct, field

from costmodels.simulation import micro_batches_run
from planner.joint.choices import Choice
from planner.joint.estimate import Estimate
from planner.joint.ranking import MEMORY_MARGIN
from planner.planning.loop_speed import turn_of_a_loop
from planner.planning.search_plan import GRACE
from planner.planning.staged import StagedStep
from search.problem.deadline import Deadline, OutOfTime

# Time for each layer that is laid out, until a simulation tells, in turns of a loop of Python. For
# 69 of them, of five transformers of 0.3 to 175 B parameters on 16 to 256 GPUs, it was 150 to 630,
# half of the time below 280, on an EPYC at 2.4 GHz, where a turn takes 2.1e-7 s (2026-11-29): what
# would end too late is worse than what would have been in time. [turns]
FIRST_PACE = 500
# What is done once for each layer, however many micro-batches there are, in micro-batches.
ONCE = 4
# What each pass of a stage over a micro-batch takes, however many are told from others: 1.2e-4 s
# of gpt3-175b with 96 stages and 64 micro-batches, where a layer took 5e-5 s. [layers]
PASS = 2
# What putting the plan together takes, as a part of what its simulation took: 0.4, 0.9 and 1.0 for
# gpt3-175b on 64 and 256 A100 and llama3-8b on 64 H100, the less the longer it took (2026-11-23).
ASSEMBLY = 0.6
# Micro-batches that are laid out, where the others are folded. [items]
FEW_LAID_OUT = 4
# What is kept for the one simulation without which there is no plan, of the time that is left.
MOST_KEPT = 0.5

# Told how many seconds something will take, and raises where there is no time for it.
Check = Callable[[float], None]
# A simulation, or why there is none.
Tried = tuple[StagedStep | None, str]


def first_pace() -> float:
    """Time for each layer that is laid out, until a simulation tells, on this machine. [s]"""
    return FIRST_PACE * turn_of_a_loop()


class Pace(Struct, kw_only=True, eq=False):
    """The time of simulations.

    Parameters
    ----------
    deadline
        When the plan must be there.
    layers
        Of the network. [items]
    seconds
        For each layer and micro-batch that is laid out, as of the last simulation. [s]
    most
        The most effort that one of them took, in layers that are laid out. [items]
    too_long
        What turned out to take longer to simulate than there is time.
    """

    deadline: Deadline
    layers: int
    seconds: float = field(default_factory=first_pace)
    most: float = 0.0
    too_long: set[Choice] = field(default_factory=set)

    def work(self, choice: Choice) -> int:
        """Layers that a simulation lays out, for each micro-batch that is not told from others."""
        count = choice.micro_batches
        repeats = choice.zero > 2 or choice.offload
        few = micro_batches_run(choice.schedule, choice.pp, count) if repeats else FEW_LAID_OUT
        return self.layers * min(count, few)

    def allows(self, choice: Choice, plans: int = 1, before: float = 0.0) -> bool:
        """Whether there is time to simulate a choice, and to put plans together.

        Parameters
        ----------
        choice
            The choice.
        plans
            How many, if it becomes one of them. [items]
        before
            The effort of what is simulated before it.
        """
        if choice in self.too_long:
            return False
        effort = self._effort(choice)
        effort = before + effort + plans * ASSEMBLY * max(effort, self.most)
        return self.seconds * effort <= self.deadline.earlier(-GRACE).remaining

    def timed(self, choice: Choice, simulate: Callable[[Check], Tried]) -> Tried:
        """What a simulation comes to, by which later ones are expected to take time.

        It is given up, and among what takes too long, where the whole step must be run and there is
        no time for it.

        Parameters
        ----------
        choice
            The choice.
        simulate
            Runs it, given what is told how long the whole step will take.
        """
        began = time.monotonic()
        try:
            found, reason = simulate(self._check)
        except OutOfTime:
            self.too_long.add(choice)
            return None, ""
        if found is not None:
            self.took(choice, time.monotonic() - began)
        return found, reason

    def _check(self, seconds: float) -> None:
        if self.deadline.earlier(-GRACE).remaining < seconds:
            raise OutOfTime

    def timely(self, ranked: Sequence[Estimate], capacity: float) -> list[Estimate]:
        """Those that there is time to simulate, or one that surely fits: without one is no plan.

        It is that one alone as well where there is no time left for it after the first of them:
        the fastest of those that there is time for, or the quickest to simulate of all.

        Parameters
        ----------
        ranked
            Estimates of choices.
        capacity
            The memory of a device; what surely fits comes first, then what is expected to. [B]
        """
        found = [one for one in ranked if self.allows(one.choice)]
        if not ranked:
            return found
        sure, most = capacity * (1.0 - MEMORY_MARGIN), capacity * (1.0 + MEMORY_MARGIN)
        fitting = [one for one in found if one.memory <= most]

        def order(one: Estimate) -> tuple[bool, bool, float]:
            cost = one.seconds if fitting else self._effort(one.choice)
            return one.memory > capacity, one.memory > sure, cost

        one = min(fitting or ranked, key=order)
        if not fitting and len(found) < len(ranked):
            return [one]
        if self.most or one is found[0] or self._allows_both(found[0].choice, one.choice):
            return found
        return [one]

    def _allows_both(self, first: Choice, other: Choice) -> bool:
        """Whether there is time to simulate a choice, and to make a plan of another one then."""
        return self.allows(other, 1, self._effort(first))

    @property
    def one_plan(self) -> float:
        """What one simulation and putting its plan together are expected to take. [s]"""
        return self.seconds * (1.0 + ASSEMBLY) * (FEW_LAID_OUT + ONCE) * self.layers

    @property
    def before_one(self) -> Deadline:
        """When what comes before the first simulation should end, for the plan to be in time."""
        return self.deadline.earlier(min(self.one_plan, MOST_KEPT * self.deadline.remaining))

    @property
    def assembly(self) -> float:
        """What putting the plan together takes at most. [s]"""
        return self.seconds * ASSEMBLY * max(self.most, ONCE * self.layers)

    @contextmanager
    def measured(self, choice: Choice) -> Iterator[None]:
        """Time the simulation of a choice."""
        began = time.monotonic()
        yield
        self.took(choice, time.monotonic() - began)

    def took(self, choice: Choice, seconds: float) -> None:
        """Learn from the simulation of a choice.

        Parameters
        ----------
        choice, seconds
            The choice, and how long it took. [s]
        """
        effort = self._effort(choice)
        self.seconds = seconds / effort
        self.most = max(self.most, effort)

    def _effort(self, choice: Choice) -> float:
        """What a simulation takes, in layers that are laid out. [items]"""
        passes = choice.pp * choice.chunks * choice.micro_batches
        return float(self.work(choice) + ONCE * self.layers + PASS * passes)
