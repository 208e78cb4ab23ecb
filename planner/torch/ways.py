"""Which way a plan is applied: as a convolutional network, or as a transformer."""

from __future__ import annotations

from planner.plan import Plan

# Layers that convolutional networks have: all others run operator by operator.
_OF_IMAGES = frozenset(
    {
        *("conv", "linear", "pool", "global_pool", "batch_norm", "concat", "upsample", "loss"),
        *("activation", "add", "pointwise", "scale", "dropout", "bias", "rearrange", "opaque"),
    }
)


def is_for_transformers(plan: Plan, inputs: int = 1) -> bool:
    """Whether a plan has layers of transformers, stages, micro-batches or sharded weights.

    Modules of several inputs are run as transformers are.

    Parameters
    ----------
    plan, inputs
        The plan, and how many inputs its module has. [items]
    """
    if plan.is_staged or inputs > 1:
        return True
    return any(layer.kind not in _OF_IMAGES for layer in plan.layers.values())
