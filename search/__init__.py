"""Combinatorial optimisation over numbers: nodes with candidate costs, edges with cost matrices,
and something used over time under a limit.

A `Problem` goes in, an `Assignment` comes out: choices, cost, a proven lower bound, a status and
notes. All solvers share one signature (`Solver`); `SOLVERS` holds them by name. A solver of one's
own keeps what it knows in an `Incumbent`. Importing this package imports numpy and nothing heavier.
"""

from __future__ import annotations

from search.black_box import Trial, Tuning, tune
from search.elimination.k_best import k_best
from search.errors import ProblemError
from search.presolve.reduction import Reduction, presolve
from search.problem import (
    Assignment,
    CostEdge,
    Problem,
    Shortage,
    Status,
    cost_and_peak,
    costs_and_peaks,
)
from search.problem.incumbent import Incumbent, Watch
from search.problem.notes import Note
from search.solvers.registry import SOLVERS, Solver, solve

__all__ = [
    "SOLVERS",
    "Assignment",
    "CostEdge",
    "Incumbent",
    "Note",
    "Problem",
    "ProblemError",
    "Reduction",
    "Shortage",
    "Solver",
    "Status",
    "Trial",
    "Tuning",
    "Watch",
    "cost_and_peak",
    "costs_and_peaks",
    "k_best",
    "presolve",
    "solve",
    "tune",
]
