"""The joint between costs and search: (graph, cluster, cost models, space) -> `search.Problem`.

A step is nearly a sum over layers and edges; what is not is the gradient all-reduces that hide
behind the backward pass. With S the time of everything but them, A their total and B the backward
pass, a step takes at least S + x (A - B) for every x from 0 to 1: at x = 0 all-reduces are free,
at x = 1 they start with the backward pass and outlast it. Each x gives an additive problem whose
optimum bounds the step from below; the best x gives the best bound, and the assignments found on
the way are costed exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster import Cluster
from costmodels.communication.layout import Layouts, Movement, concatenate, movement
from costmodels.communication.network import Network
from costmodels.distribution import Candidates, Distribution, enumerate_candidates
from costmodels.graph import Edge, Graph, Layer
from costmodels.layer_cost import LayerCosts, Machine, layer_costs
from costmodels.memory import keeps_tensor
from costmodels.work_of import local_size
from planner.space import Group, select
from search.problem import Edge as PairCost
from search.problem import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSpace:
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
        Memory held from forward to backward, and throughout. [B]
    reads, writes
        Rows in the table of layouts, for each input and for the output.
    """

    layer: Layer
    candidates: Candidates
    costs: LayerCosts
    num_sensible: int
    kept: Floats
    reads: tuple[NDArray[np.int64], ...] = ()
    writes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeTimes:
    """Shuffle times of one edge; (candidates of the source, candidates of the target). [s]"""

    forward: Floats
    backward: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Formulation:
    """A network on a machine as arrays: what every assignment costs can be read from it."""

    graph: Graph
    cluster: Cluster
    machine: Machine
    layers: tuple[Layer, ...]
    spaces: Mapping[str, LayerSpace]
    edges: tuple[Edge, ...]
    edge_times: Mapping[Edge, EdgeTimes]

    @property
    def num_sensible(self) -> int:
        """Candidates of all layers before any were left out. [items]"""
        return sum(self.spaces[layer.name].num_sensible for layer in self.layers)

    @property
    def num_candidates(self) -> int:
        """Candidates of all layers that the search sees. [items]"""
        return sum(len(self.spaces[layer.name].candidates) for layer in self.layers)

    def problem(self, weight: float, usage_limit: float | None = None) -> Problem:
        """The additive problem in which gradient all-reduces have a weight.

        Parameters
        ----------
        weight
            0 leaves all-reduces out, 1 lets them outlast the backward pass that they start with.
        usage_limit
            Memory for weights, optimizer state and kept activations, or None for no limit. [B]
        """
        index = {layer.name: i for i, layer in enumerate(self.layers)}
        node_costs: dict[int, Floats] = {}
        matrices: dict[int, Floats] = {}
        costs = []
        for layer in self.layers:
            space = self.spaces[layer.name]
            if id(space) not in node_costs:
                c = space.costs
                node_costs[id(space)] = (
                    c.forward_pass
                    + c.update
                    + (1.0 - weight) * c.backward_pass
                    + weight * c.gradient_time
                )
            costs.append(node_costs[id(space)])
        pairs = []
        for edge in self.edges:
            times = self.edge_times[edge]
            if id(times) not in matrices:
                matrices[id(times)] = times.forward + (1.0 - weight) * times.backward
            pairs.append(
                PairCost(
                    source=index[edge.source],
                    target=index[edge.target],
                    matrix=matrices[id(times)],
                )
            )
        usages = tuple(self.spaces[layer.name].kept for layer in self.layers)
        return Problem(
            costs=tuple(costs),
            edges=tuple(pairs),
            usages=usages if usage_limit is not None else (),
            usage_limit=usage_limit,
            names=tuple(layer.name for layer in self.layers),
        )

    def distributions(self, choices: Sequence[int]) -> dict[str, Distribution]:
        """The distribution that each layer gets."""
        return {
            layer.name: self.spaces[layer.name].candidates.distribution(choice)
            for layer, choice in zip(self.layers, choices, strict=True)
        }

    def choices(self, distributions: Mapping[str, Distribution]) -> tuple[int, ...]:
        """The assignment of given distributions, which must be among the candidates."""
        found = []
        for layer in self.layers:
            choice = self.spaces[layer.name].candidates.find(distributions[layer.name])
            assert choice is not None, f"{layer.name} lacks {distributions[layer.name]}"
            found.append(choice)
        return tuple(found)


def _with_rows(candidates: Candidates, wanted: Sequence[Distribution]) -> Candidates:
    """The candidates and the given distributions, none twice."""
    rows = [candidates.degrees]
    for distribution in dict.fromkeys(map(_frozen, wanted)):
        row = np.ones((1, len(candidates.shape), len(candidates.dims)), dtype=np.int64)
        for dim, degrees in distribution:
            row[0, :, candidates.dims.index(dim)] = degrees
        if not (candidates.degrees == row).all(axis=(1, 2)).any():
            rows.append(row)
    return Candidates(dims=candidates.dims, degrees=np.concatenate(rows), shape=candidates.shape)


def _frozen(distribution: Distribution) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted(distribution.degrees.items()))


def _take_costs(costs: LayerCosts, indices: NDArray[np.int64]) -> LayerCosts:
    taken = {}
    for item in fields(LayerCosts):
        value = getattr(costs, item.name)
        taken[item.name] = value[:, indices] if item.name == "sources" else value[indices]
    return LayerCosts(**taken)


