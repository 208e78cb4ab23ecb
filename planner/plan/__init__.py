"""A plan: what was decided, what it costs and why, as versioned JSON."""

from __future__ import annotations

from planner.plan.parts import Baseline, LayerPlan, Recost, SearchSummary, given_solver
from planner.plan.plan import FORMAT, VERSION, Plan, digest

__all__ = [
    "FORMAT",
    "VERSION",
    "Baseline",
    "LayerPlan",
    "Plan",
    "Recost",
    "SearchSummary",
    "digest",
    "given_solver",
]
