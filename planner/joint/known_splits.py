"""The splits of one stage that are known, beside which all other ways to train are searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from costmodels.distribution import Distribution
from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds
from planner.plan import Plan
from planner.planning.decision.choice import EQUAL
from planner.planning.decision.finals import SIMPLER_WITHIN
from planner.planning.staged import StagedStep


class KnownSplits(Struct, frozen=True, kw_only=True):
    """What the search of splits alone came to.

    Parameters
    ----------
    step, peak
        Of the plan, and what a device holds at most. [s], [B]
    bound
        What no split takes less than. [s]
    distributions
        How layers are split, nothing where only the time is known.
    updates
        What cutting the state of the optimizer over replicas can save at most. [s]
    """

    step: float = math.inf
    peak: float = math.inf
    bound: float = math.inf
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    updates: float = 0.0

    @classmethod
    def of(cls, plan: Plan) -> KnownSplits:
        """Those of a plan."""
        return cls(
            step=plan.step_time_s,
            peak=plan.peak_memory,
            bound=plan.search.lower_bound_s,
            distributions=plan.strategy.distributions,
            updates=plan.breakdown_s.get("update", 0.0),
        )

    @classmethod
    def limited(cls, seconds: float) -> KnownSplits:
        """Some plan that takes so long. [s]"""
        return cls(step=seconds, bound=seconds)

    @property
    def seconds(self) -> float:
        """What other ways to train must take less than. [s]"""
        return self.step / (1.0 + EQUAL) if self.distributions else self.step

    def give_way_to(self, other: StagedStep) -> bool:
        """Whether another way to train is the plan instead, if it fits.

        Splits alone are simpler: it must be faster by more than that is worth, or need no more
        memory. So more memory never gives a slower plan of these.

        Parameters
        ----------
        other
            Its step.
        """
        counted = self.counted(other.seconds, other.peak_memory)
        return counted < self.step and other.seconds < self.seconds

    def counted(self, seconds: float, peak: float) -> float:
        """What a step counts for beside these: splits alone are simpler to run. [s]

        Parameters
        ----------
        seconds, peak
            Of another way to train, and what a device holds at most. [s], [B]
        """
        return seconds * (1.0 + SIMPLER_WITHIN * (bool(self.distributions) and peak > self.peak))

    @property
    def worth_sharding(self) -> bool:
        """Whether cutting the state of these splits over replicas may be worth it.

        That of plain data parallelism is among all other ways to train.
        """
        alone = all(set(split.degrees) <= {"sample"} for split in self.distributions.values())
        return self.updates > SIMPLER_WITHIN * self.step and not alone

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return self.step < math.inf

    def others(
        self, rows: Iterable[tuple[float, Choice]], floors: PipelineBounds
    ) -> list[tuple[float, Choice]]:
        """Choices that may be faster, and are no splits alone where those are known.

        Parameters
        ----------
        rows
            Choices by what no step of them takes less than. [s]
        floors
            Knows more of what they take at least.
        """
        if not self.any:
            return list(rows)
        most = max(self.seconds, self.bound)
        return [
            (least, choice)
            for least, choice in rows
            if least < most
            and not (self.distributions and _is_no_faster(choice))
            and floors.may_take(choice, most)
        ]


def _is_no_faster(choice: Choice) -> bool:
    """Whether a choice is a split alone, or one of which some is computed again besides."""
    return choice.parts == choice.micro_batches == 1 and not (choice.zero or choice.offload)


NO_SPLITS = KnownSplits()
