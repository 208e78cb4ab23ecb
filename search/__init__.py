"""Combinatorial optimisation over numbers: nodes with candidate costs, edges with cost matrices,
and something used over time under a limit.

A `Problem` goes in, an `Assignment` comes out: choices, cost, a proven lower bound and a status.
All solvers share one signature, `solve(problem, *, time_limit, seed)`; `SOLVERS` holds them by
name. Importing this package imports numpy and nothing heavier.
"""

from __future__ import annotations

from search.black_box import Trial, Tuning, tune
from search.elimination.k_best import k_best
from search.errors import ProblemError
from search.presolve.reduction import Reduction, presolve
from search.problem import (
    Assignment,
    Edge,
    Problem,
    Shortage,
    Status,
    evaluate,
    evaluate_many,
)
from search.solvers.registry import SOLVERS, Solver, solve

__all__ = [
    "SOLVERS",
    "Assignment",
    "Edge",
    "Problem",
    "ProblemError",
    "Reduction",
    "Shortage",
    "Solver",
    "Status",
    "Trial",
    "Tuning",
    "evaluate",
    "evaluate_many",
    "k_best",
    "presolve",
    "solve",
    "tune",
]
