"""What it takes to move activations between the layouts of neighbours, at least."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.communication.layout import Layouts, concatenate
from costmodels.communication.layout_changes import LayoutChanges, layout_changes
from costmodels.communication.topology import Topology
from costmodels.distribution import Candidates
from costmodels.distribution.rows import unique_rows
from costmodels.graph import Edge, Graph, Layer, Tensor
from costmodels.layers.local_work import local_size
from costmodels.step.machine import Machine
from planner.planning.space.layer_space import LayerSpace
from search.problem.deadline import Deadline, OutOfTime

Floats = NDArray[np.float64]


class TooManyCandidates(OutOfTime):
    """Time was up among the shuffles, of which fewer candidates have fewer."""


class TooManyLayouts(OutOfTime):
    """There are more layouts than can be compared in a while."""


class EdgeTimes(Struct, frozen=True, kw_only=True, eq=False):
    """Shuffle times of one edge; (candidates of the source, candidates of the target). [s]

    `link` is how long the backward one fills the links of the outermost level at least.
    """

    forward: Floats
    backward: Floats
    link: Floats


def number_layouts(
    distinct: Sequence[tuple[LayerSpace, list[Layer]]],
    topology: Topology,
    most: float = math.inf,
) -> tuple[dict[str, LayerSpace], LayoutChanges]:
    """Number the layouts of all tensors, and count what changes between any two of them.

    There are far fewer layouts than candidates, since layers split in different ways may write a
    tensor in the same way.

    Parameters
    ----------
    distinct
        Distinct layers, each with those that are alike.
    topology
        The levels of the machine.
    most
        With more layouts none are compared: `TooManyLayouts` is raised. [items]

    Returns
    -------
    For every layer its candidates with the numbers of their layouts, and the changes.
    """
    parts: list[Layouts] = []
    for space, _ in distinct:
        layer, candidates = space.layer, space.candidates
        parts.append(Layouts.of(candidates, layer.output, layer.reduced_dims))
        parts += [
            Layouts.of(candidates, tensor, layer.absent_dims(slot))
            for slot, tensor in enumerate(layer.inputs)
        ]
    table = concatenate(parts)
    first, inverse = unique_rows(table.codes())
    if len(first) > most:
        raise TooManyLayouts
    rows = np.split(inverse, np.cumsum([len(p) for p in parts])[:-1])
    unique = table.take(first)
    whole = replace(unique, partial=np.ones_like(unique.partial))
    _, blocks = unique_rows(whole.codes())
    spaces, position = {}, 0
    for space, alike in distinct:
        numbered = replace(
            space,
            writes=rows[position],
            reads=(reads := tuple(rows[position + 1 : position + 1 + len(space.layer.inputs)])),
            blocks=tuple(blocks[numbers] for numbers in reads),
        )
        position += 1 + len(space.layer.inputs)
        for layer in alike:
            spaces[layer.name] = numbered
    return spaces, layout_changes(unique, topology)


def _unevenness(tensor: Tensor, candidates: Candidates) -> Floats:
    """How much larger the largest block is than the mean one; (candidates,)."""
    ways = np.ones(len(candidates))
    for dim in tensor.dims & set(candidates.dims):
        ways = ways * candidates.degree(dim)
    return local_size(tensor, candidates) * ways / tensor.size


def _edge_times(
    source: LayerSpace, target: LayerSpace, slot: int, changes: LayoutChanges, machine: Machine
) -> EdgeTimes:
    """Shuffle of an activation forward, and of its gradient backward.

    Parameters
    ----------
    source, target, slot
        The layers, and which input of the target it is.
    changes
        Between any two layouts.
    machine
        Where and how it runs.
    """
    tensor = target.layer.inputs[slot]
    num_bytes = tensor.size * machine.training.activation_size
    writes, reads = source.writes, target.reads[slot]
    read = num_bytes * _unevenness(tensor, target.candidates)
    written = num_bytes * _unevenness(source.layer.output, source.candidates)
    forward = changes.time(writes, reads, read[None, :])
    backward = changes.time(reads, writes, written[None, :])
    ours, theirs = source.costs, target.costs
    beyond = np.maximum(ours.summed_forward - ours.reduce_forward, 0.0)
    forward += changes.summed[np.ix_(writes, reads)] * beyond[:, None]
    if len(target.layer.inputs) == 1:
        # of several inputs each has its own sums, which are costed together
        beyond = np.maximum(theirs.summed_backward - theirs.reduce_backward, 0.0)
        backward += changes.summed[np.ix_(reads, writes)] * beyond[:, None]
    link = changes.link_time(reads, writes, num_bytes)
    return EdgeTimes(forward=forward, backward=backward.T, link=link.T)


def shuffle_times(
    graph: Graph,
    spaces: dict[str, LayerSpace],
    changes: LayoutChanges,
    machine: Machine,
    deadline: Deadline | None = None,
) -> dict[Edge, EdgeTimes]:
    """Times of every edge that carries a gradient; edges that are alike share them.

    Parameters
    ----------
    graph
        The network with its batch.
    spaces, changes
        Candidates with their numbered layouts, and the changes between any two of those.
    machine
        Where and how it runs.
    deadline
        When to give up by raising `TooManyCandidates`.
    """
    times: dict[tuple[int, int, int], EdgeTimes] = {}
    result = {}
    for edge in graph.edges:
        if not graph.needs_input_gradient(edge):
            continue
        source, target = spaces[edge.source], spaces[edge.target]
        key = (id(source), id(target), edge.slot)
        if key not in times:
            if deadline is not None and deadline.passed:
                raise TooManyCandidates
            times[key] = _edge_times(source, target, edge.slot, changes, machine)
        result[edge] = times[key]
    return result


def between_neighbours(graph: Graph, edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """Of some edges those between layers that follow each other."""
    follow = set(itertools.pairwise(layer.name for layer in graph.compute_layers))
    return tuple(edge for edge in edges if (edge.source, edge.target) in follow)


def repeated_slots(graph: Graph, edges: Sequence[Edge]) -> dict[Edge, tuple[int, ...]]:
    """Of some edges those to layers that read the same output in inputs before: these inputs."""
    found = {}
    for edge in edges:
        into = graph.producers[edge.target]
        same = [e.slot for e in into if e.source == edge.source and e.slot < edge.slot]
        if same:
            found[edge] = tuple(same)
    return found
