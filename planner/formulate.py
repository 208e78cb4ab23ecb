"""The joint between costs and search: (graph, cluster, cost models, space) -> `search.Problem`.

A step is nearly a sum over layers and edges; what is not is the gradient all-reduces that hide
behind the backward pass, one at a time, in the order in which gradients are made. Their queue ends
when the last of them that ever found it empty has come and all after it are through. So with S the
time of everything else, B_i the backward pass of layer i and A_i its all-reduce, a step takes

    max(S, max over j of S - sum_{i < j} B_i + sum_{i <= j} A_i),

layers numbered in forward order. Every weighted mean of these terms is a sum over layers and edges
again, whose optimum bounds the step from below: `problem` takes the weights as a profile.
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
from costmodels.graph import Edge, Graph, Layer, Tensor
from costmodels.layer_cost import LayerCosts, Machine, layer_costs
from costmodels.memory import held_inputs
from costmodels.rows import unique_rows
from costmodels.training import Training
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
        Memory that is held when the forward pass ends, or less: see `held_inputs`. [B]
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

    def problem(
        self,
        exposure: float | Floats = 1.0,
        usage_limit: float | None = None,
        *,
        price: float = 0.0,
    ) -> Problem:
        """An additive problem that bounds the step from below.

        Parameters
        ----------
        exposure
            How much of each layer's all-reduce counts, from 0 to 1, in forward order and never
            increasing; the backward pass of the layers before it counts by so much less. One
            number stands for all layers.
        usage_limit
            Memory for weights, optimizer state and kept activations, or None for no limit. [B]
        price
            Added for each byte that a layer keeps or needs while it runs; then the problem bounds
            nothing. [s/B]
        """
        index = {layer.name: i for i, layer in enumerate(self.layers)}
        counted, backward = self._shares(exposure)
        node_costs: dict[tuple[int, float, float], Floats] = {}
        matrices: dict[tuple[int, float], Floats] = {}
        costs = []
        for i, layer in enumerate(self.layers):
            space = self.spaces[layer.name]
            key = (id(space), counted[i], backward[i])
            if key not in node_costs:
                c = space.costs
                node_costs[key] = (
                    c.forward_pass
                    + c.update
                    + backward[i] * c.backward_pass
                    + counted[i] * c.gradient_time
                )
                if price:
                    transient = c.workspace + c.communication_bytes + c.output
                    node_costs[key] = node_costs[key] + price * (space.kept + transient)
            costs.append(node_costs[key])
        pairs = []
        for edge in self.edges:
            times, share = self.edge_times[edge], backward[index[edge.target]]
            if (id(times), share) not in matrices:
                matrices[id(times), share] = times.forward + share * times.backward
            pairs.append(
                PairCost(
                    source=index[edge.source],
                    target=index[edge.target],
                    matrix=matrices[id(times), share],
                )
            )
        usages: tuple[Floats, ...] = ()
        if usage_limit is not None:
            # more than the limit is too much, however much it is; a problem refuses huge sums
            most = max(2.0 * usage_limit, 1.0)
            clipped = {id(s): np.minimum(s.kept, most) for s in self.spaces.values()}
            usages = tuple(clipped[id(self.spaces[layer.name])] for layer in self.layers)
        return Problem(
            costs=tuple(costs),
            edges=tuple(pairs),
            usages=usages,
            usage_limit=usage_limit,
            names=tuple(layer.name for layer in self.layers),
        )

    def _shares(self, exposure: float | Floats) -> tuple[Floats, Floats]:
        """How much of each layer's all-reduce and of its backward pass counts."""
        counted = np.broadcast_to(np.asarray(exposure, dtype=float), len(self.layers))
        if not self.machine.training.gradient_overlap:
            return np.ones(len(self.layers)), np.ones(len(self.layers))
        return counted, 1.0 - np.append(counted[1:], 0.0)

    def terms(self, choices: Sequence[int]) -> tuple[float, Floats]:
        """S, and the term of every j: what a step takes at least under an assignment. [s]"""
        index = {layer.name: i for i, layer in enumerate(self.layers)}
        rest, backward, reduce = (np.zeros(len(self.layers)) for _ in range(3))
        for i, (layer, choice) in enumerate(zip(self.layers, choices, strict=True)):
            costs = self.spaces[layer.name].costs
            rest[i] = costs.forward_pass[choice] + costs.update[choice]
            backward[i] = costs.backward_pass[choice]
            reduce[i] = costs.gradient_time[choice]
        for edge in self.edges:
            times, target = self.edge_times[edge], index[edge.target]
            pair = (choices[index[edge.source]], choices[target])
            rest[target] += times.forward[pair]
            backward[target] += times.backward[pair]
        total = float(rest.sum() + backward.sum())
        if not self.machine.training.gradient_overlap:
            return total + float(reduce.sum()), np.full(len(self.layers), total + reduce.sum())
        return total, total - (np.cumsum(backward) - backward) + np.cumsum(reduce)

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


