"""Strategies: how every layer is split and placed, and how its subgraphs are scheduled."""

from costmodels.strategy.build import build_strategy
from costmodels.strategy.cut import cut_graph
from costmodels.strategy.describe import describe_strategy
from costmodels.strategy.entries import Description, LayerEntry, StageEntry, SubgraphEntry
from costmodels.strategy.propagate import data_parallel, degrees_on_levels, propagate
from costmodels.strategy.strategy import (
    SCHEDULES,
    BatchShare,
    MemoryConfig,
    Schedule,
    Stage,
    Strategy,
)
from costmodels.strategy.usual import hybrid, shared_weights, single_stage, stage_shape

__all__ = [
    "SCHEDULES",
    "BatchShare",
    "Description",
    "LayerEntry",
    "MemoryConfig",
    "Schedule",
    "Stage",
    "StageEntry",
    "Strategy",
    "SubgraphEntry",
    "build_strategy",
    "cut_graph",
    "data_parallel",
    "degrees_on_levels",
    "describe_strategy",
    "hybrid",
    "propagate",
    "shared_weights",
    "single_stage",
    "stage_shape",
]
