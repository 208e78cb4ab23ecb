"""A plan: what was decided, what it costs and why, as versioned JSON."""

from __future__ import annotations

from planner.plan.carried import (
    Carried,
    CarriedTable,
    cluster_digest,
    digest,
    network_digest,
    tables_digest,
)
from planner.plan.parts import Baseline, Finalist, LayerPlan, SearchSummary, given_solver
from planner.plan.plan import FORMAT, VERSION, Plan
from planner.plan.shard import shard_plan
from planner.plan.sharding import LayerSharding, Mesh, MeshAxis, Sharding, Shuffle, TensorPlacement

__all__ = [
    "FORMAT",
    "VERSION",
    "Baseline",
    "Carried",
    "CarriedTable",
    "Finalist",
    "LayerPlan",
    "LayerSharding",
    "Mesh",
    "MeshAxis",
    "Plan",
    "SearchSummary",
    "Sharding",
    "Shuffle",
    "TensorPlacement",
    "cluster_digest",
    "digest",
    "given_solver",
    "network_digest",
    "shard_plan",
    "tables_digest",
]