def _largest_bucket(graph: Graph, training: Training, bucket_bytes: float | None) -> float:
    """Size that no gradient bucket exceeds: a bucket leaves when a layer has filled it. [B]"""
    own = [layer.parameters for layer in graph.compute_layers if not layer.shares_weight_with]
    sizes = [parameters * training.gradient_size for parameters in own if parameters]
    bucket = max(training.bucket_bytes, bucket_bytes or 0.0)
    return float(min(sum(sizes), bucket + max(sizes))) if sizes else bucket


def _kept_memory(
    layer: Layer,
    candidates: Candidates,
    costs: LayerCosts,
    held: Sequence[bool],
    training: Training,
) -> Floats:
    """Memory that a layer holds when the forward pass ends, at least. [B]"""
    kept = costs.weights + costs.gradients + costs.state + costs.saved
    kept = kept + costs.output * layer.keeps_output
    for tensor, counts in zip(layer.inputs, held, strict=True):
        kept = kept + local_size(tensor, candidates) * training.activation_size * counts
    # a problem rounds usages up, which would make them no lower bound any more
    return np.floor(kept)


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
    bucket_bytes: float | None = None,
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
    bucket_bytes
        Largest bucket size that bounds must hold for, besides that of the training. [B]
    """
    shape, host = machine.network.shape, cluster.host_index
    layers = graph.compute_layers
    largest = _largest_bucket(graph, machine.training, bucket_bytes)
    members: dict[tuple[tuple[object, ...], tuple[bool, ...], tuple[bool, ...]], list[Layer]] = {}
    for layer in layers:
        gradients = tuple(graph.needs_input_gradient(e) for e in graph.producers[layer.name])
        held = held_inputs(graph, layer.name)
        members.setdefault((layer.signature, gradients, held), []).append(layer)
    groups, keys = [], []
    for key, alike in members.items():
        wanted = [s[layer.name] for s in strategies for layer in alike]
        if only_strategies:
            none = enumerate_candidates(alike[0], (1,) * len(shape), host)
            candidates = Candidates(dims=none.dims, degrees=none.degrees[:0], shape=shape)
        else:
            candidates = enumerate_candidates(alike[0], shape, host, full=full)
        candidates = _with_rows(candidates, wanted)
        costs = layer_costs(
            alike[0], candidates, machine, input_gradients=key[1], largest_bucket=largest
        )
        found = {candidates.find(d) for d in wanted}
        required = tuple(sorted(index for index in found if index is not None))
        kept = _kept_memory(alike[0], candidates, costs, key[2], machine.training)
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
    first, inverse = unique_rows(table.codes())
    rows = np.split(inverse, np.cumsum([len(p) for p in parts])[:-1])
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


def _unevenness(tensor: Tensor, candidates: Candidates) -> Floats:
    """How much larger the largest block is than the mean one; (candidates,)."""
    ways = np.ones(len(candidates))
    for dim in tensor.dims & set(candidates.dims):
        ways = ways * candidates.degree(dim)
    return local_size(tensor, candidates) * ways / tensor.size


def _edge_times(
    source: LayerSpace, target: LayerSpace, slot: int, moves: Movement, machine: Machine
) -> EdgeTimes:
    """Shuffle of an activation forward, and of its gradient backward."""
    tensor = target.layer.inputs[slot]
    num_bytes = tensor.size * machine.training.activation_size
    writes, reads = source.writes, target.reads[slot]
    read = num_bytes * _unevenness(tensor, target.candidates)
    written = num_bytes * _unevenness(source.layer.output, source.candidates)
    return EdgeTimes(
        forward=moves.time(writes, reads, read[None, :]),
        backward=moves.time(reads, writes, written[None, :]).T,
    )
