"""Under which runtime the steps of a question are searched, and which stages of ZeRO it has."""

from __future__ import annotations

from functools import cache

from costmodels.simulation import Runtime, load_runtime
from planner.errors import ConflictError
from planner.joint.wishes import Wishes
from planner.planning.options import SearchOptions
from planner.request.setting import DEFAULT_RUNTIME, Setting
from planner.simulation.run import plan_runtime

# The usual runtime for weights that are cut: DistributedDataParallel does not cut them.
_CUTS_WEIGHTS = "fsdp"


def searched_runtime(setting: Setting) -> Runtime:
    """The runtime that was asked for, or the usual one of steps that cut no weights.

    Raises
    ------
    ConflictError
        When plans cannot be searched under the one that was asked for.
    """
    asked = setting.asked_runtime
    if asked is None:
        runtime = load_runtime(DEFAULT_RUNTIME)
        return plan_runtime(runtime, setting.machine.training.bucket_bytes)
    if asked.gradient == "push_pull" or not asked.synchronous:
        raise ConflictError(
            f"plans are of GPUs that exchange gradients among each other, but the runtime "
            f"{asked.name} has parameter servers; simulate it, or choose another --runtime"
        )
    assert setting.request is not None, "what was asked for is in the request"
    if setting.request.bucket_bytes is not None and not asked.tunable:
        raise ConflictError(
            f"the runtime {asked.name} has gradient buckets of its own; leave --bucket-size out"
        )
    return plan_runtime(asked, setting.machine.training.bucket_bytes)


def splits_by_layer(setting: Setting) -> bool:
    """Whether splits of one stage, layer by layer, can be searched: under the usual runtime."""
    asked = setting.asked_runtime
    return asked is None or asked == load_runtime(DEFAULT_RUNTIME)


def choice_runtime(runtime: Runtime, zero: int) -> Runtime:
    """The runtime of a stage of ZeRO: where weights are cut, the usual one has another beside it.

    Parameters
    ----------
    runtime
        As of `searched_runtime`.
    zero
        The stage.
    """
    return _cutting_weights() if zero > 2 and runtime.name == DEFAULT_RUNTIME else runtime


@cache
def _cutting_weights() -> Runtime:
    return load_runtime(_CUTS_WEIGHTS)


def stages_of_zero(setting: Setting) -> tuple[int, ...]:
    """The stages of ZeRO that are tried: all of them, or those of the runtime asked for."""
    asked = setting.asked_runtime
    return (0, 1, 2, 3) if asked is None else asked.stages_of_zero


def refuse_by_layer(setting: Setting, options: SearchOptions, wishes: Wishes) -> None:
    """Refuse what is of splits layer by layer, which are searched under the usual runtime alone.

    Parameters
    ----------
    setting, options, wishes
        As of `planner.joint.answer.joint_plan`.
    """
    asked = {
        "--least-memory": options.least_memory,
        "--dump-problem": options.dump_problem is not None,
        f"--for {wishes.framework}": wishes.framework is not None and wishes.leaves_splits,
    }
    for given, is_asked in asked.items():
        runtime = setting.asked_runtime
        if is_asked and runtime is not None:
            raise ConflictError(
                f"{given} is of splits layer by layer, which are searched under the usual runtime "
                f"alone, but --runtime is {runtime.name}; leave one out"
            )
