"""Apply a plan to a module, which then trains under torch.distributed as the plan says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from costmodels.errors import InputError
from planner.plan import Plan
from planner.plan.edited import check_unedited
from planner.torch.apply.groups import import_without_group
from planner.torch.apply.module import PlannedModule, Received
from planner.torch.launch import PLAN_VARIABLE
from planner.torch.source import samples_of
from planner.torch.ways import is_for_transformers

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PlannedModule", "Received", "apply", "load_plan", "local_batch"]


def apply(
    plan: Plan | str | os.PathLike[str],
    model: nn.Module,
    *,
    inputs: object = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> PlannedModule:
    """The module as the plan trains it. All ranks call it, after `init_process_group`.

    Parameters
    ----------
    plan
        The plan, or the path of its file.
    model
        The module that it was made for, with the same weights on every rank.
    inputs
        Shapes or tensors of a whole batch, where the plan alone does not tell them.
    loss
        A function of the output and the target which is a mean over positions; the cross entropy
        of the features by default. Where the module has a loss itself, that is used.

    Raises
    ------
    InputError
        When the plan is for another number of ranks, for another module, or was edited.
    """
    plan = check_unedited(plan if isinstance(plan, Plan) else Plan.load(plan), "the plan")
    if not dist.is_initialized():
        raise InputError(
            "a plan is applied under torch.distributed, which must be initialised but is not; call "
            "torch.distributed.init_process_group first"
        )
    ranks = dist.get_world_size()
    if ranks != plan.gpus:
        raise InputError(
            f"the plan must be for as many ranks as there are but is for {plan.gpus} and there are "
            f"{ranks}; run it with --nproc-per-node {plan.gpus}, or plan for --gpus {ranks}"
        )
    import_without_group()
    given = [] if inputs is None else samples_of(inputs, torch.device("meta"), model)
    maker = _way(plan, sum(isinstance(one.tensor, torch.Tensor) for one in given))
    return maker(plan, model, inputs=inputs, loss=loss)


def _way(plan: Plan, inputs: int) -> Callable[..., PlannedModule]:
    """What applies plans of that kind, of modules of so many inputs."""
    if is_for_transformers(plan, inputs):
        from planner.torch.apply.transformers import apply_transformer

        return apply_transformer
    from planner.torch.apply.convolution import apply_convolution

    return apply_convolution


def local_batch(module: PlannedModule, tensor: Tensor, slot: int | str = 0) -> Tensor:
    """The part of a tensor of the whole batch that this rank of a module reads.

    Parameters
    ----------
    module
        What `apply` returned.
    tensor
        The tensor, of all samples of a step.
    slot
        Which input of the module it is, or "target".
    """
    return module.local_batch(tensor, slot)


def load_plan(path: str | os.PathLike[str] | None = None) -> Plan:
    """The plan of a file; by default that which `planner run` was called with.

    Raises
    ------
    InputError
        When there is none.
    """
    found: Any = path or os.environ.get(PLAN_VARIABLE)
    if not found:
        raise InputError(
            f"a plan must be named by its path or by {PLAN_VARIABLE} but neither is; start the "
            "script with 'planner run plan.json -- train.py'"
        )
    return Plan.load(found)


class _Package(ModuleType):
    """This package: importing a part of it hides the function that it is named after."""

    def __call__(self, *args: Any, **options: Any) -> PlannedModule:
        """Call that function."""
        return apply(*args, **options)


sys.modules[__name__].__class__ = _Package
