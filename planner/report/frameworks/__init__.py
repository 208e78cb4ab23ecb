"""Plans in the form of the frameworks that people train with, and what these cannot express."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from costmodels.errors import InputError
from costmodels.strategy.blocks import is_stack_on_tokens
from costmodels.units import format_bytes, format_items
from planner.output import Output, check_outputs, write_text
from planner.plan import Plan
from planner.report.frameworks.code import fsdp2, jax
from planner.report.frameworks.settings import accelerate, deepspeed, megatron, torchtitan
from planner.report.sentences import stage_of_zero
from planner.request.frameworks import FRAMEWORKS
from planner.request.inputs.question import ALL_REDUCE, EXECUTION
from planner.request.plans import made_under
from planner.request.setting import DEFAULT_RUNTIME

WRITERS: Mapping[str, Callable[[Plan], tuple[Mapping[str, str], tuple[str, ...]]]] = (
    MappingProxyType(
        {
            "torchtitan": torchtitan,
            "megatron": megatron,
            "deepspeed": deepspeed,
            "accelerate": accelerate,
            "fsdp2": fsdp2,
            "jax": jax,
        }
    )
)


# What files of a framework say beside splits; "network" where its own scripts build that.
SAID: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "torchtitan": ("batch", "sequence", "precision", "network"),
        "megatron": ("batch", "sequence", "optimizer", "precision", "network"),
        "deepspeed": ("batch", "precision"),
        "accelerate": ("ranks", "precision"),
        "fsdp2": (),
        "jax": (),
    }
)


def require_framework(name: str) -> None:
    """Refuse the name of a framework that no files are written for."""
    if name not in WRITERS:
        rule = f"be one of {', '.join(WRITERS)}"
        raise InputError.rule("the framework (--to)", rule, f"'{name}'", "choose one")


def export_plan(
    plan: Plan, framework: str, folder: str | os.PathLike[str], inputs: Iterable[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write a plan for a framework; the files, and what of the plan they do not say.

    Parameters
    ----------
    plan
        The plan.
    framework
        One of `WRITERS`.
    folder
        Where to; it is made if it is not there.
    inputs
        Files that must not be overwritten.

    Raises
    ------
    InputError
        When there is no such framework, the folder cannot be written to, or a pipeline cannot be
        said by one mesh.
    """
    require_framework(framework)
    if plan.num_groups > 1 and FRAMEWORKS[framework].by_layer:
        # which others train it depends on the network
        others = "torchtitan or megatron" if _is_on_tokens(plan) else "planner.torch.apply"
        raise InputError(
            f"{framework} is written for plans of one stage but this has {plan.num_groups} groups "
            f"of stages; plan again with --for {framework}, or use {others}"
        )
    files, cannot = WRITERS[framework](plan)
    cannot = (*cannot, *_uneven_hosts(plan), *_of_another_runtime(plan, framework))
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {place} cannot be made ({error.strerror}); choose another one (-o)"
        ) from None
    rows = "".join(f"- {sentence}\n" for sentence in cannot) or "Nothing.\n"
    left = "".join(f"- {what}\n" for what in _left_to_set(plan, framework))
    notes = (
        f"# What of the plan for {plan.model} these files do not say\n\n{rows}\n"
        f"# What the launcher and the training script are to set\n\n{left}"
    )
    written = {**files, "NOTES.md": notes}
    check_outputs(
        [
            Output(option="-o", path=str(place / name), suffixes=(Path(name).suffix,))
            for name in written
        ],
        inputs,
    )
    for name, text in written.items():
        write_text(place / name, text)
    return tuple(str(place / name) for name in written), cannot


def _is_on_tokens(plan: Plan) -> bool:
    """Whether it is of one stack of blocks on tokens."""
    return is_stack_on_tokens({name: layer.kind for name, layer in plan.layers.items()})


def _left_to_set(plan: Plan, framework: str) -> Iterator[str]:
    """What of a step is neither split nor in the files of a framework."""
    said = SAID[framework]
    if "ranks" not in said or plan.idle_gpus:
        idle = f"; {format_items(plan.idle_gpus, 'more GPU')} would have no work"
        yield f"ranks: {plan.gpus:,}{idle if plan.idle_gpus else ''}"
    if "batch" not in said:
        parts = plan.schedule.micro_batches
        yield f"global batch: {format_items(plan.global_batch_size, 'sample')}" + (
            f", in {format_items(parts, 'micro-batch')}" if parts > 1 else ""
        )
    if "sequence" not in said and "sequence" in plan.input_shape:
        yield f"length of sequences: {plan.input_shape['sequence']:,}"
    if "optimizer" not in said:
        yield f"optimizer: {plan.training.optimizer}"
    # of that no file says more than of fp32
    if "precision" not in said or plan.training.precision == "tf32":
        yield f"precision: {plan.training.precision}"
    yield from _options_to_set(plan)
    if "network" in said and not _is_on_tokens(plan):
        yield f"network: the scripts of {framework} train stacks of blocks on tokens, not this one"


def _options_to_set(plan: Plan) -> Iterator[str]:
    """Options of a step that are others than those which frameworks have by themselves."""
    training, runtime = plan.training, made_under(plan)
    if runtime.tunable and training.bucket_bytes != runtime.bucket:
        yield f"gradient buckets: {format_bytes(training.bucket_bytes)}"
    if training.all_reduce != ALL_REDUCE.usual:
        yield f"all-reduce algorithm: {training.all_reduce}"
    if training.execution != EXECUTION.usual:
        yield f"execution: {training.execution}"


def _uneven_hosts(plan: Plan) -> Iterator[str]:
    """What no framework is told of hosts of several kinds."""
    for one in plan.shares:
        last = one.first_device + one.num_devices - 1
        yield (
            f"samples are shared out unevenly: on group {one.group} (GPUs {one.first_device} to "
            f"{last}, {format_items(one.replicas, 'replica')}) each replica has "
            f"{format_items(one.micro_batches, 'micro-batch')} of {one.samples:,}, and gradients "
            "are to be summed with these weights"
        )
    if len({end - first for first, end in plan.strategy.groups}) > 1:
        yield "groups of stages have unlike numbers of GPUs: see stages[] of the plan"


def _of_another_runtime(plan: Plan, framework: str) -> Iterator[str]:
    """That the plan may take and hold something else than under the framework."""
    stage = stage_of_zero(plan)
    usual = "fsdp" if stage > 2 else DEFAULT_RUNTIME
    if plan.runtime != (FRAMEWORKS[framework].runtime_of(stage) or usual):
        yield (
            f"step time and memory are those of the runtime {plan.runtime}, and may be others "
            f"under {framework}: plan with --for {framework} for what it takes and holds"
        )
