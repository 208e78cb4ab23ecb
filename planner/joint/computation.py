"""What no step of any pipeline takes less than, by computation alone, whatever the splits."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.topology import Topology
from costmodels.distribution import Candidates, enumerate_candidates
from costmodels.errors import InputError
from costmodels.graph import Graph, Layer
from costmodels.layers.layer_passes import layer_computation
from costmodels.layers.local_work import local_parameters
from costmodels.step.machine import Machine
from costmodels.strategy.blocks import is_transformer
from planner.joint.choices import Choice, divisors
from planner.joint.cuts import Cuts
from planner.joint.reduced import Reduced
from planner.request.setting import Setting
from planner.request.training_graphs import training_graph
from planner.simulation.run import waiting_time
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]


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
        self.starts, self.waits = series_starts(setting.graph), in_series(setting.graph)
        self.known: dict[tuple[int, int], tuple[float, Floats]] = {}
        self.graphs: dict[int, Graph] = {}

    def on(self, setting: Setting) -> PipelineBounds:
        """The bounds of the question for another number of GPUs, with what is known."""
        other = copy(self)
        other.setting = setting
        return other

    def micro_batch(self, gpus: int, samples: int) -> tuple[float, Floats]:
        """What a micro-batch takes at least: all layers, and what of it a series of blocks takes
        where none, one, two ... of them lie on several stages. [s]

        Parameters
        ----------
        gpus
            Devices of a stage. [items]
        samples
            Of a micro-batch, on all of them. [samples]
        """
        if (gpus, samples) not in self.known:
            for count, least in self._of_layers(gpus, samples).items():
                layers = self.setting.graph.compute_layers
                each = self.sums([least[self.like[layer.name]] for layer in layers])
                self.known.setdefault((gpus, count), each)
        return self.known[gpus, samples]

    def sums(self, rows: Sequence[float]) -> tuple[float, Floats]:
        """As of `micro_batch`, by what each layer takes.

        Parameters
        ----------
        rows
            Both passes of each layer. [s]
        """
        total = sum(rows)
        if self.chain:
            return total, np.full(1, total)
        rows = [time * waits for time, waits in zip(rows, self.waits, strict=True)]
        blocks = np.add.reduceat(np.array(rows), self.starts)
        longest = np.array(longest_series(self.setting.graph, rows, self.starts))
        beside = np.sort(np.minimum(longest - blocks, 0.0))
        return total, blocks.sum() + np.append(0.0, np.cumsum(beside))

    def _of_layers(self, gpus: int, samples: int) -> dict[int, dict[str, float]]:
        """What a micro-batch takes of each layer at least, by its samples: half as many too. [s]

        Parameters
        ----------
        gpus, samples
            As of `micro_batch`.
        """
        setting = self.setting
        topology = Topology.of(setting.cluster, setting.cluster.shape(gpus))
        machine = replace(setting.machine, topology=topology)
        if samples not in self.graphs:
            self.graphs[samples] = training_graph(self.network, samples, machine.training)
        graph = self.graphs[samples]
        # the layers of a transformer may have dims that follow the samples otherwise
        halves = [1] if is_transformer(graph) else _halvings(samples)
        known: dict[tuple[object, ...], list[float]] = {}
        found: dict[int, dict[str, float]] = {samples // ways: {} for ways in halves}
        for layer in graph.compute_layers:
            wanted = graph.input_gradients(layer.name)
            alike = (layer.signature, wanted)
            if alike not in known:
                known[alike] = least_passes(layer, machine, wanted, halves)
            for ways, seconds in zip(halves, known[alike], strict=True):
                found[samples // ways][layer.name] = seconds
        return found

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
        return self.staged(self.micro_batch(gpus, samples), pp, chunks, micro_batches)

    def floor(self, choice: Choice) -> float:
        """What no step of a choice takes less than, on as many devices as a replica has. [s]"""
        # experts lie on ranks of other samples
        more = max(choice.inside.ep // choice.inside.cp, 1)
        gpus = choice.inside.tp * choice.inside.cp * more
        each = self.micro_batch(gpus, choice.samples * more)
        return self.staged(each, choice.pp, choice.chunks, choice.micro_batches)

    def staged(self, each: tuple[float, Floats], pp: int, chunks: int, count: int) -> float:
        """What no step takes less than, by what a micro-batch takes. [s]

        Parameters
        ----------
        each
            As `micro_batch` returns it. [s]
        pp, chunks, count
            Groups of devices, stages of each, and micro-batches. [items]
        """
        total, cut = each
        # every cut into stages divides a block, which then takes no less than its longest series
        series = float(cut[min(pp * chunks, len(cut)) - 1])
        least = pipelined(total, pp, chunks, count, chain=self.chain)
        least = max(least, series, pipelined(series, pp, chunks, count, chain=True))
        return least + waiting_time(count * total / pp, self.setting.gpus)

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


def _halvings(samples: int) -> list[int]:
    """By what samples can be divided halving them again and again, 1 first."""
    return [2**i for i in range(samples.bit_length()) if samples % 2**i == 0]


def least_passes(
    layer: Layer, machine: Machine, wanted: tuple[bool, ...], parts: Sequence[int]
) -> list[float]:
    """What both passes of a layer take at least, whatever the split, for parts of its samples. [s]

    A part of the samples is computed as all of them are that are split in so many ways more.

    Parameters
    ----------
    layer, machine, wanted
        As of `LayerComputation.of`.
    parts
        By how much the samples are divided. [ways]
    """
    totals = enumerate_candidates(layer, (machine.topology.num_devices,), 0, full=True)
    if "sample" not in totals.dims:
        parts = [1] * len(parts)
    ways = totals.degree("sample")
    rows, starts = [], [0]
    for part in parts:
        degrees = totals.degrees[ways * part <= max(layer.dims.get("sample", 1), part)].copy()
        if part > 1:
            degrees[:, :, totals.dims.index("sample")] *= part
        rows.append(degrees)
        starts.append(starts[-1] + len(degrees))
    candidates = Candidates(dims=totals.dims, degrees=np.concatenate(rows), shape=totals.shape)
    parameters = local_parameters(layer, candidates) * (layer.shares_weight_with is None)
    times = layer_computation(layer, candidates, machine, parameters, any(wanted))
    passes = times.forward + times.backward_data + times.backward_weight
    least: list[float] = np.minimum.reduceat(passes, starts[:-1]).tolist()
    return least


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


def in_series(graph: Graph) -> list[bool]:
    """Of each layer, whether the last one waits for it."""
    layers = graph.compute_layers
    needed = {layers[-1].name}
    for layer in reversed(layers):
        if layer.name in needed:
            needed.update(edge.source for edge in graph.producers[layer.name])
    return [layer.name in needed for layer in layers]


def series_starts(graph: Graph) -> list[int]:
    """The first layers of blocks of which each waits for the whole one before it, as 0, 4, 9.

    Layers that the last one does not wait for count as none.
    """
    layers, counts = graph.compute_layers, in_series(graph)
    place = {layer.name: number for number, layer in enumerate(layers)}
    starts, oldest, following = [], len(layers), len(layers)
    for number in reversed(range(len(layers))):
        if not counts[number]:
            continue
        # all that follows reads of this layer, and of none before it
        if following < len(layers) and oldest == number:
            starts.append(following)
        inputs = [place.get(e.source, -1) for e in graph.producers[layers[number].name]]
        oldest, following = min([oldest, *inputs] if inputs else [-1]), number
    return [0, *reversed(starts)]


def longest_series(graph: Graph, times: Sequence[float], starts: Sequence[int]) -> list[float]:
    """The longest chain of layers in each block, each of which waits for the one before. [s]

    Parameters
    ----------
    graph, times
        The network, and what each of its layers takes in both passes. [s]
    starts
        The first layer of each block.
    """
    ends: dict[str, float] = {}
    found: list[float] = []
    begins = set(starts)
    for number, (layer, time) in enumerate(zip(graph.compute_layers, times, strict=True)):
        if number in begins:
            ends.clear()
            found.append(0.0)
        before = (ends.get(edge.source, 0.0) for edge in graph.producers[layer.name])
        ends[layer.name] = max(before, default=0.0) + time
        found[-1] = max(found[-1], ends[layer.name])
    return found
