"""What the fullest device holds at least under a choice as it is cut, known without laying it out.

Of networks without attention. What is kept for backward counts once, with a layer that keeps it
(`held_inputs`), so that it is held by that layer's stage wherever the other end of it lies; a stage
has micro-batches under way as its schedule lets it run ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from msgspec.structs import replace

from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.simulation.segments import blocks_of_layers, several_layers
from costmodels.step.memory import held_inputs
from costmodels.strategy import Stage
from planner.joint.choices import Choice
from planner.joint.estimate import ROUNDING
from planner.joint.weights import LeastWeights
from planner.request.by_degrees import degree_distributions
from planner.request.parts import Degrees
from planner.request.setting import Setting


class LeastOfStages:
    """What devices of stages hold at least of weights and activations.

    Parameters
    ----------
    setting
        The question, of a network without attention.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.weights = LeastWeights(setting)
        self._splits: dict[int, Mapping[str, Distribution] | None] = {}
        self._kept: dict[tuple[str, int], Mapping[str, float]] = {}
        self._parameters: dict[int, Mapping[str, float]] = {}

    def kept(self, recompute: str, tp: int = 1) -> Mapping[str, float]:
        """What each layer keeps of a sample on a device, or less. [B]

        Parameters
        ----------
        recompute
            "none" where nothing, "full" where every block is computed again.
        tp
            Ways of tensor parallelism. [ways]
        """
        if (recompute, tp) not in self._kept:
            graph, again = self.setting.graph, {}
            if recompute != "none":
                blocks = blocks_of_layers(graph)
                several = several_layers(blocks).values()
                again = {name: blocks[name] for names in several for name in names}
            size = self.setting.machine.training.activation_size / self.setting.batch
            splits = self._split(tp)
            rows = _kept(graph, again, splits or {})
            size /= tp if splits is None else 1
            self._kept[recompute, tp] = {name: size * count for name, count in rows.items()}
        return self._kept[recompute, tp]

    def parameters(self, tp: int) -> Mapping[str, float]:
        """Parameters of each layer on a device, or less. [items]"""
        if tp not in self._parameters:
            splits = self._split(tp)
            found, ways = splits or {}, tp if splits is None else 1
            self._parameters[tp] = {
                layer.name: _least_part(layer.parameters, layer.weight_dims, found.get(layer.name))
                / ways
                for layer in self.setting.graph.compute_layers
                if layer.shares_weight_with is None
            }
        return self._parameters[tp]

    def _split(self, tp: int) -> Mapping[str, Distribution] | None:
        """How layers are split over the devices of a replica, however many samples it has.

        None where they cannot be: that is told where it is tried, and a device has an equal part.
        """
        if tp not in self._splits:
            cluster, degrees = self.setting.cluster, Degrees(tp=tp, dp=1)
            topology = Topology.of(cluster, cluster.shape(tp))
            machine = replace(self.setting.machine, topology=topology)
            small = replace(self.setting, machine=machine, gpus=tp)
            try:
                self._splits[tp] = degree_distributions(small, degrees) if tp > 1 else {}
            except InputError:
                self._splits[tp] = None
        return self._splits[tp]

    @property
    def fullest_layer(self) -> str:
        """The layer that keeps the most where nothing is computed again."""
        kept = self.kept("none")
        return max(kept, key=kept.__getitem__)

    def of(self, choice: Choice, stages: Sequence[Stage]) -> float:
        """What the fullest device holds at least, without what the framework reserves. [B]

        Parameters
        ----------
        choice, stages
            The choice, and how it is cut.
        """
        tp, each = choice.inside.tp, self._standing(choice)
        kept, parameters = self.kept(str(choice.inside.recompute), tp), self.parameters(tp)
        held = [0.0] * choice.pp
        for number, stage in enumerate(stages):
            chunk, group = divmod(number, choice.pp)
            flying = _under_way(choice.pp, choice.chunks, choice.micro_batches, chunk, group)
            held[group] += each * sum(parameters.get(name, 0.0) for name in stage.layers)
            held[group] += (
                flying * choice.samples * sum(kept.get(name, 0.0) for name in stage.layers)
            )
        return max(held)

    def anyhow(self, choice: Choice) -> float:
        """What some device holds at least, wherever stages are cut and what is computed again. [B]

        So much memory has room for a part of what is kept of the whole network: in each group for
        most where the fewest micro-batches are under way, and in each of its stages for one that
        comes back. The parts of all groups make up the whole.
        """
        parts = _parts(choice.pp, choice.chunks, choice.micro_batches)
        # a weight takes the least of that where the part is the smallest
        tp = choice.inside.tp
        standing = self._standing(choice) * sum(self.parameters(tp).values()) * min(parts)
        kept = choice.samples * sum(self.kept("full", tp).values())
        return (kept + standing) / sum(parts)

    def fit(self, choice: Choice) -> bool:
        """Whether that is within the memory of a device, as far as it is certain."""
        return self.anyhow(choice) * (1.0 - ROUNDING) <= self.weights.usable

    def share(self, micro_batches: int, recompute: str) -> float:
        """What some device keeps at least where all are one stage, however layers are split. [B]

        Parameters
        ----------
        micro_batches
            Of a step, all of which have the same devices. [items]
        recompute
            "full" where all blocks may be computed again, "none" where none is.
        """
        samples = self.setting.batch / micro_batches
        return samples * sum(self.kept(recompute).values()) / self.setting.gpus

    def fits_in_one_stage(self, micro_batches: int, recompute: str) -> bool:
        """Whether that is within the memory of a device, as far as it is certain."""
        return self.share(micro_batches, recompute) * (1.0 - ROUNDING) <= self.weights.usable

    def _standing(self, choice: Choice) -> float:
        """Weight, gradient and optimizer state of a parameter of a device. [B]"""
        weight, gradient, state = self.weights.sizes[choice.zero > 2]
        each = weight / (choice.dp if choice.zero > 2 else 1)
        each += gradient / (choice.dp if choice.zero > 1 else 1)
        return each + state / (choice.dp if choice.zero > 0 else 1)


