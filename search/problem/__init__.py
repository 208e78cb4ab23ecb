"""The problem and its answer: arrays in, choices out, with a cost, a proven bound and a status."""

from __future__ import annotations

from search.problem.problem import (
    Assignment,
    Edge,
    Problem,
    ProblemError,
    Shortage,
    Status,
    evaluate,
    evaluate_many,
)

__all__ = [
    "Assignment",
    "Edge",
    "Problem",
    "ProblemError",
    "Shortage",
    "Status",
    "evaluate",
    "evaluate_many",
]
