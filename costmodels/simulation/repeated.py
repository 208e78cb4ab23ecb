"""A step of many micro-batches from steps of few: once a pipeline is full, each adds the same.

Where weights are gathered, or gradients reduced, in every micro-batch, passes are not alone and
cannot be folded (`costmodels.simulation.folding`). A step of a few micro-batches is then run, and
one of a few more; what these add, each of the further ones adds, too. Memory is that of the few:
schedules other than GPipe hold no more micro-batches than there are stages. Where anything falls
behind, such as gradients that leave more slowly than they come, ever more of it waits and later
micro-batches may take longer, so that the whole step is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from costmodels.simulation.compiler import FEWEST_FOLDED, Compiler
from costmodels.simulation.executor import Behaviour
from costmodels.simulation.measure import RoleUse, SimulatedStep, run_graph
from costmodels.simulation.parts import beyond

# Starts of tasks are off by that part of what a micro-batch takes, by rounding.
_ROUNDING = 1e-9


def run_job(
    compiler: Compiler, behaviour: Behaviour, before_long: Callable[[float], None] | None = None
) -> tuple[SimulatedStep, int]:
    """Run a step, and tell how many of its micro-batches were run.

    Parameters
    ----------
    compiler
        The job, compiled.
    behaviour
        What slows operations down.
    before_long
        Told what running the whole step will take where few micro-batches do not tell it, before
        it is run; may raise. [s]
    """
    # weights pulled while the next step begins make steps reach into each other
    steps = 3 if compiler.job.runtime.gradient == "push_pull" else 1
    schedule = compiler.job.strategy.schedule
    count, depth = schedule.micro_batches, len(compiler.roles.groups)
    full, few, unit = _few(schedule.kind, depth)
    gpipe = schedule.kind == "gpipe" and depth > 1
    retained = compiler.job.training.memory_model == "retained"
    if steps > 1 or gpipe or retained or not compiler.repeats or count <= 2 * few + unit:
        return run_graph(compiler.compile(steps), behaviour), count
    if compiler.num_tasks(steps) < FEWEST_FOLDED:
        return run_graph(compiler.compile(steps), behaviour), count
    began = time.monotonic()
    less, more = (
        run_graph(compiler.with_micro_batches(n).compile(steps), behaviour)
        for n in (few, few + unit)
    )
    if not _is_steady(more, full, unit, more.step_time - less.step_time):
        if before_long is not None:
            before_long((time.monotonic() - began) * count / (2 * few + unit))
        return run_graph(compiler.compile(steps), behaviour), count
    return _longer(less, more, (count - few - unit) / unit), few + unit


def micro_batches_run(kind: str, depth: int, count: int) -> int:
    """Of how many micro-batches tasks are run in all where all of them would be many. [items]

    Parameters
    ----------
    kind, depth, count
        The schedule, groups of devices, and micro-batches. [items]
    """
    if kind == "gpipe" and depth > 1:
        return count
    _, few, unit = _few(kind, depth)
    return min(count, 2 * few + unit)


def _few(kind: str, depth: int) -> tuple[int, int, int]:
    """Micro-batches until all groups have work, those of the shorter step, and further ones.

    An interleaved schedule goes by as many micro-batches as there are groups. [items]
    """
    full, unit = (2 * depth, depth) if kind == "interleaved" else (depth, 1)
    return full, -(-(2 * full + 1) // unit) * unit, unit


def _is_steady(step: SimulatedStep, first: int, unit: int, longer: float) -> bool:
    """Whether all tasks of some micro-batches start so much later than those of others before them.

    Parameters
    ----------
    step
        A step whose pipeline is full while the others, and these, are computed.
    first, unit
        The first of the others, and how many there are. [items]
    longer
        What these add to the step. [s]
    """
    rows: dict[tuple[int, int, int], list[float]] = {}
    for task, start in zip(step.task_times.graph.tasks, step.task_times.starts, strict=True):
        rows.setdefault((task.role, task.stage, task.micro), []).append(start)
    for (role, stage, micro), starts in rows.items():
        if first <= micro < first + unit:
            later = rows.get((role, stage, micro + unit), [])
            moved = (after - before - longer for before, after in zip(starts, later, strict=False))
            if len(later) != len(starts) or max(map(abs, moved)) > _ROUNDING * longer:
                return False
    return True


def _longer(less: SimulatedStep, more: SimulatedStep, times: float) -> SimulatedStep:
    """A step of more micro-batches.

    Parameters
    ----------
    less, more, times
        As of `costmodels.simulation.parts.beyond`.
    """

    def role(first: RoleUse, second: RoleUse) -> RoleUse:
        return replace(
            second,
            busy=beyond(first.busy, second.busy, times),
            exposed=second.exposed + times * (second.exposed - first.exposed),
            idle=max(second.idle + times * (second.idle - first.idle), 0.0),
            received=second.received + times * (second.received - first.received),
        )

    return replace(
        more,
        step_time=more.step_time + times * (more.step_time - less.step_time),
        roles=tuple(map(role, less.roles, more.roles)),
        longest=more.critical_path + times * (more.critical_path - less.critical_path),
        told_from=(less, times),
    )
