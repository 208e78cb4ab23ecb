"""Splits of one stage alone, on all GPUs or on fewer, along the axes of one mesh if need be."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from msgspec.structs import replace

from costmodels.graph import Graph
from costmodels.simulation import load_runtime
from planner.errors import InfeasibleError, detached
from planner.joint.hosts import on_gpus
from planner.joint.pace import Pace
from planner.joint.plans import left_idle, stopped_plan
from planner.notes import words
from planner.plan import Plan
from planner.plan.sharding import known_sharding
from planner.planning.answer import Answers
from planner.planning.optimize import plan_for
from planner.planning.options import SearchOptions
from planner.planning.staged import tried
from planner.planning.summary import bounded
from planner.request.parts import Degrees
from planner.request.setting import DEFAULT_RUNTIME, Setting
from search.problem.deadline import Deadline
from search.problem.notes import Note

# Part of a time limit that the search on all GPUs may take where fewer are asked as well, and that
# of any mesh where there are several.
SHARE = 0.5
# Part of the time left that it may take to tell whether data parallelism fits.
MOST_TO_TELL = 0.1
# By how much a time limit may be exceeded. [s]
MOST_BEYOND = 1.0


def fits_as_usual(setting: Setting, deadline: Deadline) -> bool:
    """Whether plain data parallelism fits, which is taken to be so where it takes long to tell."""
    pace = Pace(deadline=deadline, layers=len(setting.graph.compute_layers))
    if pace.one_plan > MOST_TO_TELL * deadline.remaining:
        return True
    step, _ = tried(setting, Degrees(), load_runtime(DEFAULT_RUNTIME))
    return step is not None and step.fits


def is_too_late(setting: Setting, deadline: Deadline) -> bool:
    """Whether another way to look for a plan would end later than is allowed beyond a limit."""
    pace = Pace(deadline=deadline, layers=len(setting.graph.compute_layers))
    return pace.one_plan > deadline.earlier(-MOST_BEYOND).remaining


def plan_of_splits(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    known: Answers | None,
    *,
    one_mesh: bool = False,
) -> Plan:
    """The plan of splits of one stage alone, on fewer GPUs where the batch is shared out there.

    Parameters
    ----------
    setting, options, deadline, known
        As of `planner.joint.answer.joint_plan`.
    one_mesh
        Whether all layers must be split along the axes of one mesh.

    Raises
    ------
    InfeasibleError
        When no plan that fits was found.
    """
    one = options.least_memory or options.dump_problem is not None
    fewer = None if one else _sharing_evenly(setting)
    how = _plan_in_one_mesh if one_mesh else _plan_or_error
    share = 1.0 if fewer is None else SHARE
    plan = other = how(setting, options, deadline.part(share), known)
    if fewer is not None and _cut_short_by(plan) != "interrupt":
        other = how(fewer, options, deadline, known)
    if fewer is not None and isinstance(other, Plan) and other is not plan:
        if isinstance(plan, InfeasibleError) or other.step_time_s < plan.step_time_s:
            return left_idle(other, setting.gpus - fewer.gpus, plan)
        plan = bounded(plan, other.search.lower_bound_s)
    if isinstance(plan, InfeasibleError):
        raise plan
    return plan


def _plan_or_error(
    setting: Setting, options: SearchOptions, deadline: Deadline, known: Answers | None
) -> Plan | InfeasibleError:
    """The plan on all GPUs of a question, or why there is none.

    Parameters
    ----------
    setting, options, deadline, known
        As of `plan_of_splits`.
    """
    try:
        return plan_for(setting, options, deadline, known)
    except InfeasibleError as error:
        return detached(error)


def _plan_in_one_mesh(
    setting: Setting, options: SearchOptions, deadline: Deadline, known: Answers | None
) -> Plan | InfeasibleError:
    """The same, with all layers split along the axes of one mesh, which a framework needs.

    It is looked for in every mesh where the fastest splits need several.

    Parameters
    ----------
    setting, options, deadline, known
        As of `plan_of_splits`.
    """
    meshes = list(_meshes_of(setting))
    if len(meshes) == 1:
        return _plan_or_error(setting, options, deadline, known)
    plan = _plan_or_error(setting, options, deadline.part(SHARE), known)
    if not isinstance(plan, Plan) or _has_one_mesh(plan):
        return plan
    found, least = plan, plan.search.lower_bound_s
    bounds: list[float] = []
    stopped = ""
    for number, mesh in enumerate(meshes):
        if _cut_short_by(plan) == "interrupt":
            stopped = "interrupt"
            break
        graph = _along_mesh(setting.graph, mesh)
        part = deadline.part(1.0 / (len(meshes) - number))
        plan = _plan_or_error(replace(setting, graph=graph), options, part, known)
        stopped = _cut_short_by(plan) or stopped
        if isinstance(plan, InfeasibleError):
            bounds += [math.inf] if plan.proven else []
        else:
            bounds.append(plan.search.lower_bound_s)
            if not _has_one_mesh(found) or plan.step_time_s < found.step_time_s:
                found = plan
    found = bounded(found, max(least, min(bounds)) if len(bounds) == len(meshes) else least)
    found = stopped_plan(found, stopped)
    if _has_one_mesh(found):
        return found
    note = words(Note.of("several-meshes", count=len(known_sharding(found.sharding).meshes)))
    return dataclasses.replace(found, fallbacks=(*found.fallbacks, note))


def _has_one_mesh(plan: Plan) -> bool:
    return len(known_sharding(plan.sharding).meshes) == 1


def _meshes_of(setting: Setting) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The axes of all meshes of the GPUs with as many axes as there can be, level by level.

    Those of a level are its prime factors, the outermost first. What is split along fewer axes is
    split along some of these.
    """
    return itertools.product(*map(_orders_of_primes, setting.machine.topology.shape))


def _orders_of_primes(size: int) -> list[tuple[int, ...]]:
    """All orders of the prime factors of a number."""
    factors = [n for n in range(2, size + 1) if size % n == 0]
    primes = [n for n in factors if not any(n % other == 0 for other in factors if other < n)]
    return [(n, *rest) for n in primes for rest in _orders_of_primes(size // n)] or [()]


def _along_mesh(graph: Graph, mesh: tuple[tuple[int, ...], ...]) -> Graph:
    """A network whose layers are split along the axes of a mesh."""
    layers = {name: replace(layer, mesh=mesh) for name, layer in graph.layers.items()}
    return replace(graph, layers=layers)


def _cut_short_by(plan: Plan | InfeasibleError) -> str:
    return plan.stopped_by if isinstance(plan, InfeasibleError) else plan.search.stopped_by


def _sharing_evenly(setting: Setting) -> Setting | None:
    """The question for the most GPUs that share out the batch, None where all do or may unequally.

    Where layers must be split evenly, others repeat each other's work by whole levels of the
    cluster, which may be more than these leave without any.
    """
    layers = setting.graph.compute_layers
    if setting.batch % setting.gpus == 0 or not any(layer.evenly for layer in layers):
        return None
    numbers = (n for n in range(setting.gpus - 1, 1, -1) if setting.batch % n == 0)
    most = next(filter(setting.cluster.can_use, numbers), None)
    return None if most is None else on_gpus(setting, most)
