"""How should this network be split over these GPUs so that a step is fastest and fits in memory?

>>> import planner
>>> plan = planner.optimize("resnet50", gpus=256)  # doctest: +SKIP
>>> plan.layers["conv1"].distribution, plan.step_time  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.api import evaluate, optimize, pareto, scale, simulate, throughput
    from planner.distributed_sgd.result import Throughput
    from planner.errors import InfeasibleError, InputError
    from planner.plan import Plan
    from planner.request.parts import Degrees, Loading
    from planner.request.request import Request
    from planner.simulation.result import Simulation

__version__ = "0.1.0"
__all__ = [
    "Degrees",
    "InfeasibleError",
    "InputError",
    "Loading",
    "Plan",
    "Request",
    "Simulation",
    "Throughput",
    "evaluate",
    "optimize",
    "pareto",
    "scale",
    "simulate",
    "throughput",
]

# Where each of them lives: loaded when it is asked for, since most need numpy.
_HOMES = {
    "Degrees": "planner.request.parts",
    "InfeasibleError": "planner.errors",
    "InputError": "planner.errors",
    "Loading": "planner.request.parts",
    "Plan": "planner.plan",
    "Request": "planner.request.request",
    "Simulation": "planner.simulation.result",
    "Throughput": "planner.distributed_sgd.result",
    "evaluate": "planner.api",
    "optimize": "planner.api",
    "pareto": "planner.api",
    "scale": "planner.api",
    "simulate": "planner.api",
    "throughput": "planner.api",
}


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


def __getattr__(name: str) -> object:
    """Load what needs more than the standard library only when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What there is to use."""
    return sorted([*__all__, "__version__"])
