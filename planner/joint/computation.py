"""What no step of any pipeline takes less than, by computation alone, whatever the splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.graph import Graph
from planner.joint.choices import Choice, divisors
from planner.joint.cuts import Cuts
from planner.joint.reduced import Reduced
from planner.planning.bounds.left_out import LayerComputation
from planner.request.setting import Setting, training_graph
from search.problem.deadline import Deadline


def pipelined(total: float, pp: int, chunks: int, micro_batches: int, *, chain: bool) -> float:
    """What no pipeline takes less than, wherever it is cut. [s]

    Parameters
    ----------
    total
        Of all stages on a micro-batch. [s]
    pp, chunks, micro_batches
        Groups of devices, stages of each, and micro-batches. [items]
    chain
        Whether no stage works on a micro-batch while another one does.
    """
    if chunks > 1 or not chain or pp == 1:
        return micro_batches * total / pp
    return total / (1.0 - (1.0 - 1.0 / micro_batches) ** pp)


class PipelineBounds:
    """Bounds of the steps of one question by computation alone, for every split of every layer.

    Parameters
    ----------
    setting
        The question.
    reduced
        Its network without repeated blocks.
    """

    def __init__(self, setting: Setting, reduced: Reduced) -> None:
        self.setting, self.like = setting, reduced.like
        self.network = reduced.network
        self.chain = blocks_in_series(setting.graph, Cuts(setting.graph))
        self.known: dict[tuple[int, int], tuple[float, float]] = {}

    def micro_batch(self, gpus: int, samples: int) -> tuple[float, float]:
        """What a micro-batch takes at least: all layers, and a chain of them. [s]

        Parameters
        ----------
        gpus
            Devices of a stage. [items]
        samples
            Of a micro-batch, on all of them. [samples]
        """
        key = (gpus, samples)
        if key not in self.known:
            setting = self.setting
            topology = Topology.of(setting.cluster, setting.cluster.shape(gpus))
            machine = replace(setting.machine, topology=topology)
            graph = training_graph(self.network, samples, machine.training)
            least: dict[tuple[object, ...], float] = {}
            of_layer: dict[str, float] = {}
            for layer in graph.compute_layers:
                wanted = graph.input_gradients(layer.name)
                alike = (layer.signature, wanted)
                if alike not in least:
                    passes = LayerComputation.of(layer, machine, wanted).passes
                    least[alike] = float(passes.min())
                of_layer[layer.name] = least[alike]
            whole = setting.graph
            rows = [of_layer[self.like[layer.name]] for layer in whole.compute_layers]
            self.known[key] = sum(rows), longest_series(whole, rows, chain=self.chain)
        return self.known[key]

    def of(self, pp: int, chunks: int, micro_batches: int) -> float:
        """What no step takes less than with so many stages and micro-batches. [s]

        Parameters
        ----------
        pp, chunks
            Groups of devices, and stages of each. [items]
        micro_batches
            Of a step. [items]
        """
        gpus, samples = self.setting.gpus // pp, max(self.setting.batch // micro_batches, 1)
        return self._pipelined(self.micro_batch(gpus, samples), pp, chunks, micro_batches)

    def floor(self, choice: Choice) -> float:
        """What no step of a choice takes less than, on as many devices as a replica has. [s]"""
        # experts lie on ranks of other samples
        more = max(choice.inside.ep // choice.inside.cp, 1)
        gpus = choice.inside.tp * choice.inside.cp * more
        each = self.micro_batch(gpus, choice.samples * more)
        return self._pipelined(each, choice.pp, choice.chunks, choice.micro_batches)

    def _pipelined(self, each: tuple[float, float], pp: int, chunks: int, count: int) -> float:
        total, chain = each
        return max(pipelined(total, pp, chunks, count, chain=self.chain), chain)

    def least(self, deadline: Deadline) -> float:
        """What no step takes less than, whatever the stages and micro-batches. [s]

        Parameters
        ----------
        deadline
            After which nothing is proven, and it is 0.
        """
        setting = self.setting
        found = float("inf")
        layers = len(setting.graph.compute_layers)
        for pp in divisors(setting.gpus):
            if pp > layers:
                break
            try:
                setting.cluster.shape(setting.gpus // pp)
            except InputError:
                continue
            for count in divisors(setting.batch):
                if deadline.passed:
                    return 0.0
                # several chunks wait the least, where there are any
                chunks = 2 if pp > 1 else 1
                found = min(found, self.of(pp, chunks, count))
        return found


def blocks_in_series(graph: Graph, cuts: Cuts) -> bool:
    """Whether each block of a network reads what the one before it makes."""
    if not cuts.first:
        return False
    block = np.searchsorted(cuts.first, np.arange(len(cuts.place)), side="right") - 1
    reads = {
        (block[cuts.place[edge.source]], block[cuts.place[name]])
        for name in cuts.place
        for edge in graph.producers[name]
        if edge.source in cuts.place
    }
    return all((number - 1, number) in reads for number in range(1, len(cuts.first)))


def longest_series(graph: Graph, times: list[float], *, chain: bool) -> float:
    """The longest chain of layers, each of which waits for the one before. [s]

    Parameters
    ----------
    graph, times
        The network, and what each of its layers takes in both passes. [s]
    chain
        Whether all of them are one.
    """
    if chain:
        return sum(times)
    ends: dict[str, float] = {}
    for layer, time in zip(graph.compute_layers, times, strict=True):
        before = (ends.get(edge.source, 0.0) for edge in graph.producers[layer.name])
        ends[layer.name] = max(before, default=0.0) + time
    return max(ends.values())
