"""PyTorch in, PyTorch out: modules as networks, and plans applied to modules.

Nothing of PyTorch is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.torch.apply import PlannedModule, apply, load_plan, local_batch

__all__ = ["PlannedModule", "apply", "load_plan", "local_batch"]


def __getattr__(name: str) -> object:
    """Load what needs PyTorch only when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'planner.torch' has no attribute '{name}'")
    from planner.torch.trace import require_torch

    require_torch()
    return getattr(importlib.import_module("planner.torch.apply"), name)
