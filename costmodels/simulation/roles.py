"""The devices of a job, and what they hold: told before any task is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from costmodels.simulation.communicators import communicator_memory
from costmodels.simulation.execution import Role
from costmodels.simulation.fragmentation import reserved_memory
from costmodels.simulation.job import Job
from costmodels.simulation.least_held import least_of_role
from costmodels.simulation.offload import most_away
from costmodels.simulation.pace import Starts, pass_starts
from costmodels.simulation.schedules import StagePass, group_order
from costmodels.simulation.tensors import JobView
from costmodels.simulation.weights import WeightWork


class Roles:
    """The roles of a job.

    Parameters
    ----------
    job, view
        The job, and its stages as they see it.
    works
        On the weights of every stage.
    away
        What waits in the host of each stage for each of its micro-batches under way. [B]
    """

    def __init__(
        self, job: Job, view: JobView, works: Sequence[WeightWork], away: Sequence[float]
    ) -> None:
        self.job, self.view, self.works, self.away = job, view, works, away
        self.groups = job.strategy.groups

    def stages(self, role: int) -> tuple[int, ...]:
        """The stages of a role, in the order of the forward pass."""
        stages = self.job.strategy.stages
        return tuple(n for n, stage in enumerate(stages) if stage.group == self.groups[role])

    @cached_property
    def orders(self) -> list[list[StagePass]]:
        """The passes of each role, in their order."""
        schedule, depth = self.job.strategy.schedule, len(self.groups)
        return [group_order(schedule, n, self.stages(n), depth) for n in range(depth)]

    @cached_property
    def every(self) -> tuple[Role, ...]:
        """All roles, with what their allocators hold."""
        programs = [work.program for work in self.works]
        starts = pass_starts(programs, self.orders) if self.job.runtime.launches_ahead else {}
        return tuple(self._role(role, starts) for role in range(len(self.groups)))

    @cached_property
    def least_short(self) -> float:
        """By how much the fullest role holds more than its memory, at least; negative below. [B]

        Whatever waits for what while the step runs.
        """
        short = max(map(self._least_short, range(len(self.groups))))
        if short > 0.0 or not self.job.runtime.caching:
            return short
        rows = ((one, sum(one.fixed_memory.values())) for one in self.every)
        taken = (
            fixed + max(one.reserved or 0.0, one.lasting or 0.0) - one.capacity
            for one, fixed in rows
        )
        return max(short, *taken)

    def _least_short(self, role: int) -> float:
        stages = self.stages(role)
        capacity = self.view.stage_links[stages[0]].cluster.device.memory
        works = [self.works[stage] for stage in stages]
        return sum(self._fixed(role).values()) + least_of_role(works, self.orders[role]) - capacity

    def _fixed(self, role: int) -> dict[str, float]:
        """What the devices of a role hold throughout, by holder. [B]"""
        stages, runtime = self.stages(role), self.job.runtime
        device = self.view.stage_links[stages[0]].cluster.device
        fixed = {"reserved": float(device.reserved_memory)}
        if runtime.caching:
            fixed["reserved"] += communicator_memory([self.works[stage] for stage in stages])
        for stage in stages:
            for holder, size in self.works[stage].fixed_memory().items():
                fixed[holder] = fixed.get(holder, 0.0) + size
        return fixed

    def _role(self, role: int, starts: Starts) -> Role:
        stages, order, runtime = self.stages(role), self.orders[role], self.job.runtime
        device = self.view.stage_links[stages[0]].cluster.device
        fixed = self._fixed(role)
        first, end = self.groups[role]
        name = _named(stages) if len(self.groups) > 1 else "all devices"
        if self.job.cluster.groups:
            name += f" ({' + '.join(g.name for g in self.view.stage_links[stages[0]].groups)})"
        reserved = lasting = None
        if runtime.caching:
            works, room = {stage: self.works[stage] for stage in stages}, sum(fixed.values())
            reserved, lasting = reserved_memory(works, order, device.memory - room, starts)
        return Role(
            name=name,
            first_device=first,
            num_devices=end - first,
            capacity=float(device.memory),
            fixed_memory=fixed,
            reserved=reserved,
            lasting=lasting,
            host_memory=sum(self.works[stage].host_memory for stage in stages)
            + most_away({stage: self.away[stage] for stage in stages}, order),
        )


def _named(stages: Sequence[int]) -> str:
    """What the devices of these stages are called; of many stages the first ones and the last."""
    numbers = [str(stage) for stage in stages]
    if len(numbers) > 3:
        numbers = [*numbers[:2], "...", numbers[-1]]
    return f"stage{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
