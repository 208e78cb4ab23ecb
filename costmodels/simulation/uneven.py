"""Replicas on several groups of hosts, each with as many samples as its devices are fast.

Each group is a job of its own, on its own devices; what all replicas do together, the exchange of
gradients and of weights that are cut over them, begins when the last of them is ready, over the
slower links. So every group has such a task, and all of these wait for what any of them waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.simulation.compiler import Compiler
from costmodels.simulation.execution import ASYNCHRONOUS, ExecutionGraph, Role, Task
from costmodels.simulation.job import Job
from costmodels.simulation.operations import Key
from costmodels.strategy import BatchShare


class Together(NamedTuple):
    """A task of all groups: its micro-batch (-1 for the last of each), phase and operation."""

    micro: int
    phase: str
    key: Key


class UnevenCompiler(Compiler):
    """Lays out the tasks of a step of uneven shares; itself it is the compiler of the first group.

    Parameters
    ----------
    jobs
        Of each group, with its micro-batches on its devices.
    shares
        What each has.
    """

    def __init__(self, jobs: Sequence[Job], shares: Sequence[BatchShare]) -> None:
        super().__init__(jobs[0])
        self.shares = tuple(shares)
        self.others = [Compiler(job) for job in jobs[1:]]
        runtime = jobs[0].runtime
        if runtime.fusion is not None or runtime.gradient == "push_pull":
            raise InputError(
                f"the runtime {runtime.name} cannot run replicas with uneven samples, which reduce "
                "gradients in the same pieces everywhere; use ddp or fsdp"
            )
        counts = {share.micro_batches for share in shares}
        if len(counts) > 1 and super().repeats:
            numbers = ", ".join(map(str, sorted(counts)))
            raise InputError(
                "replicas must have equally many micro-batches where each of these gathers weights "
                f"or reduces gradients, but have {numbers}; use another runtime, or cut less of "
                "the weights"
            )

    @property
    def repeats(self) -> bool:
        """No: all micro-batches of such a step are run."""
        return False

    def compile(self, steps: int) -> ExecutionGraph:
        """The execution graph of some steps: of every group, joined where all work together."""
        graphs = [super().compile(steps), *(other.compile(steps) for other in self.others)]
        compilers: list[Compiler] = [self, *self.others]
        starts = [0]
        for graph in graphs:
            starts.append(starts[-1] + len(graph.tasks))
        meeting: dict[Together, list[int]] = {}
        for compiler, start in zip(compilers, starts, strict=False):
            for mark, number in _together(compiler).items():
                meeting.setdefault(mark, []).append(start + number)
        roles: list[Role] = []
        tasks: list[Task] = []
        for share, graph, start in zip(self.shares, graphs, starts, strict=False):
            tasks += [_among_groups(task, share, len(roles), start) for task in graph.tasks]
            roles += [
                replace(
                    role,
                    name=f"group {share.group}",
                    first_device=share.first_device + role.first_device,
                )
                for role in graph.roles
            ]
        for numbers in meeting.values():
            waits = tuple(dict.fromkeys(n for number in numbers for n in tasks[number].after))
            for number in numbers:
                tasks[number] = tasks[number]._replace(after=waits)
        return ExecutionGraph(roles=tuple(roles), tasks=tuple(tasks), steps=steps)


def _together(compiler: Compiler) -> dict[Together, int]:
    """What a group does with the others, by what it is and the number of its task."""
    last = compiler.job.strategy.schedule.micro_batches - 1
    return {
        Together(-1 if micro == last else micro, phase, key): number
        for (_, _, micro, phase, key), number in compiler.ids.items()
        if compiler.rows[number][4].queue in ASYNCHRONOUS
    }


def _among_groups(task: Task, share: BatchShare, role: int, start: int) -> Task:
    """A task of a group among those of all groups; each group has links of its own.

    Parameters
    ----------
    task, share
        The task, and the group.
    role, start
        Roles and tasks before those of the group. [items]
    """
    loads = tuple(
        ((level, child + share.first_device, way), part) for (level, child, way), part in task.loads
    )
    after = tuple(number + start for number in task.after)
    return task._replace(role=task.role + role, after=after, loads=loads)
