"""Why a transformer's messages are not of the size that is charged, and which size is right then.

A reason allows one size, or one of a few, so that an error in what differs by design is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from costmodels.communication.layout import Layouts
from costmodels.distribution import one_candidate
from costmodels.graph import Graph
from costmodels.layers.local_work import local_numbers, local_size
from planner.plan import Plan
from planner.plan.weights import weight_tensors
from planner.torch.verify.charged import Key
from planner.torch.verify.found import CUT_BIAS, is_same_size


class MessageSizes(Struct, frozen=True, kw_only=True):
    """What ranks received in a step, beside what is charged. [items]

    Parameters
    ----------
    plan, graph
        What was run, and its network at one micro-batch.
    got, said
        Numbers that the busiest rank received, and those that are charged.
    shared
        Layers that use the weight of another.
    """

    plan: Plan
    graph: Graph
    got: Mapping[Key, float]
    said: Mapping[Key, float]
    shared: frozenset[str]

    def reason(self, key: Key) -> str:
        """Why a message is of another size than charged, empty where it should not be."""
        have, charged = self.got.get(key, 0.0), self.said.get(key, 0.0)
        source, _, reader = key[0].partition(" -> ")
        ways = max(self._experts(source), self._experts(reader))
        if key[1] == "shuffle" and ways > 1 and have <= charged * ways:
            return "the router says how many tokens go to each expert"
        for sizes, why in self._sizes(key, charged):
            if any(is_same_size(have, size) for size in sizes):
                return why
        return ""

    def _kind(self, layer: str) -> str:
        found = self.plan.layers.get(layer)
        return "" if found is None else found.kind

    def _experts(self, layer: str) -> int:
        found = self.plan.layers.get(layer)
        return 1 if found is None else found.distribution.degree("expert")

    def _sizes(self, key: Key, charged: float) -> Iterable[tuple[Iterable[float], str]]:
        """Sizes that are right by design, and why.

        Parameters
        ----------
        key, charged
            The message, and numbers charged. [items]
        """
        place, cause, backward = key
        if cause == "statistics" and place == "loss":
            # two numbers are charged in each pass
            sizes = [0.0 if backward else 1.5 * charged]
            yield sizes, "the largest feature, the sum and the right one are summed once"
        elif cause == "statistics" and backward and self._kind(place) == "softmax":
            yield [0.5 * charged], "the backward pass of a softmax sums one number a row"
        if cause == "gradient":
            yield from self._gradients(place, charged)
        if cause == "shuffle":
            yield from self._shuffles(key, charged)

    def _gradients(self, place: str, charged: float) -> Iterable[tuple[Iterable[float], str]]:
        layer = self.plan.layers.get(place)
        if layer is None:
            return
        if place in self.shared:
            yield [0.0], "the gradient of a shared weight is summed once, where it is counted"
            held = self._weight_numbers(place)[0]
            summed = 2 * held * (self._members(place) - 1) / self._members(place)
            lacking = self.graph.layers[place].held_parameters - held
            sizes = [part + more for part in (0.0, summed) for more in (0.0, lacking)]
            yield sizes, "blocks of a shared weight differ, and get what they lack of its sum"
        weight, trains_weight, biases, trains_bias = self._weight_numbers(place)
        members = self._members(place)
        summed = 2 * (members - 1) / members
        if not layer.sharded:
            yield [summed * (weight * trains_weight + biases[0] * trains_bias)], CUT_BIAS
            return
        size = min(layer.shard_size or members, members)
        count = self.plan.schedule.micro_batches
        sums = count if "gradients" in layer.sharded else 1
        gathers = [1]
        if "weights" in layer.sharded:
            # some are read in the forward pass alone: biases and tables
            again = place in self._recomputed and place not in self.graph.untrained
            gathers = [2 * count] if again else [count, 2 * count]
        rest = 2 / size * (members / size - 1) / (members / size)

        def ways(trained: bool) -> list[float]:
            cut = [
                one * (size - 1) / size + trained * sums * ((size - 1) / size + rest)
                for one in gathers
            ]
            return [*cut, trained * summed]

        sizes = [
            weight * one + some * other
            for one in ways(trains_weight)
            for other in ways(trains_bias)
            for some in biases
        ]
        yield sizes, "weights and gradients that are cut travel as often as they are used"

    def _members(self, place: str) -> float:
        """Ranks that sum the gradient of a layer. [items]"""
        layer = self.graph.layers[place]
        one = one_candidate(self.plan.layers[place].distribution, layer.dims)
        return float(one.group(set(one.dims) - set(layer.weight_dims)).prod())

    def _weight_numbers(self, place: str) -> tuple[float, bool, tuple[float, ...], bool]:
        """A rank's numbers of a weight and of its bias, and whether each is trained. [items]

        Those of the bias are what a rank has, and what is charged of that.
        """
        layer = self.graph.layers[place]
        one = one_candidate(self.plan.layers[place].distribution, layer.dims)
        whole = float(local_numbers(layer, one)[0])
        if not layer.multiplies_weight:
            if len(list(weight_tensors(layer))) == 2:
                # those of a norm are as large; autograd keeps its weight, and seldom its bias
                half, trains_both = whole / 2, layer.parameters > layer.held_parameters / 2
                return half, layer.parameters > 0, (half,), trains_both
            trained = layer.parameters / max(layer.held_parameters, 1)
            return whole * trained, True, (whole * (1 - trained),), False
        sizes = {name: tensor.size for name, tensor in weight_tensors(layer)}
        filters = sizes.get("bias", 0.0)
        split = self.plan.layers[place].distribution
        cut = filters / math.prod(split.degree(dim) for dim in layer.weight_dims)
        held = filters / math.prod(split.degree(dim) for dim in ("expert", "filter"))
        trains_bias = layer.parameters > sizes["weight"] * layer.trains_weight
        return whole - cut, layer.trains_weight, (held, cut), trains_bias

    @property
    def _recomputed(self) -> set[str]:
        return {name for one in self.plan.strategy.stages for row in one.recompute for name in row}

    def _shuffles(self, key: Key, charged: float) -> Iterable[tuple[Iterable[float], str]]:
        place, _, backward = key
        source, _, reader = place.partition(" -> ")
        if source == "input" and not backward:
            yield self._blocks_of_inputs(reader), "samples are loaded where needed, not charged"
        if not backward and reader in self._recomputed:
            yield [2 * charged], "it is moved again where activations are computed again"
        again = not backward and self.plan.strategy.gather_again
        if again:
            yield [2 * charged], "it is gathered again for the backward pass"
        others = [
            numbers
            for (other, cause, back), numbers in self.got.items()
            if cause == "shuffle" and back == backward and other.startswith(f"{source} -> ")
        ]
        if any(numbers > 0 and not numbers < charged for numbers in others):
            yield [0.0], "it is moved once for all that read it alike"
        layer = self.graph.layers.get(reader)
        if layer is not None and layer.kind == "attention":
            units = [a.units for tensor in layer.inputs for a in tensor.axes if a.units]
            repeated = [charged * layer.dims["head"] / one for one in units]
            sizes = [*repeated, *(2 * one for one in repeated if again)]
            yield sizes, "keys and values are repeated for their queries before they are moved"

    def _blocks_of_inputs(self, reader: str) -> list[float]:
        """What a rank lacks of samples at most: all but an even share of its block. [items]"""
        layer = self.graph.layers[reader]
        one = one_candidate(self.plan.layers[reader].distribution, layer.dims)
        found = []
        for edge in self.graph.producers[reader]:
            tensor = layer.inputs[edge.slot]
            held = float(local_size(tensor, one)[0])
            alike = Layouts.of(one, tensor, layer.absent_dims(edge.slot)).partial[0]
            members = float(alike.prod())
            found.append(held * (members - 1) / members)
        return found
