"""How long simulations take, told by those before: none is begun that would end too late."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from costmodels.simulation import micro_batches_run
from planner.joint.choices import Choice
from planner.joint.estimate import Estimate
from planner.joint.ranking import MEMORY_MARGIN
from planner.planning.search_plan import GRACE
from search.problem.deadline import Deadline

# Time for each layer that is laid out, until a simulation tells: 14 of them, of gpt3-175b on 64 and
# 256 A100 and llama3-8b on 64 H100, took 3.4e-5 to 5.7e-5 on one core of a Xeon (2026-11-23). [s]
FIRST_PACE = 6e-5
# What is done once for each layer, however many micro-batches there are, in micro-batches.
ONCE = 4
# What putting the plan together takes, as a part of what its simulation took: 0.4, 0.9 and 1.0 for
# these three, the less the longer it took.
ASSEMBLY = 0.6
# Micro-batches that are laid out, where the others are folded. [items]
FEW_LAID_OUT = 4
# What is kept for the one simulation without which there is no plan, of the time that is left.
MOST_KEPT = 0.5


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
        The most layers that one of them laid out. [items]
    """

    deadline: Deadline
    layers: int
    seconds: float = FIRST_PACE
    most: int = 0

    def work(self, choice: Choice) -> int:
        """Layers that a simulation lays out, for each micro-batch that is not told from others."""
        count = choice.micro_batches
        repeats = choice.zero > 2 or choice.offload
        few = micro_batches_run(choice.schedule, choice.pp, count) if repeats else FEW_LAID_OUT
        return self.layers * min(count, few)

    def allows(self, choice: Choice, plans: int = 1, before: int = 0) -> bool:
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
        work = self.work(choice)
        effort = before + self._effort(work) + plans * ASSEMBLY * self._effort(max(work, self.most))
        return self.seconds * effort <= self.deadline.earlier(-GRACE).remaining

    def timely(self, ranked: Sequence[Estimate], capacity: float) -> list[Estimate]:
        """Those that there is time to simulate, or one that surely fits: without one is no plan.

        It is that one alone as well where there is no time left for it after the first of them.

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
        one = min(
            fitting or ranked,
            key=lambda one: (one.memory > capacity, one.memory > sure, self.work(one.choice)),
        )
        if not fitting and len(found) < len(ranked):
            return [one]
        alone = self.most == 0 and not self._allows_both(found[0].choice, one.choice)
        return [one] if alone else found

    def _allows_both(self, first: Choice, other: Choice) -> bool:
        """Whether there is time to simulate a choice, and to make a plan of another one then."""
        return self.allows(other, 1, self._effort(self.work(first)))

    @property
    def one_plan(self) -> float:
        """What one simulation and putting its plan together are expected to take. [s]"""
        return self.seconds * (1.0 + ASSEMBLY) * self._effort(FEW_LAID_OUT * self.layers)

    @property
    def before_one(self) -> Deadline:
        """When what comes before the first simulation should end, for the plan to be in time."""
        return self.deadline.earlier(min(self.one_plan, MOST_KEPT * self.deadline.remaining))

    @property
    def assembly(self) -> float:
        """What putting the plan together takes at most. [s]"""
        return self.seconds * ASSEMBLY * self._effort(self.most)

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
        work = self.work(choice)
        self.seconds = seconds / self._effort(work)
        self.most = max(self.most, work)

    def _effort(self, work: int) -> int:
        return work + ONCE * self.layers
