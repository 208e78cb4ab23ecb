"""More candidates for a search that has begun: what it knows of the others stays as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.distribution import Candidates, Distribution
from costmodels.graph import Graph, Layer
from costmodels.layers.layer_cost import layer_costs
from costmodels.step.machine import Machine
from costmodels.step.memory import held_inputs
from planner.planning.space.formulate import Formulation
from planner.planning.space.layer_space import LayerSpace, cost_sharers, kept_memory, with_rows
from planner.planning.space.shuffles import number_layouts, shuffle_times
from search.problem.deadline import Deadline


def extend(
    formulation: Formulation,
    more: Mapping[str, Candidates],
    deadline: Deadline | None = None,
    most_layouts: float = math.inf,
) -> Formulation:
    """A formulation with more candidates, behind those that it has.

    Parameters
    ----------
    formulation
        The network on the machine.
    more
        Further candidates, by the first layer that is alike.
    deadline
        When to give up by raising `OutOfTime`.
    most_layouts
        With more layouts `TooManyLayouts` is raised before they are compared. [items]
    """
    graph, machine, largest = formulation.graph, formulation.machine, formulation.largest
    alike: dict[str, tuple[LayerSpace, list[Layer]]] = {}
    for layer in formulation.layers:
        first = formulation.first_alike[layer.name]
        if first not in alike:
            space = formulation.spaces[first]
            if first in more:
                space = _more_candidates(graph, space, machine, more[first], largest=largest)
            alike[first] = (space, [])
        alike[first][1].append(layer)
    spaces, changes = number_layouts(list(alike.values()), machine.topology, most_layouts)
    return replace(
        formulation,
        spaces=spaces,
        edge_times=shuffle_times(graph, spaces, changes, machine, deadline),
        shared=cost_sharers(graph, spaces, machine, largest),
    )


def with_splits(
    formulation: Formulation,
    splits: Sequence[Mapping[str, Distribution]],
    deadline: Deadline | None = None,
) -> Formulation:
    """A formulation with the candidates that some assignments take, behind those that it has.

    Parameters
    ----------
    formulation
        The network on the machine.
    splits
        How each layer is split.
    deadline
        When to give up by raising `OutOfTime`.
    """
    more: dict[str, Candidates] = {}
    for layer in formulation.layers:
        first = formulation.first_alike[layer.name]
        seen = more.get(first, formulation.spaces[first].candidates)
        for one in splits:
            seen = with_rows(seen, [one[layer.name]])
        more[first] = seen
    counts = {name: len(formulation.spaces[name].candidates) for name in more}
    new = {n: c.take(np.arange(counts[n], len(c))) for n, c in more.items() if len(c) > counts[n]}
    return extend(formulation, new, deadline) if new else formulation


def taken(space: LayerSpace, indices: NDArray[np.int64]) -> LayerSpace:
    """The space of a layer with some of its candidates, whose layouts are to be numbered again."""
    return replace(
        space,
        candidates=space.candidates.take(indices),
        costs=space.costs.take(indices),
        kept=space.kept[indices],
        is_complete=False,
    )


def _more_candidates(
    graph: Graph, space: LayerSpace, machine: Machine, more: Candidates, *, largest: float
) -> LayerSpace:
    """The space of a layer with more candidates, behind those that it has.

    Parameters
    ----------
    graph
        The network with its batch.
    space
        The space.
    machine
        Where and how it runs.
    more
        Further candidates.
    largest
        Largest size of gradient buckets. [B]
    """
    layer = space.layer
    gradients = graph.input_gradients(layer.name)
    costs = layer_costs(layer, more, machine, input_gradients=gradients, largest_bucket=largest)
    owner = layer.shares_weight_with or layer.name
    users = 1 + len(graph.sharers.get(owner, ()))
    held = held_inputs(graph, layer.name)
    kept = kept_memory(layer, more, costs, held, users, machine.training)
    return replace(
        space,
        candidates=space.candidates.joined(more),
        costs=space.costs.joined(costs),
        kept=np.concatenate([space.kept, kept]),
    )
