"""The problem and its answer: arrays in, choices out, with a cost, a proven bound and a status."""

from __future__ import annotations

from search.problem.problem import (
    Assignment,
    CostEdge,
    Problem,
    ProblemError,
    Shortage,
    Status,
    cost_and_peak,
    costs_and_peaks,
)

__all__ = [
    "Assignment",
    "CostEdge",
    "Problem",
    "ProblemError",
    "Shortage",
    "Status",
    "cost_and_peak",
    "costs_and_peaks",
]
