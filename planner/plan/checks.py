"""What must hold of a plan that was read from a file: files are edited.

Every figure has a sign and a range, and figures that say the same must agree within rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

import msgspec

from costmodels.errors import InputError
from costmodels.strategy import BatchShare, Schedule, Stage, Strategy
from planner.plan.parts import Baseline, Finalist, LayerPlan, SearchSummary
from planner.plan.sharding import Sharding, sharding_faults

STATUSES = ("optimal", "feasible", "given")
# What a step is made of, and sums to it: computation alone and what communication slows it down by,
# exposed communication, and waiting for other GPUs. Communication may be hidden as well.
COMPUTATION = ("compute", "update", "slowdown")
COMMUNICATION = ("halo", "reduction", "shuffle", "parameter", "gradient", "host")
CAUSES = (*COMPUTATION, *COMMUNICATION, "waiting")
# What of a weight may be cut over the GPUs that hold the same block of it.
SHARDED = ("weights", "gradients", "state")
# What holds memory in every plan, if only 0 bytes.
HOLDERS = ("weights", "activations", "reserved")
# More than any training takes, so that no sum of them overflows. [s], [B], [items], [FLOP]
LONGEST, LARGEST, MOST, MOST_FLOPS = 1e12, 1e24, 2**53, 1e36
# How far apart two sums of the same figures may be: they are written to the last digit.
ROUNDING = 1e-6


class CheckedPlan(Protocol):
    """What is checked of a `planner.plan.Plan`, which says what each field is."""

    @property
    def gpus(self) -> int: ...

    @property
    def idle_gpus(self) -> int: ...

    @property
    def global_batch_size(self) -> int: ...

    @property
    def input_shape(self) -> Mapping[str, int]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def level_names(self) -> tuple[str, ...]: ...

    @property
    def host_level(self) -> str: ...

    @property
    def step_time_s(self) -> float: ...

    @property
    def breakdown_s(self) -> Mapping[str, float]: ...

    @property
    def hidden_s(self) -> Mapping[str, float]: ...

    @property
    def memory_bytes(self) -> Mapping[str, float]: ...

    @property
    def memory_capacity_bytes(self) -> float: ...

    @property
    def search(self) -> SearchSummary: ...

    @property
    def layers(self) -> Mapping[str, LayerPlan]: ...

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def shares(self) -> tuple[BatchShare, ...]: ...

    @property
    def strategy(self) -> Strategy: ...

    @property
    def sharding(self) -> Sharding | None: ...

    @property
    def baselines(self) -> tuple[Baseline, ...]: ...

    @property
    def finalists(self) -> tuple[Finalist, ...]: ...

    @property
    def model_flops(self) -> float: ...

    @property
    def device_peak_flops(self) -> float: ...


def check_plan(plan: CheckedPlan, where: str, advice: str) -> None:
    """Refuse a plan whose figures cannot be, or contradict each other.

    Parameters
    ----------
    plan
        The plan.
    where
        What error messages call its file.
    advice
        What to do next.

    Raises
    ------
    InputError
        When a figure is out of its range, or two figures contradict each other.
    """
    # the first is enough, and later ones may rest on it
    for rule, value in chain(_counts(plan), _figures(plan), _contradictions(plan)):
        raise InputError(f"{where} is no valid plan: {rule} but {value}; {advice}")


def _counts(plan: CheckedPlan) -> Iterator[tuple[str, str]]:
    """Numbers of things, and names, that cannot be."""
    for what in ("model", "cluster", "device", "runtime"):
        if not getattr(plan, what).strip():
            yield f"{what} must have a name", "has none"
    counts = {
        "gpus": plan.gpus,
        "global_batch_size": plan.global_batch_size,
        **{f"input_shape.{axis}": extent for axis, extent in plan.input_shape.items()},
        **{f"shape[{level}]": size for level, size in enumerate(plan.shape)},
    }
    for what, count in counts.items():
        if not 1 <= count <= MOST:
            yield f"{what} must be from 1 to 2**53", f"is {count}"
    if not 0 <= plan.idle_gpus <= MOST:
        yield "idle_gpus must be from 0 to 2**53", f"is {plan.idle_gpus}"
    if math.prod(plan.shape) != plan.gpus:
        yield f"the product of shape must be gpus, {plan.gpus},", f"shape is {list(plan.shape)}"
    if len(plan.level_names) != len(plan.shape):
        levels = f"there are {len(plan.level_names)} names"
        yield f"level_names must name the {len(plan.shape)} levels of shape", levels
    if plan.host_level not in plan.level_names:
        yield "host_level must be one of level_names", f"is '{plan.host_level}'"
    if not plan.layers:
        yield "there must be layers", "there are none"
    yield from _stage_counts(plan)
    if plan.sharding is not None:
        yield from sharding_faults(plan.sharding, plan.gpus)
        if set(plan.sharding.layers) != set(plan.layers):
            yield "sharding.layers must be the layers of the plan", "are others"
    shapes = {name: tuple(stage.shape) for stage in plan.stages for name in stage.layers}
    for name, layer in plan.layers.items():
        whose = "its stage" if plan.stages else "the plan"
        if tuple(layer.shape) != shapes.get(name, tuple(plan.shape)):
            yield f"the shape of layer '{name}' must be that of {whose}", f"is {list(layer.shape)}"
        try:
            layer.distribution.describe(plan.level_names)
        except InputError as error:
            yield f"the degrees of layer '{name}' must split it", f"{error}"
    found = plan.search
    numbers = ("num_sensible", "num_candidates", "cap", "num_costed", "num_choices")
    for what in numbers:
        if not 0 <= getattr(found, what) <= MOST:
            yield f"search.{what} must be from 0 to 2**53", f"is {getattr(found, what)}"
    if found.status not in STATUSES:
        yield f"search.status must be one of {', '.join(STATUSES)}", f"is '{found.status}'"


def _stage_counts(plan: CheckedPlan) -> Iterator[tuple[str, str]]:
    """Stages that do not hold every layer once, on all of the GPUs; what is cut of no weight."""
    for name, layer in plan.layers.items():
        if not set(layer.sharded) <= set(SHARDED):
            rule = f"sharded of layer '{name}' must be some of {', '.join(SHARDED)}"
            yield rule, f"is {list(layer.sharded)}"
        if layer.shard_size is not None and not 1 < layer.shard_size <= plan.gpus:
            rule = f"shard_size of layer '{name}' must be from 2 to {plan.gpus}"
            yield rule, f"is {layer.shard_size}"
    pieces = plan.schedule.micro_batches
    if not plan.shares and plan.global_batch_size % pieces:
        rule = f"schedule.micro_batches must divide the global batch of {plan.global_batch_size}"
        yield rule, f"is {pieces}"
    if plan.shares:
        total = sum(one.batch for one in plan.shares)
        if total != plan.global_batch_size:
            yield "shares must hold the samples of the global batch", f"hold {total}"
        if min(min(one.replicas, one.micro_batches, one.samples) for one in plan.shares) < 1:
            yield "shares must have a sample each", "lack some"
        if sum(one.num_devices for one in plan.shares) != plan.gpus or plan.stages:
            yield f"shares must be on {plan.gpus} GPUs of one stage", "are not"
    if not plan.stages:
        return
    held = [name for stage in plan.stages for name in stage.layers]
    if sorted(held) != sorted(plan.layers):
        yield "stages must hold every layer once", "do not"
    for number, stage in enumerate(plan.stages):
        levels = len(stage.shape) == len(plan.shape)
        if not levels or min(stage.shape) < 1 or not 0 <= stage.first_device < plan.gpus:
            yield f"stages[{number}] must be on GPUs of the plan", "is not"
        known = set(stage.layers)
        if not all(known.issuperset(segment) for segment in stage.recompute):
            yield f"stages[{number}] must compute its own layers again", "names others"
    groups = {stage.group for stage in plan.stages}
    if sum(end - start for start, end in groups) != plan.gpus:
        yield f"stages must be on {plan.gpus} GPUs in all", "are not"
    try:
        plan.strategy.check_groups()
    except InputError as error:
        yield "stages must fit each other", f"do not: {error}"


def _figures(plan: CheckedPlan) -> Iterator[tuple[str, str]]:
    """Times and sizes that cannot be."""
    for cause in CAUSES:
        if cause not in plan.breakdown_s:
            yield f"breakdown_s must have {', '.join(CAUSES)}", f"lacks {cause}"
    for cause in COMMUNICATION:
        if cause not in plan.hidden_s:
            yield f"hidden_s must have {', '.join(COMMUNICATION)}", f"lacks {cause}"
    for holder in HOLDERS:
        if holder not in plan.memory_bytes:
            yield f"memory_bytes must have {', '.join(HOLDERS)}", f"lacks {holder}"
    for path, value in _leaves(_own_figures(plan), ""):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        parts = re.sub(r"\[\d+\]", "", path).split(".")
        seconds, sizes = (any(part.endswith(end) for part in parts) for end in ("_s", "_bytes"))
        most, unit = (LONGEST, "s") if seconds else (LARGEST, "bytes")
        if (seconds or sizes) and not 0 <= value <= most:
            yield f"{path} must be from 0 to {most:g} {unit}", f"is {value:g} {unit}"
    # device_peak_flops of 0 stands for a plan that does not say it
    rates = {"model_flops": plan.model_flops, "device_peak_flops": plan.device_peak_flops}
    for what, rate in rates.items():
        if not (rate == 0 or 1 <= rate <= MOST_FLOPS):
            yield f"{what} must be 0 or from 1 to {MOST_FLOPS:g}", f"is {rate:g}"
    if not 0 <= plan.search.gap < LONGEST:
        yield "search.gap must not be negative", f"is {plan.search.gap:g}"
    steps = {"step_time_s": plan.step_time_s, "memory_capacity_bytes": plan.memory_capacity_bytes}
    for number, row in enumerate(plan.baselines):
        if row.step_time_s is not None:
            steps[f"baselines[{number}].step_time_s"] = row.step_time_s
    for number, finalist in enumerate(plan.finalists):
        steps[f"finalists[{number}].step_time_s"] = finalist.step_time_s
    for what, value in steps.items():
        # less than a clock of any machine ticks, so that quotients stay finite
        if value < 1e-12:
            yield f"{what} must be greater than 0", f"is {value:g}"


def _contradictions(plan: CheckedPlan) -> Iterator[tuple[str, str]]:
    """Figures that say the same, and differ."""
    step, causes = plan.step_time_s, plan.breakdown_s
    total = sum(causes[cause] for cause in CAUSES)
    if not math.isclose(total, step, rel_tol=ROUNDING):
        yield f"breakdown_s must sum to step_time_s, {step:g} s,", f"sums to {total:g} s"
    groups: dict[tuple[int, int], list[str]] = {}
    for stage in plan.stages:
        groups.setdefault(stage.group, []).extend(stage.layers)
    for names in groups.values() or [list(plan.layers)]:
        by_layer = sum(plan.layers[name].time for name in names)
        if by_layer > step * (1 + ROUNDING):
            rule = f"times of layers of a GPU must sum to at most the step, {step:g} s,"
            yield rule, f"sum to {by_layer:g} s"
    bound = plan.search.lower_bound_s
    if bound > step * (1 + ROUNDING):
        yield f"search.lower_bound_s must not exceed the step, {step:g} s,", f"is {bound:g} s"
    for row in plan.baselines:
        if row.fits and (row.step_time_s is None or row.peak_memory_bytes is None):
            yield f"the strategy '{row.name}' must have figures, since it fits,", "has none"
    chosen = [row.step_time_s for row in plan.finalists if row.chosen]
    if plan.finalists and len(chosen) != 1:
        yield "one of finalists must be chosen", f"{len(chosen)} are"
    for seconds in chosen:
        if not math.isclose(seconds, step, rel_tol=ROUNDING):
            rule = f"step_time_s of the chosen one of finalists must be the step, {step:g} s,"
            yield rule, f"is {seconds:g} s"


def _own_figures(plan: CheckedPlan) -> dict[str, Any]:
    """What a plan says itself; networks and clusters that it carries check their own figures."""
    values = msgspec.to_builtins(plan, enc_hook=dict)
    return {name: value for name, value in values.items() if name != "carried"}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, object]]:
    """Every value of a tree with its place."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{number}]")
    else:
        yield path, value
