"""Run the stages of a plan by torch.distributed.pipelining, in the schedule of the plan."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from costmodels.errors import InputError
from planner.plan import Plan
from planner.plan.sharding import PIPELINE_AXIS
from planner.torch.apply.groups import RankGroup
from planner.torch.apply.losses import Loss
from planner.torch.apply.running import StageModule
from planner.torch.apply.staging import StageSteps
from planner.torch.apply.steps import Program
from planner.torch.apply.tracing import node_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

# By the kind of a plan's schedule: what PyTorch calls it, and whether it takes several stages.
_SCHEDULES: Mapping[str, tuple[Any, bool]] = {
    "gpipe": (ScheduleGPipe, False),
    "1f1b": (Schedule1F1B, False),
    "interleaved": (ScheduleInterleaved1F1B, True),
    "zero-bubble": (ScheduleInterleavedZeroBubble, True),
}


class _Stage(PipelineStage):
    """A stage that does not keep its group."""

    @property
    def group(self) -> dist.ProcessGroup:
        """The group of the ranks that have the stages."""
        return self._ranks.now

    @group.setter
    def group(self, group: dist.ProcessGroup) -> None:
        self._ranks = RankGroup(group)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """The gradients to send, each in one piece: that of a part of a joined tensor is not."""
        found = self.bwd_cache.get(bwd_chunk_id)
        if found is not None:
            pieces = (one if one is None else one.contiguous() for one in found)
            self.bwd_cache[bwd_chunk_id] = tuple(pieces)
        sends: list[dist.P2POp] = super().get_bwd_send_ops(bwd_chunk_id)
        return sends


class Pipeline:
    """The stages of one rank, and the schedule that they run in.

    Parameters
    ----------
    plan, program
        The plan, and what its ranks run.
    modules, stages
        The stages of this rank, and all of them.
    mesh
        All ranks.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        modules: Mapping[int, StageModule],
        stages: Sequence[StageSteps],
        mesh: DeviceMesh,
    ) -> None:
        schedule = plan.schedule
        if schedule.kind not in _SCHEDULES or schedule.max_in_flight is not None:
            raise InputError(
                f"the schedule of a plan that is applied must be one of {', '.join(_SCHEDULES)} "
                f"without a limit in flight but is '{schedule.kind}' with "
                f"{schedule.max_in_flight}; plan without that"
            )
        self.program, self.count = program, schedule.micro_batches
        self.ranks_ahead = RankGroup(mesh.get_group(PIPELINE_AXIS))
        device = torch.device(mesh.device_type)
        trained = program.traced.trained
        for stage in stages[1:]:
            # PyTorch splits the backward pass at the gradients of what enters a stage
            if schedule.kind == "zero-bubble" and not any(
                node_of(key) in trained for key in stage.entering
            ):
                raise InputError(
                    f"a schedule that splits the backward pass must have something trained before "
                    f"each stage but all before stage {stage.number} is frozen; use --schedule 1f1b"
                )
        rows = []
        for number, module in sorted(modules.items()):
            stage = stages[number]
            rows.append(
                _Stage(
                    module,
                    number,
                    len(stages),
                    device,
                    input_args=tuple(map(self._example, stage.entering)),
                    output_args=tuple(map(self._example, stage.leaving)),
                    group=self.ranks_ahead.now,
                )
            )
        self.is_last = len(stages) - 1 in modules
        kind, many = _SCHEDULES[schedule.kind]
        self.losses: list[Tensor] = []
        self.loss: Loss | None = None
        self.schedule = kind(
            rows if many else rows[0], self.count, loss_fn=self._loss, scale_grads=False
        )

    def _example(self, key: Any) -> Tensor:
        """A tensor as a result of a stage is."""
        node = node_of(key)
        layout = self.program.layouts[key]
        value = node.meta["val"]
        value = value[0] if isinstance(value, list | tuple) else value
        shape = layout.local_shape(self.program.place.sizes)
        grad = value.dtype.is_floating_point and node in self.program.traced.trained
        return torch.empty(shape, dtype=value.dtype, requires_grad=grad)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        assert self.loss is not None, "a step is under way"
        summand = self.loss.summand(output, target) / self.count
        self.losses.append(summand.detach())
        return summand

    def step(self, inputs: Sequence[Tensor], target: Tensor, loss: Loss) -> Tensor:
        """One step; the mean loss of the whole batch, on every rank.

        Parameters
        ----------
        inputs, target
            The rank's blocks.
        loss
            The loss.
        """
        self.losses, self.loss = [], loss
        names = [node.name for node in self.program.traced.inputs]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.schedule.step(
                **dict(zip(names, inputs, strict=True)), target=target if self.is_last else None
            )
        total = torch.zeros((), dtype=torch.float64)
        if self.is_last:
            total = loss.total(torch.stack(self.losses).sum())
        found = [total.detach().cpu()]
        group = self.ranks_ahead.now
        members = dist.get_process_group_ranks(group)
        # the last stage lies on the ranks of the last group
        dist.broadcast_object_list(found, src=members[-1], group=group)
        return found[0]
