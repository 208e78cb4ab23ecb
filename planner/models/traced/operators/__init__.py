"""How each operator becomes layers: a function under `@operator` for each, in files of this folder.

One that has none, or that is used as no kind of layer describes it, becomes an opaque layer.
"""

from __future__ import annotations

from planner.models.traced.operators import attention, dense, elementwise, views
from planner.models.traced.operators.registry import OPERATORS, operator

__all__ = ["OPERATORS", "attention", "dense", "elementwise", "operator", "views"]
