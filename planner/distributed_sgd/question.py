"""Which of the models of distributed SGD answers, and with which options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodels.throughput import (
    FIRST_COME,
    HYBRID,
    PROCESSOR_SHARING,
    Links,
    Predicted,
    SimulatedThroughput,
    WorkerClass,
    predict_all_reduce,
    predict_async,
    predict_sync,
    simulate_all_reduce,
    simulate_workers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How to predict; the same for all numbers of workers.

    Parameters
    ----------
    links
        Links of workers and servers.
    architecture, mode, models, overlap, rule, steps, variation, seed
        As of `planner.throughput`.
    threshold
        rho_T of equation 5.
    """

    links: Links
    architecture: str
    mode: str
    models: str
    overlap: bool
    rule: str
    threshold: float
    steps: int | None
    variation: float
    seed: int

    def coarse(self, classes: Sequence[WorkerClass]) -> Predicted | None:
        """The coarse-grained prediction, None if it is not asked for."""
        if self.models == "fine":
            return None
        if self.architecture == "all-reduce":
            return predict_all_reduce(classes, self.links, overlap=self.overlap)
        rule = HYBRID if self.rule == "auto" else self.rule
        if self.mode == "sync":
            return predict_sync(classes, self.links, overlap=self.overlap, rule=rule)
        return predict_async(
            classes, self.links, overlap=self.overlap, threshold=self.threshold, rule=rule
        )

    @property
    def fine_rule(self) -> str:
        """Async-SGD is simulated with processor sharing, Sync-SGD with both (section 3.2.1)."""
        if self.architecture == "all-reduce":
            return ""
        if self.rule != "auto":
            return self.rule
        return HYBRID if self.mode == "sync" else PROCESSOR_SHARING

    def fine(self, classes: Sequence[WorkerClass]) -> SimulatedThroughput | None:
        """The fine-grained prediction, None if it is not asked for."""
        if self.models == "coarse":
            return None
        usual: dict[str, Any] = {
            "overlap": self.overlap,
            "steps": self.steps,
            "variation": self.variation,
            "seed": self.seed,
        }
        if self.architecture == "all-reduce":
            return simulate_all_reduce(classes, self.links, **usual)
        synchronous, rule = self.mode == "sync", self.fine_rule
        found = [
            simulate_workers(classes, self.links, synchronous=synchronous, discipline=one, **usual)
            for one in ((PROCESSOR_SHARING, FIRST_COME) if rule == HYBRID else (rule,))
        ]
        return found[0] if len(found) == 1 else _mean(*found)


def _mean(a: SimulatedThroughput, b: SimulatedThroughput) -> SimulatedThroughput:
    """Mean of throughputs, as section 3.2.1 says, and not of times."""
    throughput = 0.5 * (a.throughput + b.throughput)
    return replace(
        a,
        throughput=throughput,
        deviation=0.5 * (a.deviation + b.deviation),
        step_time=a.step_time * a.throughput / throughput,
        utilisation=0.5 * (a.utilisation + b.utilisation),
        downlink_bytes=a.downlink_bytes + b.downlink_bytes,
        uplink_bytes=a.uplink_bytes + b.uplink_bytes,
        num_steps=a.num_steps + b.num_steps,
        num_runs=a.num_runs + b.num_runs,
    )
