"""What the figures and names of a runtime must be."""

from __future__ import annotations

from typing import Any

from costmodels.errors import InputError, require_between
from costmodels.graph import FUSIONS
from costmodels.step.recipes import recipe_families

# Smaller pieces would make millions of messages. [B]
_SMALLEST = 65536
GRADIENTS = ("all_reduce", "reduce_scatter", "push_pull")
AGGREGATIONS = ("peers", "rooted", "one_device")

# What figures can be: the least, the most, the unit.
_RANGES = {
    "bucket": (1.0, 1e18, "B"),
    "first_bucket": (1.0, 1e18, "B"),
    "fusion": (1.0, 1e18, "B"),
    "cycle": (0.0, 60.0, "s"),
    "negotiation_base": (0.0, 60.0, "s"),
    "negotiation_per_rank": (0.0, 60.0, "s"),
    "launch_time": (0.0, 1.0, "s"),
    "outside_layers": (0.0, 60.0, "s"),
    "activation_copies": (0.0, 100.0, ""),
    "activation_waits": (0.0, 100.0, ""),
    "server_rate": (1e3, 1e18, "B/s"),
    "stack_bandwidth": (1e3, 1e18, "B/s"),
    "cpu_bandwidth": (1e3, 1e18, "B/s"),
    "servers": (0, 2**20, ""),
    "devices_per_cpu_link": (1, 2**20, ""),
    "logit_kept": (0.0, 64.0, "B"),
    "logit_scratch": (0.0, 64.0, "B"),
    "collective_launches": (0.0, 100.0, ""),
    "launches_ahead": (0, 2**20, ""),
    "check_near": (0.0, 60.0, "s"),
    "check_far": (0.0, 60.0, "s"),
}


def check_runtime(runtime: Any) -> None:
    """Refuse a `Runtime` that cannot be.

    Raises
    ------
    InputError
        With the field, what it must be, and what it is.
    """
    for field, (least, most, unit) in _RANGES.items():
        value = getattr(runtime, field)
        # rates are infinite where they set no limit
        unlimited = unit == "B/s" and value == float("inf")
        if value is not None and not unlimited:
            what = f"runtime {runtime.name}: {field}"
            require_between(what, value, (least, most), "correct it", unit=unit)
    if runtime.gradient not in GRADIENTS:
        raise InputError.rule(
            f"runtime {runtime.name}: gradient",
            f"be one of {', '.join(GRADIENTS)}",
            f"'{runtime.gradient}'",
            "choose one",
        )
    if runtime.aggregation not in AGGREGATIONS:
        raise InputError.rule(
            f"runtime {runtime.name}: aggregation",
            f"be one of {', '.join(AGGREGATIONS)}",
            f"'{runtime.aggregation}'",
            "choose one",
        )
    for name in runtime.fuses:
        if name not in FUSIONS:
            raise InputError.rule(
                f"runtime {runtime.name}: fuses",
                f"be some of {', '.join(FUSIONS)}",
                f"'{name}'",
                "correct it",
            )
    if not set(runtime.zero) <= set(range(4)):
        raise InputError.rule(
            f"runtime {runtime.name}: zero", "be stages of ZeRO, 0 to 3", runtime.zero, "correct it"
        )
    if runtime.recipe is not None and runtime.recipe not in recipe_families():
        raise InputError.rule(
            f"runtime {runtime.name}: recipe",
            f"be one of {', '.join(recipe_families())}",
            f"'{runtime.recipe}'",
            "choose one",
        )
    if runtime.crosses_steps and runtime.gradient != "push_pull":
        raise InputError(
            f"runtime {runtime.name}: steps can only cross with gradient 'push_pull' but it is "
            f"'{runtime.gradient}'; leave crosses_steps out"
        )
    if (
        runtime.gradient == "push_pull"
        and runtime.bucket is not None
        and runtime.bucket < _SMALLEST
    ):
        raise InputError(
            f"runtime {runtime.name}: pieces for parameter servers must be at least "
            f"{_SMALLEST} bytes but bucket is {runtime.bucket:g}; raise it"
        )
