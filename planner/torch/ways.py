"""Which way a plan is applied: as a convolutional network, or as a transformer."""

from __future__ import annotations

from planner.plan import Plan

# Layers that are split as sequences are.
_SEQUENCES = frozenset({"attention", "embedding", "router", "dispatch", "tokens", "layer_norm"})


def is_for_transformers(plan: Plan) -> bool:
    """Whether a plan has layers of transformers, stages, micro-batches or sharded weights."""
    return plan.is_staged or any(layer.kind in _SEQUENCES for layer in plan.layers.values())
