"""The models of distributed SGD that a request asks for, with its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

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
from planner.request.inputs.distributed import SHARING_RULES
from planner.request.request import Request

assert ("auto", PROCESSOR_SHARING, FIRST_COME) == SHARING_RULES, "requests name the same rules"


class Predictor(Struct, frozen=True, kw_only=True):
    """How to predict; the same for all numbers of workers.

    Parameters
    ----------
    links
        Links of workers and servers.
    request
        What was asked.
    """

    links: Links
    request: Request

    @property
    def _by_ring(self) -> bool:
        return self.request.architecture == "all-reduce"

    @property
    def _synchronous(self) -> bool:
        return self.request.mode == "sync"

    @property
    def _rule(self) -> str | None:
        """The rule that was asked for, None for what the paper does."""
        rule = self.request.sharing_rule
        return None if rule == "auto" else rule

    def coarse(self, classes: Sequence[WorkerClass]) -> Predicted | None:
        """The coarse-grained prediction, None if it is not asked for."""
        overlap = self.request.transfer_overlap
        if self.request.throughput_models == "fine":
            return None
        if self._by_ring:
            return predict_all_reduce(classes, self.links, overlap=overlap)
        rule = self._rule or HYBRID
        if self._synchronous:
            return predict_sync(classes, self.links, overlap=overlap, rule=rule)
        threshold = self.request.utilisation_threshold
        return predict_async(classes, self.links, overlap=overlap, threshold=threshold, rule=rule)

    @property
    def fine_rule(self) -> str:
        """Async-SGD is simulated with processor sharing, Sync-SGD with both (section 3.2.1)."""
        if self._by_ring:
            return ""
        return self._rule or (HYBRID if self._synchronous else PROCESSOR_SHARING)

    def fine(self, classes: Sequence[WorkerClass]) -> SimulatedThroughput | None:
        """The fine-grained prediction, None if it is not asked for."""
        if self.request.throughput_models == "coarse":
            return None
        usual: dict[str, Any] = {
            "overlap": self.request.transfer_overlap,
            "steps": self.request.steps,
            "variation": self.request.computation_variation,
            "seed": self.request.simulation_seed,
        }
        if self._by_ring:
            return simulate_all_reduce(classes, self.links, **usual)
        rule = self.fine_rule
        found = [
            simulate_workers(
                classes, self.links, synchronous=self._synchronous, discipline=one, **usual
            )
            for one in ((PROCESSOR_SHARING, FIRST_COME) if rule == HYBRID else (rule,))
        ]
        return found[0] if len(found) == 1 else _mean_throughput(*found)


def _mean_throughput(a: SimulatedThroughput, b: SimulatedThroughput) -> SimulatedThroughput:
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