def formulate(
    graph: Graph,
    cluster: Cluster,
    machine: Machine,
    *,
    strategies: Sequence[Mapping[str, Distribution]] = (),
    only_strategies: bool = False,
    cap: int = 64,
    full: bool = False,
) -> Formulation:
    """Cost every candidate of every layer and every shuffle between them.

    Parameters
    ----------
    graph
        The network with its batch.
    cluster, machine
        Where and how it runs.
    strategies
        Assignments that must be among the candidates.
    only_strategies
        Whether there are to be no other candidates.
    cap
        Candidates that a layer may keep. [items]
    full
        Whether levels across hosts may be split over any dims.
    """
    shape, host = machine.network.shape, cluster.host_index
    layers = graph.compute_layers
    members: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        gradients = tuple(graph.needs_input_gradient(e) for e in graph.producers[layer.name])
        keeps = keeps_tensor(graph, layer.name)
        members.setdefault((layer.signature, gradients, keeps), []).append(layer)
    groups, keys = [], []
    for key, alike in members.items():
        wanted = [s[layer.name] for s in strategies for layer in alike]
        if only_strategies:
            none = enumerate_candidates(alike[0], (1,) * len(shape), host)
            candidates = Candidates(dims=none.dims, degrees=none.degrees[:0], shape=shape)
        else:
            candidates = enumerate_candidates(alike[0], shape, host, full=full)
        candidates = _with_rows(candidates, wanted)
        costs = layer_costs(alike[0], candidates, machine, input_gradients=key[1])
        required = tuple(sorted({candidates.find(d) for d in wanted} - {None}))
        kept = costs.weights + costs.gradients + costs.state + costs.saved + costs.output * key[2]
        groups.append(
            Group(
                candidates=candidates,
                costs=costs,
                count=len(alike),
                required=required,
                kept_memory=kept,
            )
        )
        keys.append(alike)
    kept_indices = select(groups, cap=cap, capacity=cluster.device.usable_memory)
    spaces: dict[str, LayerSpace] = {}
    distinct = []
    for group, alike, indices in zip(groups, keys, kept_indices, strict=True):
        space = LayerSpace(
            layer=alike[0],
            candidates=group.candidates.take(indices),
            costs=_take_costs(group.costs, indices),
            num_sensible=len(group.candidates),
            kept=group.kept_memory[indices],
        )
        distinct.append((space, alike))
    spaces, moves = _with_layouts(distinct, machine.network)
    edges = tuple(e for e in graph.edges if graph.needs_input_gradient(e))
    times: dict[tuple[int, int, int], EdgeTimes] = {}
    edge_times = {}
    for edge in edges:
        source, target = spaces[edge.source], spaces[edge.target]
        key3 = (id(source), id(target), edge.slot)
        if key3 not in times:
            times[key3] = _edge_times(source, target, edge.slot, moves, machine)
        edge_times[edge] = times[key3]
    return Formulation(
        graph=graph,
        cluster=cluster,
        machine=machine,
        layers=layers,
        spaces=spaces,
        edges=edges,
        edge_times=edge_times,
    )


def _with_layouts(
    distinct: Sequence[tuple[LayerSpace, list[Layer]]], network: Network
) -> tuple[dict[str, LayerSpace], Movement]:
    """Number the layouts of all tensors, and count what moves between any two of them."""
    parts: list[Layouts] = []
    for space, _ in distinct:
        layer, candidates = space.layer, space.candidates
        parts.append(Layouts.of(candidates, layer.output, layer.reduced_dims))
        parts += [
            Layouts.of(candidates, tensor, layer.absent_dims(slot))
            for slot, tensor in enumerate(layer.inputs)
        ]
    table = concatenate(parts)
    _, first, inverse = np.unique(table.codes(), axis=0, return_index=True, return_inverse=True)
    rows = np.split(inverse.reshape(-1), np.cumsum([len(p) for p in parts])[:-1])
    unique = table.take(first)
    spaces, position = {}, 0
    for space, alike in distinct:
        numbered = LayerSpace(
            layer=space.layer,
            candidates=space.candidates,
            costs=space.costs,
            num_sensible=space.num_sensible,
            kept=space.kept,
            writes=rows[position],
            reads=tuple(rows[position + 1 : position + 1 + len(space.layer.inputs)]),
        )
        position += 1 + len(space.layer.inputs)
        for layer in alike:
            spaces[layer.name] = numbered
    return spaces, movement(unique, unique, network)


def _edge_times(
    source: LayerSpace, target: LayerSpace, slot: int, moves: Movement, machine: Machine
) -> EdgeTimes:
    """Shuffle of an activation forward, and of its gradient backward."""
    tensor = target.layer.inputs[slot]
    num_bytes = tensor.size * machine.training.activation_size
    writes, reads = source.writes, target.reads[slot]

    def uneven(layer: Layer, candidates: Candidates, side: str) -> Floats:
        whole = tensor if side == "read" else layer.output
        ways = np.ones(len(candidates))
        for dim in whole.dims & set(candidates.dims):
            ways = ways * candidates.degree(dim)
        return local_size(whole, candidates) * ways / whole.size

    pair, back = np.ix_(writes, reads), np.ix_(reads, writes)
    read = uneven(target.layer, target.candidates, "read")
    write = uneven(source.layer, source.candidates, "write")
    return EdgeTimes(
        forward=moves.latency[pair] + num_bytes * moves.seconds_per_byte[pair] * read[None, :],
        backward=(
            moves.latency[back] + num_bytes * moves.seconds_per_byte[back] * write[None, :]
        ).T,
    )
