"""The joint between costs and search: (graph, cluster, cost models, space) -> `search.Problem`.

A step is the largest of several terms (see `planner.planning.space.step_terms`), each a sum over
layers and edges. A layer that uses the weight of another one adds what depends on how both are
distributed: a term of an edge between the two. Every weighted mean of the terms is a sum over
layers and edges again, whose optimum bounds the step from below: `problem` takes the weights as a
profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.cluster import Cluster
from costmodels.distribution import Distribution
from costmodels.graph import Edge, Graph, Layer
from costmodels.layers.shared_weight import SharedBlock, SharedWeight, within_whole
from costmodels.step.machine import Machine
from costmodels.step.training import Training
from planner.planning.space.layer_space import (
    NO_CAP,
    LayerSpace,
    cost_layers,
    cost_sharers,
    largest_bucket,
)
from planner.planning.space.profile import (
    EVERY_GAP,
    CostKey,
    Gaps,
    LayerShare,
    Profile,
    gaps_of,
    shares_of,
)
from planner.planning.space.shuffles import (
    EdgeTimes,
    between_neighbours,
    number_layouts,
    repeated_slots,
    shuffle_times,
)
from planner.planning.space.step_terms import ChosenTimes, PassTimes
from search.problem import CostEdge as PairCost
from search.problem import Problem
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]

# Usages are clipped at so many times the limit: safely above it.
BEYOND_LIMIT = 2.0


class Formulation(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """A network on a machine as arrays: what every assignment costs can be read from it.

    Parameters
    ----------
    graph
        The network with its batch.
    cluster, machine
        Where and how it runs.
    layers
        The layers that compute, in the order of the forward pass.
    spaces
        Candidates of each layer and what they cost; layers that are alike share theirs.
    edges, edge_times
        The activations that carry a gradient back, and what their shuffles take. [s]
    shared
        What each layer adds that uses the weight of another one.
    largest
        Largest size of gradient buckets. [B]
    every_message
        Whether every message counts, as on the timeline, or only those that nothing can hide.
    """

    graph: Graph
    cluster: Cluster
    machine: Machine
    layers: tuple[Layer, ...]
    spaces: Mapping[str, LayerSpace]
    edges: tuple[Edge, ...]
    edge_times: Mapping[Edge, EdgeTimes]
    shared: Mapping[str, SharedWeight]
    largest: float
    every_message: bool = False

    @cached_property
    def as_on_timeline(self) -> Formulation:
        """The same where every message counts: its problems propose assignments, but bound none."""
        return replace(self, every_message=True)

    @cached_property
    def first_alike(self) -> dict[str, str]:
        """For each layer the first one that shares its candidates."""
        first: dict[int, str] = {}
        for layer in self.layers:
            first.setdefault(id(self.spaces[layer.name]), layer.name)
        return {layer.name: first[id(self.spaces[layer.name])] for layer in self.layers}

    @property
    def num_sensible(self) -> int:
        """Candidates of all layers before any were left out. [items]"""
        return sum(self.spaces[layer.name].num_sensible for layer in self.layers)

    @property
    def num_candidates(self) -> int:
        """Candidates of all layers that the search sees. [items]"""
        return sum(len(self.spaces[layer.name].candidates) for layer in self.layers)

    @property
    def is_complete(self) -> bool:
        """Whether the search sees every distribution of every layer."""
        return all(self.spaces[layer.name].is_complete for layer in self.layers)

    @cached_property
    def times(self) -> dict[str, PassTimes]:
        """What the candidates of each distinct layer take at least, by the first that is alike."""
        return {
            name: PassTimes.of(space.candidates, space.costs)
            for name, space in self.spaces.items()
            if self.first_alike.get(name) == name
        }

    @cached_property
    def gaps(self) -> list[Gaps]:
        """Which messages of each layer count."""
        return [EVERY_GAP] * len(self.layers) if self.every_message else gaps_of(self.graph)

    @cached_property
    def counted_edges(self) -> tuple[Edge, ...]:
        """The edges whose messages count: those between layers that follow each other."""
        return self.edges if self.every_message else between_neighbours(self.graph, self.edges)

    @cached_property
    def repeated(self) -> Mapping[Edge, tuple[int, ...]]:
        """Edges to layers that read the same output in other inputs before: the slots of these."""
        return {} if self.every_message else repeated_slots(self.graph, self.counted_edges)

    def new_forward(self, edge: Edge) -> NDArray[np.bool_]:
        """Where the forward shuffle of a repeated edge cannot be that of another input.

        Of shape (candidates of the source, candidates of the target).
        """
        blocks = self.spaces[edge.target].blocks
        whole = self.spaces[edge.source].costs.reduce_forward <= 0.0
        unlike = [blocks[slot] != blocks[edge.slot] for slot in self.repeated[edge]]
        return np.logical_and.outer(whole, np.logical_and.reduce(unlike))

    def edge_costs(self, edge: Edge, share: LayerShare) -> Floats:
        """What the shuffles of an edge cost, by how much of its target counts. [s]"""
        times = self.edge_times[edge]
        new = self.new_forward(edge) if edge in self.repeated else 1.0
        return times.forward * new + share.messages * times.backward + share.link * times.link

    def problem(self, profile: Profile | float = 1.0) -> Problem:
        """An additive problem that bounds the step from below.

        Parameters
        ----------
        profile
            How much of each layer counts; one number counts so much of every all-reduce.
        """
        shares = self.shares(profile)
        return Problem(
            costs=self.node_costs(profile),
            edges=(*self._pair_costs(shares), *self.shared_costs(profile)),
            names=self._names,
        )

    def without_times(self) -> Problem:
        """The same candidates, where nothing takes any time."""
        none = {id(space): np.zeros(len(space.candidates)) for space in self.spaces.values()}
        costs = tuple(none[id(self.spaces[layer.name])] for layer in self.layers)
        return Problem(costs=costs, names=self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    def node_costs(self, profile: Profile | float) -> tuple[Floats, ...]:
        """What the candidates of each layer cost; layers that are alike share the array. [s]"""
        keys = self.cost_keys(profile)
        known = {key: self.times[key.space].weighted(key.share) for key in set(keys)}
        return tuple(known[key] for key in keys)

    def cost_keys(self, profile: Profile | float) -> list[CostKey]:
        """The key of every layer, in the order of the layers."""
        return [
            CostKey(self.first_alike[layer.name], share)
            for layer, share in zip(self.layers, self.shares(profile), strict=True)
        ]

    def _pair_costs(self, shares: Sequence[LayerShare]) -> tuple[PairCost, ...]:
        """What the shuffles of each edge cost, by how much of each layer counts. [s]"""
        index = {layer.name: i for i, layer in enumerate(self.layers)}
        matrices: dict[tuple[object, ...], Floats] = {}
        pairs = []
        for edge in self.counted_edges:
            share = shares[index[edge.target]]
            counts = (share.messages, share.link)
            key = (id(self.edge_times[edge]), counts, edge in self.repeated)
            if key not in matrices:
                matrices[key] = self.edge_costs(edge, share)
            source, target = index[edge.source], index[edge.target]
            pairs.append(PairCost(source=source, target=target, matrix=matrices[key]))
        return tuple(pairs)

    def shared_costs(self, profile: Profile | float) -> tuple[PairCost, ...]:
        """What sharers of weights add. [s]"""
        shares = self.shares(profile)
        index = {layer.name: i for i, layer in enumerate(self.layers)}
        pairs = []
        for name, shared in self.shared.items():
            owner = self.graph.layers[name].shares_weight_with
            assert owner is not None, "a layer that shares a weight has an owner of it"
            counted = shares[index[name]].gradient
            costs = shared.exchange + shared.update + counted * shared.gradient_time
            matrix = shared.spread(costs)
            pairs.append(PairCost(source=index[owner], target=index[name], matrix=matrix))
        return tuple(pairs)

    def shared_blocks(self, choices: Mapping[str, int]) -> dict[str, SharedBlock]:
        """What each layer adds that uses the weight of another one, under an assignment."""
        found: dict[str, SharedBlock] = {}
        for owner, names in self.graph.sharers.items():
            space, c = self.spaces[owner], choices[owner]
            held = float(space.costs.weights[c]) / self.machine.training.weight_size
            blocks = [self.shared[name].block(c, choices[name]) for name in names]
            whole = float(space.layer.parameters)
            found.update(zip(names, within_whole(whole, held, blocks), strict=True))
        return found

    def usages(self, limit: float) -> tuple[Floats, ...]:
        """What the candidates of each layer keep, in the eyes of a problem with that limit. [B]"""
        # more than the limit is too much, however much it is; a problem refuses huge sums
        most = max(BEYOND_LIMIT * limit, 1.0)
        clipped = {id(s): np.minimum(s.kept, most) for s in self.spaces.values()}
        return tuple(clipped[id(self.spaces[layer.name])] for layer in self.layers)

    def shares(self, profile: Profile | float) -> list[LayerShare]:
        """How much of each layer counts."""
        if isinstance(profile, float):
            profile = Profile.even(profile, len(self.layers))
        overlap = self.machine.training.gradient_overlap
        return shares_of(profile, self.gaps, overlap=overlap)

    def terms(self, choices: Sequence[int]) -> Floats:
        """What a step takes at least under an assignment, as of `ChosenTimes.terms`. [s]"""
        index = {layer.name: i for i, layer in enumerate(self.layers)}
        names = ("once", "backward", "behind", "ready", "gradient", "alone")
        rows = {name: np.zeros(len(self.layers)) for name in (*names, "waits", "messages", "link")}
        for i, (layer, choice) in enumerate(zip(self.layers, choices, strict=True)):
            times, gaps = self.times[self.first_alike[layer.name]], self.gaps[i]
            for name in names:
                rows[name][i] = getattr(times, name)[choice]
            rows["once"][i] += times.forward_messages(gaps)[choice]
            rows["waits"][i] = gaps.back_before * times.back_before[choice]
            rows["messages"][i] = times.backward_messages(gaps)[choice]
            rows["link"][i] = times.on_links(gaps)[choice]
        end, chosen = 0.0, dict(zip(self._names, choices, strict=True))
        for name, block in self.shared_blocks(chosen).items():
            end += block.exchange + block.update
            rows["gradient"][index[name]] += block.gradient_time
        for edge in self.counted_edges:
            edge_times, target = self.edge_times[edge], index[edge.target]
            pair = (choices[index[edge.source]], choices[target])
            if edge not in self.repeated or self.new_forward(edge)[pair]:
                rows["once"][target] += edge_times.forward[pair]
            rows["messages"][target] += edge_times.backward[pair]
            rows["link"][target] += edge_times.link[pair]
        overlap = self.machine.training.gradient_overlap
        return ChosenTimes(**rows, end=end).terms(overlap=overlap)

    def with_training(self, training: Training) -> Formulation:
        """The same candidates under other options of gradient all-reduces."""
        return replace(self, machine=replace(self.machine, training=training))

    def distributions(self, choices: Sequence[int]) -> dict[str, Distribution]:
        """The distribution that each layer gets."""
        return {
            layer.name: self.spaces[layer.name].candidates.distribution(choice)
            for layer, choice in zip(self.layers, choices, strict=True)
        }

    def choices(self, distributions: Mapping[str, Distribution]) -> tuple[int, ...]:
        """The assignment of given distributions, which must be among the candidates."""
        found = []
        known: dict[tuple[object, ...], int] = {}
        for layer in self.layers:
            space, given = self.spaces[layer.name], distributions[layer.name]
            key = (id(space), *sorted(given.degrees.items()))
            if key not in known:
                choice = space.candidates.find(given)
                assert choice is not None, f"{layer.name} lacks {given}"
                known[key] = choice
            found.append(known[key])
        return tuple(found)


def formulate(
    graph: Graph,
    cluster: Cluster,
    machine: Machine,
    *,
    strategies: Sequence[Mapping[str, Distribution]] = (),
    only_strategies: bool = False,
    cap: int = NO_CAP,
    bucket_bytes: float | None = None,
    deadline: Deadline | None = None,
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
        Candidates that a layer may keep; where all of its distributions are no more, it has them
        all. [items]
    bucket_bytes
        Largest bucket size that bounds must hold for, besides that of the training. [B]
    deadline
        When to give up by raising `OutOfTime`, or `TooManyCandidates` where fewer would help.
    """
    largest = largest_bucket(graph, machine.training, bucket_bytes)
    distinct = cost_layers(
        graph,
        cluster,
        machine,
        strategies=strategies,
        cap=0 if only_strategies else cap,
        largest=largest,
        deadline=deadline,
    )
    spaces, changes = number_layouts(distinct, machine.topology)
    edge_times = shuffle_times(graph, spaces, changes, machine, deadline)
    return Formulation(
        graph=graph,
        cluster=cluster,
        machine=machine,
        layers=graph.compute_layers,
        spaces=spaces,
        edges=tuple(edge_times),
        edge_times=edge_times,
        shared=cost_sharers(graph, spaces, machine, largest),
        largest=largest,
    )
