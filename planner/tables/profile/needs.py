"""Which local shapes a question rests on, and how much of the time of its plan and of the rivals.

The question is planned once. What the layers of the plan take counts in full. What their other
candidates take counts the less, the slower they are than the best one of the layer: `RIVAL` of it
where they are as fast, and by the fourth power of how much slower they are. Shapes that are asked
for by several layers and candidates count for all of them together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from costmodels.compute import Work
from costmodels.compute.work import DENSE_DIRECTIONS
from costmodels.distribution import Candidates, one_candidate
from costmodels.errors import InputError
from costmodels.graph import Graph, Layer
from costmodels.layers.halo_copies import joining_works
from costmodels.layers.local_work import local_parameters, local_work, update_work
from planner.joint.answer import joint_plan
from planner.joint.requests import wishes_of
from planner.plan import Plan
from planner.planning.options import SearchOptions
from planner.planning.prepare import prepare, usual_strategies
from planner.planning.space.formulate import Formulation
from planner.request.request import Request
from planner.request.setting import Setting, resolve
from planner.request.training_graphs import training_graph
from planner.tables.profile.shape import OPERATIONS, Shape

Floats = NDArray[np.float64]
RIVAL: Final = 0.5
SLOWER_POWER: Final = 4
# More layers than these are not listed candidate by candidate: the plan's shapes alone are.
MOST_LAYERS: Final = 3000


class Need(Struct):
    """One shape that a question asks the time of.

    Parameters
    ----------
    shape
        The shape.
    in_plan
        Its part of the time that the plan computes.
    rests
        How much rests on it: `in_plan`, and what rivals take.
    modelled
        Seconds of each of its passes as they are modelled. [s]
    """

    shape: Shape
    in_plan: float = 0.0
    rests: float = 0.0
    modelled: dict[str, float] = field(default_factory=dict)


class Needs(Struct, frozen=True, kw_only=True):
    """What a question rests on.

    Parameters
    ----------
    needs
        Its shapes, those that most rests on first.
    precision
        Precision of the question.
    unmeasurable
        Part of the time of the plan that no shape of `OPERATIONS` makes.
    question
        What was asked, in a few words.
    """

    needs: tuple[Need, ...]
    precision: str
    unmeasurable: float
    question: str


def needs_of(request: Request) -> Needs:
    """What the plan of a question, and its rivals, rest on.

    Raises
    ------
    InputError
        When the question cannot be asked.
    InfeasibleError
        When no plan fits in memory.
    """
    setting = resolve(request)
    plan = joint_plan(setting, SearchOptions(doubts=False), wishes=wishes_of(request, setting))
    found: dict[Shape, Need] = {}
    total, missing = _of_plan(plan, setting, found)
    if len(setting.graph.compute_layers) <= MOST_LAYERS:
        _of_rivals(plan, setting, found, total)
    if not found:
        raise InputError(
            f"{setting.model.name} must have a layer that can be measured "
            f"({', '.join(OPERATIONS)}) but has none; profile another network"
        )
    ranked = sorted(found.values(), key=lambda need: -need.rests)
    for need in ranked:
        need.in_plan /= total
        need.rests /= total
    compute = setting.machine.compute
    return Needs(
        needs=tuple(ranked),
        precision=compute.usual,
        unmeasurable=missing / total,
        question=f"{setting.model.name} on {setting.gpus} GPUs of {setting.cluster.name}",
    )


def _of_plan(plan: Plan, setting: Setting, found: dict[Shape, Need]) -> tuple[float, float]:
    """Seconds that the plan computes, and those that cannot be measured.

    Parameters
    ----------
    plan, setting
        The plan and its question.
    found
        Takes its shapes.
    """
    graph, batches = setting.graph, plan.schedule.micro_batches
    if batches > 1 and setting.batch % batches == 0:
        graph = training_graph(setting.model, setting.batch // batches, setting.machine.training)
    total = missing = 0.0
    for layer in graph.compute_layers:
        split = one_candidate(plan.layers[layer.name].distribution)
        for work in layer_works(layer, split, graph, setting):
            seconds = float(setting.machine.compute.time(work)[0].max())
            total += seconds
            for shape, _ in shapes_of(work):
                _count_shape(found, shape, work.direction, seconds, in_plan=seconds, rests=seconds)
                break
            else:
                missing += seconds
    return max(total, 1e-30), missing


def _of_rivals(plan: Plan, setting: Setting, found: dict[Shape, Need], total: float) -> None:
    """Add what the other candidates of the layers of a plan take.

    Parameters
    ----------
    plan, setting
        The plan and its question.
    found
        Takes their shapes.
    total
        Seconds that the plan computes. [s]
    """
    formulation = prepare(setting, SearchOptions(), usual_strategies(setting)).formulation
    count: Mapping[str, int] = _numbers_alike(formulation)
    for name, alike in count.items():
        space = formulation.spaces[name]
        times = np.maximum(space.costs.total, 1e-12)
        closeness = RIVAL * (times.min() / times) ** SLOWER_POWER * alike
        for work in layer_works(space.layer, space.candidates, setting.graph, setting):
            seconds = np.broadcast_to(setting.machine.compute.time(work)[0], times.shape)
            for shape, members in shapes_of(work, len(times)):
                # several candidates with one shape are one reason to measure it
                rests = float((closeness * seconds)[members].max())
                _count_shape(
                    found, shape, work.direction, float(seconds[members].max()), rests=rests
                )


def _numbers_alike(formulation: Formulation) -> dict[str, int]:
    """How many layers are alike, by the first of them."""
    count: dict[str, int] = defaultdict(int)
    for first in formulation.first_alike.values():
        count[first] += 1
    return count


def layer_works(layer: Layer, split: Candidates, graph: Graph, setting: Setting) -> Iterator[Work]:
    """The local work of a step of a layer, pass by pass.

    Parameters
    ----------
    layer, split
        The layer, and its distributions.
    graph, setting
        The network and the machine.
    """
    wanted = any(graph.input_gradients(layer.name)) or (not layer.is_dense and layer.parameters)
    for direction in DENSE_DIRECTIONS:
        if direction == "backward_data" and not wanted:
            continue
        if direction == "backward_weight" and not (
            layer.trains_weight or (layer.multiplies_activations and wanted)
        ):
            continue
        yield from local_work(layer, split, direction)
    yield from joining_works(layer, split, setting.machine, wants_gradient=bool(wanted))
    if layer.parameters and layer.shares_weight_with is None:
        parameters = local_parameters(layer, split)
        yield update_work(np.ceil(parameters), setting.machine.training.optimizer)


def shapes_of(work: Work, count: int = 1) -> Iterator[tuple[Shape, NDArray[np.int64]]]:
    """Distinct shapes of a work, and the candidates that have each.

    What no library runs, such as a part of a group of filters, is left out.

    Parameters
    ----------
    work
        Local work of the candidates.
    count
        How many candidates. [items]
    """
    if work.operation not in OPERATIONS:
        return
    extents = (*work.in_extents, *work.out_extents)
    columns = (work.samples, work.channels, work.filters, work.groups, work.visible, *extents)
    table = np.stack([np.broadcast_to(column, count) for column in columns], axis=1)
    rows, number = np.unique(table, axis=0, return_inverse=True)
    places, dims = number.reshape(-1), len(work.in_extents)
    for index, row in enumerate(rows):
        sizes = [float(size) for size in np.delete(row, 4)]
        if min(sizes) < 1 or not all(map(float.is_integer, sizes)):
            continue
        samples, channels, filters, groups, *ends = map(int, sizes)
        try:
            shape = Shape(
                operation=work.operation,
                samples=samples,
                channels=channels,
                filters=filters,
                in_extents=tuple(ends[:dims]),
                out_extents=tuple(ends[dims:]),
                kernel=work.kernel,
                stride=work.stride,
                groups=groups,
                visible=float(row[4]),
            )
        except ValueError:
            continue
        yield shape.flattened, np.flatnonzero(places == index)


def _count_shape(
    found: dict[Shape, Need],
    shape: Shape,
    direction: str,
    seconds: float,
    *,
    in_plan: float = 0.0,
    rests: float,
) -> None:
    """Count a shape.

    Parameters
    ----------
    found
        What was counted so far.
    shape, direction
        The shape, and which of its passes.
    seconds
        Modelled time of the pass. [s]
    in_plan, rests
        As of `Need`. [s]
    """
    need = found.setdefault(shape, Need(shape))
    need.in_plan += in_plan
    need.rests += rests
    need.modelled[direction] = seconds
