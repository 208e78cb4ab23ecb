"""How should this network be split over these GPUs so that a step is fastest and fits in memory?

>>> import planner
>>> plan = planner.optimize("resnet50", gpus=256)  # doctest: +SKIP
>>> plan.layers["conv1"].distribution, plan.step_time  # doctest: +SKIP
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import evaluate, optimize, scale
    from planner.distributed_sgd.predict import throughput
    from planner.plan import Plan
    from planner.simulation.run import simulate

__version__ = "0.1.0"
__all__ = ["Plan", "evaluate", "optimize", "scale", "simulate", "throughput"]


def _require_own(name: str) -> None:
    """`search` and `costmodels` are common words: refuse a stranger of that name."""
    spec = importlib.util.find_spec(name)
    own = Path(__file__).resolve().parent.parent / name / "__init__.py"
    origin = spec.origin if spec else None
    if origin is None or Path(origin).resolve() != own:
        where = origin or (
            next(iter(spec.submodule_search_locations or ["?"])) if spec else "nowhere"
        )
        raise ImportError(
            f"planner needs its own package '{name}' ({own}), but {where} is in the way; rename "
            "that file or take its folder off sys.path"
        )


for _name in ("costmodels", "search"):
    _require_own(_name)


def __getattr__(name: str) -> Any:
    """Load what needs more than the standard library only when it is asked for."""
    if name in ("optimize", "evaluate", "scale"):
        from planner import api

        return getattr(api, name)
    if name == "simulate":
        from planner.simulation.run import simulate

        return simulate
    if name == "throughput":
        from planner.distributed_sgd.predict import throughput

        return throughput
    if name == "Plan":
        from planner.plan import Plan

        return Plan
    raise AttributeError(f"module 'planner' has no attribute '{name}'")
