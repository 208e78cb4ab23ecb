"""Every distinct layer with its candidates and their costs; layers that are alike count once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from costmodels.cluster import Cluster
from costmodels.distribution import (
    Candidates,
    Distribution,
    count_candidates,
    enumerate_candidates,
)
from costmodels.graph import Graph, Layer
from costmodels.layers.layer_cost import LayerCosts, layer_costs
from costmodels.layers.local_work import local_parameters, local_size
from costmodels.layers.shared_weight import SharedWeight, shared_weight
from costmodels.simulation import load_runtime
from costmodels.step.machine import Machine
from costmodels.step.memory import held_inputs
from costmodels.step.training import Training
from planner.planning.space.candidates import Group, select_candidates
from planner.simulation.run import PLAN_RUNTIME
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]
# More candidates than any layer has: none is left out. [items]
NO_CAP = 10**9
# What layers must agree in to be alike: all but the name, which inputs need gradients, which inputs
# are counted as theirs in a bound of memory, and how many layers use their weight.
Likeness = tuple[tuple[object, ...], tuple[bool, ...], tuple[bool, ...], int]


class LayerSpace(Struct, frozen=True, kw_only=True, eq=False):
    """One distinct layer: the candidates that the search sees, and what they cost.

    Parameters
    ----------
    layer
        One of the layers that are alike.
    candidates, costs
        Candidates of the search.
    num_sensible
        Candidates before any were left out. [items]
    kept
        Memory that is held when the forward pass ends, or less: see `held_inputs`. [B]
    is_complete
        Whether there are no others at all.
    reads, writes
        Rows in the table of layouts, for each input and for the output.
    blocks
        Numbers of the layouts of each input, partial sums left out.
    """

    layer: Layer
    candidates: Candidates
    costs: LayerCosts
    num_sensible: int
    kept: Floats
    is_complete: bool = False
    reads: tuple[NDArray[np.int64], ...] = ()
    blocks: tuple[NDArray[np.int64], ...] = ()
    writes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def with_rows(candidates: Candidates, wanted: Sequence[Distribution]) -> Candidates:
    """The candidates, and those of the given distributions that are not among them."""
    rows = []
    for distribution in wanted:
        if candidates.find(distribution) is None:
            row = np.ones((1, len(candidates.shape), len(candidates.dims)), dtype=np.int64)
            for dim, ways in distribution.degrees.items():
                row[0, :, candidates.dims.index(dim)] = ways
            rows.append(row)
    if not rows:
        return candidates
    degrees = np.concatenate([candidates.degrees, *rows])
    return Candidates(dims=candidates.dims, degrees=degrees, shape=candidates.shape)


def _frozen(distribution: Distribution) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted(distribution.degrees.items()))


def largest_bucket(graph: Graph, training: Training, bucket_bytes: float | None) -> float:
    """Largest size that gradient buckets get, or all gradients where these are less. [B]

    The first bucket may have a size of its own, however small the others are.

    Parameters
    ----------
    graph
        The network.
    training
        Options of the step, its bucket size among them.
    bucket_bytes
        Another bucket size that is to be possible. [B]
    """
    # a layer that uses the weight of another one may send its gradient by itself
    parameters = [layer.parameters for layer in graph.compute_layers if layer.parameters]
    sizes = [count * training.gradient_size for count in parameters]
    first = load_runtime(PLAN_RUNTIME).first_bucket
    bucket = max(training.bucket_bytes, bucket_bytes or 0.0, first or 0.0)
    return float(min(sum(sizes), bucket)) if sizes else bucket


def kept_memory(
    layer: Layer,
    candidates: Candidates,
    costs: LayerCosts,
    held: Sequence[bool],
    users: int,
    training: Training,
) -> Floats:
    """Memory that a layer holds when the forward pass ends, at least; (candidates,). [B]

    Users of one weight hold the union of their blocks, which is no less than the mean of them: each
    counts its part of that.

    Parameters
    ----------
    layer
        The layer.
    candidates, costs
        Its candidates, and what they cost.
    held
        Which of its inputs are counted as its own.
    users
        Layers that use its weight. [items]
    training
        Options of the step.
    """
    fixed = costs.weights + costs.gradients + costs.state
    if users > 1:
        fixed = local_parameters(layer, candidates) * training.parameter_size / users
    kept = fixed + costs.saved + costs.scattered * layer.keeps_output
    for tensor, counts in zip(layer.inputs, held, strict=True):
        kept = kept + local_size(tensor, candidates) * training.activation_size * counts
    # a problem rounds usages up, which would make them no lower bound any more
    return np.floor(kept)


def _has_all(layer: Layer, shape: tuple[int, ...], cap: int) -> bool:
    """Whether a layer may keep all of its distributions.

    Parameters
    ----------
    layer
        The layer.
    shape
        Members of each level. [items]
    cap
        Candidates that it may keep. [items]
    """
    return count_candidates(layer, shape) <= cap


def _candidates_of_space(
    layer: Layer, machine: Machine, host_index: int, wanted: Sequence[Distribution], cap: int
) -> Candidates:
    """The candidates of a layer that are costed.

    Parameters
    ----------
    layer
        The layer.
    machine
        Where it runs.
    host_index
        Which level holds the devices of a host.
    wanted
        Distributions that must be among them.
    cap
        As of `cost_layers`.
    """
    shape = machine.topology.shape
    if cap:
        full = _has_all(layer, shape, cap)
        candidates = enumerate_candidates(layer, shape, host_index, full=full)
    else:
        none = enumerate_candidates(layer, (1,) * len(shape), host_index)
        candidates = Candidates(dims=none.dims, degrees=none.degrees[:0], shape=shape)
    return with_rows(candidates, wanted)


def cost_layers(
    graph: Graph,
    cluster: Cluster,
    machine: Machine,
    *,
    strategies: Sequence[Mapping[str, Distribution]],
    cap: int,
    largest: float,
    deadline: Deadline | None = None,
) -> list[tuple[LayerSpace, list[Layer]]]:
    """Cost all candidates of every distinct layer, and keep those that the search sees.

    Parameters
    ----------
    graph, cluster, machine
        The network with its batch; where and how it runs.
    strategies
        Assignments that must be among the candidates.
    cap
        Candidates that a layer may keep, 0 for those of the strategies only. Where all of its
        distributions are no more it has them all; else the sensible ones are costed. [items]
    largest
        Largest size of gradient buckets. [B]
    deadline
        When to give up by raising `OutOfTime`.
    """
    members = _alike_layers(graph)
    groups = []
    for (_, gradients, held, users), alike in members.items():
        if deadline is not None:
            deadline.check()
        # of thousands of layers that are alike most are split alike, too
        wanted = list(
            {_frozen(d): d for s in strategies for d in (s[x.name] for x in alike)}.values()
        )
        candidates = _candidates_of_space(alike[0], machine, cluster.host_index, wanted, cap)
        costs = layer_costs(
            alike[0], candidates, machine, input_gradients=gradients, largest_bucket=largest
        )
        found = {candidates.find(d) for d in wanted}
        groups.append(
            Group(
                candidates=candidates,
                costs=costs,
                count=len(alike),
                required=tuple(sorted(index for index in found if index is not None)),
                kept_memory=kept_memory(alike[0], candidates, costs, held, users, machine.training),
            )
        )
    chosen = select_candidates(groups, cap=cap or NO_CAP, capacity=cluster.device.usable_memory)
    return [
        (_space_of(alike[0], group, indices, cap), alike)
        for group, alike, indices in zip(groups, members.values(), chosen, strict=True)
    ]


def _alike_layers(graph: Graph) -> dict[Likeness, list[Layer]]:
    """Layers that cost the same, in the order of the forward pass."""
    members: dict[Likeness, list[Layer]] = {}
    users = {owner: 1 + len(names) for owner, names in graph.sharers.items()}
    for layer in graph.compute_layers:
        gradients = graph.input_gradients(layer.name)
        held = held_inputs(graph, layer.name)
        number = users.get(layer.shares_weight_with or layer.name, 1)
        members.setdefault((layer.signature, gradients, held, number), []).append(layer)
    return members


def _space_of(layer: Layer, group: Group, indices: NDArray[np.int64], cap: int) -> LayerSpace:
    """What the search sees of a layer.

    Parameters
    ----------
    layer
        One of the layers that are alike.
    group
        All their candidates.
    indices
        The candidates that are kept.
    cap
        As of `cost_layers`.
    """
    has_all = _has_all(layer, group.candidates.shape, cap)
    return LayerSpace(
        layer=layer,
        candidates=group.candidates.take(indices),
        costs=group.costs.take(indices),
        num_sensible=len(group.candidates),
        kept=group.kept_memory[indices],
        is_complete=has_all and len(indices) == len(group.candidates),
    )


def cost_sharers(
    graph: Graph, spaces: Mapping[str, LayerSpace], machine: Machine, largest: float
) -> dict[str, SharedWeight]:
    """What every layer adds that uses the weight of another one.

    Parameters
    ----------
    graph
        The network with its batch.
    spaces
        Candidates of each layer.
    machine
        Where and how it runs.
    largest
        Largest size of gradient buckets. [B]
    """
    known: dict[tuple[int, int], SharedWeight] = {}
    found = {}
    for owner, names in graph.sharers.items():
        for name in names:
            ends = (spaces[owner], spaces[name])
            key = (id(ends[0]), id(ends[1]))
            if key not in known:
                first, second = ((graph.layers[n], spaces[n].candidates) for n in (owner, name))
                known[key] = shared_weight(first, second, machine, largest_bucket=largest)
            found[name] = known[key]
    return found
