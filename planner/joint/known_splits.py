"""The splits of one stage that are known, beside which all other ways to train are searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from costmodels.distribution import Distribution
from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds
from planner.plan import Plan

# A plan with stages, micro-batches, sharding or recomputation is no simpler than splits alone: it
# takes their place where it is faster by more than that.
SIMPLER_WITHIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSplits:
    """What the search of splits alone came to.

    Parameters
    ----------
    seconds
        What other ways to train must take less than. [s]
    bound
        What no split takes less than. [s]
    distributions
        How layers are split.
    updates
        What cutting the state of the optimizer over replicas can save at most. [s]
    """

    seconds: float = math.inf
    bound: float = math.inf
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    updates: float = 0.0

    @classmethod
    def of(cls, plan: Plan) -> KnownSplits:
        """Those of a plan."""
        return cls(
            seconds=plan.step_time_s / (1.0 + SIMPLER_WITHIN),
            bound=plan.search.lower_bound_s,
            distributions=plan.strategy.distributions,
            updates=plan.breakdown_s.get("update", 0.0),
        )

    @property
    def worth_sharding(self) -> bool:
        """Whether cutting the state of these splits over replicas may be worth it."""
        return self.any and self.updates > SIMPLER_WITHIN * self.seconds

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return self.seconds < math.inf

    def others(
        self, rows: Iterable[tuple[float, Choice]], floors: PipelineBounds
    ) -> list[tuple[float, Choice]]:
        """Choices that may be faster than splits alone, and are none themselves.

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
        found = (
            (floors.sharper(choice), choice)
            for least, choice in rows
            if least < most and not choice.is_split_alone
        )
        return sorted((row for row in found if row[0] < most), key=lambda row: row[0])


NO_SPLITS = KnownSplits()
