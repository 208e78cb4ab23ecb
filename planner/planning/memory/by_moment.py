"""What candidates hold at every moment of a step.

`costmodels.step.memory.liveness` follows allocations under one assignment. What it counts at a
moment is, but for a few tensors, a sum of what each layer holds under its candidate and of what
each edge adds under the candidates of its ends; those few are left out, so that the sum is never
more than the truth.

Moments are numbered in order: the forward pass of every layer, then the backward passes, the last
layer's first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.graph import Edge
from costmodels.layers.local_work import local_parameters, local_size
from costmodels.step.memory import held_inputs
from planner.planning.memory.rows import InFlight, LayerUse, MemoryRows, PairUse
from planner.planning.space.formulate import Floats, Formulation
from planner.planning.space.layer_space import LayerSpace


def memory_by_moment(formulation: Formulation) -> MemoryRows:
    """What a device holds at every moment under the candidates of a formulation."""
    return _Follower(formulation).rows()


def memory_of_layers(
    formulation: Formulation, candidates: Mapping[str, LayerSpace], *, complete: bool = False
) -> MemoryRows:
    """What layers hold by themselves under other candidates; what edges add is left out.

    Parameters
    ----------
    formulation
        The network on the machine.
    candidates
        Other candidates of every layer, and what they cost.
    complete
        Whether there are no others: then a reader is charged for its input where that is larger
        than the maker's block can be.
    """
    follower = _Follower(replace(formulation, spaces=candidates), alone=True, complete=complete)
    return follower.rows()


def memory_on_edges(formulation: Formulation) -> MemoryRows:
    """What layers hold, and what edges add that have times, where all candidates are there.

    What another edge adds is counted with its ends as far as it can be told apart.

    Parameters
    ----------
    formulation
        The network on the machine. Times that are no number say that it is not known whether
        something moves.
    """
    return _Follower(formulation, complete=True).rows()


def _num_users(formulation: Formulation, index: int) -> int:
    """How many layers use the weight of a layer. [items]"""
    layer = formulation.layers[index]
    return 1 + len(formulation.graph.sharers.get(layer.shares_weight_with or layer.name, ()))


def _weight_parts(formulation: Formulation, index: int) -> Floats:
    """Numbers of a weight that a layer accounts for, by candidate. [items]

    Users of one weight hold the union of their blocks, which is no less than the mean of them.
    """
    layer = formulation.layers[index]
    candidates = formulation.spaces[layer.name].candidates
    return local_parameters(layer, candidates) / _num_users(formulation, index)


def _shared_uses(formulation: Formulation, size: int, num_moments: int) -> Iterator[PairUse]:
    """What two users of a weight hold beyond the mean of their blocks.

    Parameters
    ----------
    formulation
        The network on the machine.
    size
        Of a weight with what goes with it. [B]
    num_moments
        How many moments there are. [items]
    """
    index = {layer.name: i for i, layer in enumerate(formulation.layers)}
    for owner, names in formulation.graph.sharers.items():
        if len(names) > 1 or names[0] not in formulation.shared:
            continue  # what more than two hold is known of whole assignments only
        source, target = index[owner], index[names[0]]
        shared, whole = formulation.shared[names[0]], formulation.layers[source].parameters
        mean = _weight_parts(formulation, source)[:, None] + _weight_parts(formulation, target)
        beyond = np.minimum(shared.spread(shared.beyond_mean), whole - mean)
        sizes = size * np.maximum(beyond, 0.0)
        yield PairUse(source=source, target=target, sizes=sizes, first=0, last=num_moments)


class _Follower(Struct):
    """Follows what the memory model counts, for all candidates at once."""

    formulation: Formulation
    alone: bool = False
    complete: bool = False
    in_buckets: float = 0.0
    index: dict[str, int] = field(default_factory=dict)
    uses: list[LayerUse] = field(default_factory=list)
    pairs: list[PairUse] = field(default_factory=list)
    known: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    def rows(self) -> MemoryRows:
        """All that is held."""
        f = self.formulation
        self.index = {layer.name: i for i, layer in enumerate(f.layers)}
        if f.machine.training.memory_model != "liveness":
            return self._at_once(retains=f.machine.training.memory_model == "retained")
        # two buckets are in flight, or all gradients; the part that is if no weight is split is the
        # least part that can be
        most = float(f.graph.parameters * f.machine.training.gradient_size)
        buckets = min(2.0 * f.machine.training.bucket_bytes, most)
        self.in_buckets = buckets / max(most, 1.0)
        for i, layer in enumerate(f.layers):
            self._layer(i)
            held = held_inputs(f.graph, layer.name)
            for edge in f.graph.producers[layer.name]:
                if edge.source in self.index:
                    self._edge(edge, held[edge.slot])
                elif held[edge.slot]:
                    # the data stays to the end
                    self._use(i, self._input(edge), i, 2 * len(f.layers))
        if not (self.alone or self.complete):
            size = f.machine.training.parameter_size
            self.pairs += _shared_uses(f, size, 2 * len(f.layers))
        return MemoryRows(
            num_moments=2 * len(f.layers),
            layers=tuple(self.uses),
            pairs=tuple(self.pairs),
            in_flight=InFlight(
                most=buckets,
                part=self.in_buckets,
                gradients={
                    i: f.spaces[layer.name].costs.gradients for i, layer in enumerate(f.layers)
                },
            ),
        )

    def _at_once(self, *, retains: bool) -> MemoryRows:
        """All layers at one moment: what is retained, or Kahira et al., equation 7."""
        f, training = self.formulation, self.formulation.machine.training
        size = training.weight_size + training.gradient_size + training.state_size * retains
        for i, layer in enumerate(f.layers):
            costs = f.spaces[layer.name].costs
            made = costs.scattered + costs.saved if retains else 2.0 * costs.output
            self._use(i, made + _weight_parts(f, i) * size, 0, 1)
            for edge in f.graph.producers[layer.name]:
                times, is_data = 2, edge.source not in self.index
                if retains:  # the gradient, and the data with its first reader
                    times = f.graph.needs_input_gradient(edge)
                    times += is_data and edge == f.graph.consumers[edge.source][0]
                self._use(i, times * self._input(edge), 0, 1)
                if retains and not is_data:
                    self._pair(edge, "copy", 0, 1)
        self.pairs += () if self.alone or self.complete else _shared_uses(f, size, 1)
        return MemoryRows(num_moments=1, layers=tuple(self.uses), pairs=tuple(self.pairs))

    def _back(self, index: int) -> int:
        """The moment of the backward pass of a layer."""
        return 2 * len(self.formulation.layers) - 1 - index

    def _use(self, layer: int, sizes: Floats, first: int, last: int) -> None:
        if last > first and sizes.any():
            self.uses.append(LayerUse(layer=layer, sizes=sizes, first=first, last=last))

    def _input(self, edge: Edge) -> Floats:
        """The block of an input that its reader reads, by candidate. [B]"""
        space = self.formulation.spaces[edge.target]
        key = (id(space), edge.slot)
        if key not in self.known:
            size = self.formulation.machine.training.activation_size
            tensor = space.layer.inputs[edge.slot]
            self.known[key] = local_size(tensor, space.candidates) * size
        return self.known[key]

    def _layer(self, i: int) -> None:
        """What a layer holds by itself."""
        f, layer = self.formulation, self.formulation.layers[i]
        costs, back = f.spaces[layer.name].costs, self._back(i)
        fixed = _weight_parts(f, i) * f.machine.training.parameter_size
        fixed = fixed + self.in_buckets * costs.gradients
        self._use(i, fixed, 0, 2 * len(f.layers))
        self._use(i, costs.saved, i, back + 1)
        busy = costs.workspace + costs.communication_bytes
        self._use(i, busy, back, back + 1)
        # the output is made as a whole, and what is left of it stays for its readers
        readers = [self.index[e.target] for e in f.graph.consumers[layer.name]]
        keeping = [r for r in readers if f.layers[r].keeps_inputs]
        until = max(readers, default=i + 1)
        if keeping and self._num_sharing(layer.name) < 2:
            until = min(keeping)  # then it counts with that one
        if layer.keeps_output:
            until = back + 1
        self._use(i, busy + costs.output - costs.scattered, i, i + 1)
        self._use(i, costs.scattered, i, until)
        self._use(i, costs.output, self._back(max(readers, default=i)), back + 1)

    def _num_sharing(self, name: str) -> int:
        """How many readers share what is kept of the output of a layer for backward. [items]

        Each either reads the maker's block, which then stays, or keeps a copy of its own: of k of
        them, those that read the maker's count a k-th part of it.
        """
        graph = self.formulation.graph
        edges = graph.consumers[name]
        if graph.layers[name].keeps_output or len({e.target for e in edges}) < len(edges):
            return 1
        return sum(graph.layers[e.target].keeps_inputs for e in edges)

    def _edge(self, edge: Edge, held: bool) -> None:
        """What a reader holds of an input, and what both ends add to that.

        Parameters
        ----------
        edge
            The input.
        held
            Whether what is kept for backward counts with its reader.
        """
        graph, back = self.formulation.graph, self._back
        source, target = self.index[edge.source], self.index[edge.target]
        layer, maker = graph.layers[edge.target], graph.layers[edge.source]
        edges = graph.consumers[edge.source]
        last = target == max(self.index[e.target] for e in edges)
        lone = sum(e.target == edge.target for e in edges) == 1
        stays = maker.keeps_output or any(graph.layers[e.target].keeps_inputs for e in edges)
        sharing = self._num_sharing(edge.source)
        # one copy is for all that read the same in one layout: it counts with the first to keep it
        keeping = [self.index[e.target] for e in edges if graph.layers[e.target].keeps_inputs]
        is_part = layer.inputs[edge.slot].size < maker.output.size
        twice = any(e.target == edge.target and e.slot < edge.slot for e in edges) and not is_part
        first_copy = target <= min(keeping, default=target) and not twice
        if sharing > 1 and layer.keeps_inputs:
            after = max(self.index[e.target] for e in edges)
            self._use(target, self._input(edge) / sharing, after, back(target) + 1)
            self._pair(edge, "share", after, back(target) + 1)
            if first_copy:
                self._pair(edge, "copy", target, after)
        elif held:
            self._use(target, self._input(edge), target, back(target) + 1)
            if lone:
                self._pair(edge, "coarser", target, back(target) + 1)
        elif last and not (stays or layer.in_place):
            self._use(target, self._input(edge), target, target + 1)
        else:
            if first_copy:
                until = back(target) + 1 if layer.keeps_inputs else target + 1
                self._pair(edge, "copy", target, until)
            lacks = self.complete and (self.alone or edge not in self.formulation.edge_times)
            if lacks and layer.keeps_inputs and maker.keeps_output:
                self._kept_input(edge)
        if last and lone:
            self._pair(edge, "gradient", back(target), back(source) + 1)

    def _kept_input(self, edge: Edge) -> None:
        """Charge the reader for what it keeps beyond the smallest block of the maker.

        Either the maker's block is what it reads, or it keeps a copy beside it. So of k such
        readers each may be charged for a k-th part of what exceeds the smallest block, and the
        maker for so much less.
        """
        graph, space = self.formulation.graph, self.formulation.spaces[edge.source]
        if graph.layers[edge.source].reduced_dims:
            return  # partial sums may be made whole where they are
        readers = graph.consumers[edge.source]
        keeping = sum(graph.layers[reader.target].keeps_inputs for reader in readers)
        source, target = self.index[edge.source], self.index[edge.target]
        last, made = self._back(target) + 1, space.costs.scattered
        smallest = float(made.min())
        self._use(source, (smallest - made) / keeping, target, last)
        beyond = np.maximum(self._input(edge) - smallest, 0.0) / keeping
        self._use(target, beyond, target, last)

    def _pair(self, edge: Edge, kind: str, first: int, last: int) -> None:
        """What the ends of an edge add to what each of them holds.

        Parameters
        ----------
        edge
            The edge.
        kind
            A "copy" in another layout beside the maker's own; what the maker's block is "coarser"
            than the reader's; the reader's "share" of what is kept beyond that of its own block;
            what the reader's "gradient" is larger than the maker's.
        first, last
            From when until when.
        """
        f = self.formulation
        if self.alone or edge not in f.edge_times:
            return
        costs, read = f.spaces[edge.source].costs, self._input(edge)[None, :]
        times = f.edge_times[edge]
        sharing = self._num_sharing(edge.source)
        key = (id(times), ("copy", "coarser", "share", "gradient").index(kind), sharing)
        if key not in self.known:
            moved, stays = times.forward > 0.0, times.forward == 0.0
            if kind == "copy":
                sizes = np.where(moved, read, 0.0)
            elif kind == "coarser":
                sizes = stays * np.maximum(costs.scattered[:, None] - read, 0.0)
            elif kind == "share":
                beyond = np.maximum(costs.scattered[:, None] - read, 0.0) / sharing
                sizes = np.where(stays, beyond, 0.0)
            else:
                sizes = np.maximum(read - costs.output[:, None], 0.0)
            self.known[key] = sizes
        sizes = self.known[key]
        if sizes.any():
            ends = {"source": self.index[edge.source], "target": self.index[edge.target]}
            self.pairs.append(PairUse(**ends, sizes=sizes, first=first, last=last))