@cache
def _parts(pp: int, chunks: int, count: int) -> tuple[float, ...]:
    """How much of a network each group has room for, where a micro-batch of all of it has room.

    Parameters
    ----------
    pp, chunks, count
        Groups of devices, stages of each, and micro-batches. [items]
    """
    found = []
    for group in range(pp):
        flying = [_under_way(pp, chunks, count, chunk, group) for chunk in range(chunks)]
        some = [number for number in flying if number]
        found.append(len(flying) - len(some) + (1.0 / min(some) if some else 0.0))
    return tuple(found)


def _under_way(pp: int, chunks: int, count: int, chunk: int, group: int) -> int:
    """Micro-batches that a stage has under way at once, or fewer. [items]

    Parameters
    ----------
    pp, chunks, count
        As of `_parts`.
    chunk, group
        Which stage of a group, and which group.
    """
    if chunks == 1:
        return min(pp - group, count)
    if count == pp:
        return count
    # passes before the first one backwards: in rounds of all groups, chunk by chunk
    ahead = max(2 * (pp - group - 1) + (chunks - 1) * pp, 1)
    return min(max(ahead - chunk * pp, 0), pp, count)


def _least_part(size: float, dims: Iterable[str], split: Distribution | None) -> float:
    """The part of a device at least, of what some dims of a layer index."""
    return size / math.prod(split.degree(dim) for dim in dims) if split is not None else size


def _kept(
    graph: Graph, again: Mapping[str, str], splits: Mapping[str, Distribution]
) -> dict[str, float]:
    """Elements that a device keeps of each layer for its backward pass, or less. [items]

    Parameters
    ----------
    graph
        The network.
    again
        For layers that are computed again, the block that they are computed again with: of it
        only what it starts from is kept.
    splits
        Of layers over devices.
    """
    found = {}
    for layer in graph.compute_layers:
        block, split = again.get(layer.name), splits.get(layer.name)
        count = 0.0
        if layer.keeps_output and block is None:
            count = _least_part(layer.output.size, layer.output.dims, split)
        held = held_inputs(graph, layer.name)
        for edge, counts in zip(graph.producers[layer.name], held, strict=True):
            inside = block is not None and again.get(edge.source) == block
            # what the network is given is not kept by every runtime
            if counts and not inside and graph.layers[edge.source].kind != "input":
                tensor = layer.inputs[edge.slot]
                count += counts * _least_part(tensor.size, tensor.dims, split)
        found[layer.name] = count
    return found


def least_of_heavy(
    setting: Setting, heavy: Iterable[Choice], least: LeastOfStages | None
) -> list[float]:
    """What a device holds at least of choices whose weights alone are too much. [B]

    Parameters
    ----------
    setting, heavy
        The question, and the choices.
    least
        Knows what stages keep at least, where that is known.
    """
    weights, reserved = LeastWeights(setting), setting.cluster.device.reserved_memory
    rows = ((one, weights.of(one)) for one in heavy)
    if least is None:
        return [reserved + held for _, held in rows]
    return [reserved + max(held, least.anyhow(one)) for one, held in rows]
