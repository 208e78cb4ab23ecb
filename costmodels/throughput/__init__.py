"""Throughput of distributed SGD over a slow network: Li et al. 2022, coarse and fine grained."""

from __future__ import annotations

from costmodels.throughput.coarse import (
    HYBRID,
    UTILISATION_THRESHOLD,
    Predicted,
    predict_all_reduce,
    predict_async,
    predict_sync,
    ring_time,
)
from costmodels.throughput.fine import (
    VARIATION,
    SimulatedThroughput,
    check_effort,
    default_steps,
    simulate_all_reduce,
    simulate_workers,
)
from costmodels.throughput.mva import (
    FIRST_COME,
    MAX_POPULATIONS,
    PROCESSOR_SHARING,
    Solution,
    mean_values,
)
from costmodels.throughput.profile import Links, WorkerClass, WorkerProfile

__all__ = [
    "FIRST_COME",
    "HYBRID",
    "MAX_POPULATIONS",
    "PROCESSOR_SHARING",
    "UTILISATION_THRESHOLD",
    "VARIATION",
    "Links",
    "Predicted",
    "SimulatedThroughput",
    "Solution",
    "WorkerClass",
    "WorkerProfile",
    "check_effort",
    "default_steps",
    "mean_values",
    "predict_all_reduce",
    "predict_async",
    "predict_sync",
    "ring_time",
    "simulate_all_reduce",
    "simulate_workers",
]
