"""What one assignment costs: its step on a timeline, its memory, and both by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.graph import Edge
from costmodels.layers.layer_cost import LayerCosts
from costmodels.layers.layer_passes import NUM_SOURCES, SOURCES
from costmodels.layers.local_work import local_size
from costmodels.layers.shared_weight import SharedBlock
from costmodels.step.memory import LayerMemory, PeakMemory, liveness, paradl, retained
from costmodels.step.timeline import LayerStep, StepTime, overlapped_step
from costmodels.step.training import Training
from planner.planning.space.formulate import Formulation

# Forward and backward shuffle of an input that carries no gradient: it is read where it lies. [s]
_NO_SHUFFLE = (0.0, 0.0)


class LayerTimes(Struct, frozen=True, kw_only=True):
    """Time of one layer in a step by cause, shuffles of its inputs included. [s]"""

    forward: float
    backward: float
    update: float
    halo: float
    reduction: float
    shuffle: float
    gradient: float


class Costed(Struct, frozen=True, kw_only=True):
    """An assignment and what it costs.

    Parameters
    ----------
    choices
        Candidate of each layer.
    step
        The step on a timeline.
    memory
        Peak memory of a device.
    layers
        Times of each layer.
    sizes
        Local sizes of each layer.
    communication_bytes
        Bytes that a device receives in a step, gradients included. [B]
    sources
        Time of computation by where the estimate comes from. [s]
    """

    choices: tuple[int, ...]
    step: StepTime
    memory: PeakMemory
    layers: Mapping[str, LayerTimes]
    sizes: Mapping[str, LayerMemory]
    communication_bytes: float
    sources: Mapping[str, float]

    def total(self, cause: str) -> float:
        """Sum of one cause over all layers. [s]"""
        return float(sum(getattr(times, cause) for times in self.layers.values()))

    @property
    def compute(self) -> float:
        """Local computation, updates included. [s]"""
        return self.total("forward") + self.total("backward") + self.total("update")

    @property
    def blocking(self) -> float:
        """Communication that computation waits for: halos, reductions, shuffles. [s]"""
        return self.total("halo") + self.total("reduction") + self.total("shuffle")


def cost(formulation: Formulation, choices: Sequence[int]) -> Costed:
    """Cost an assignment on the timeline: the candidate of each layer."""
    training = formulation.machine.training
    chosen = dict(zip((layer.name for layer in formulation.layers), choices, strict=True))
    shuffles = _shuffles(formulation, chosen)
    shared = formulation.shared_blocks(chosen)
    steps, layers, sources = [], {}, np.zeros(NUM_SOURCES)
    received = 0.0
    for layer in formulation.layers:
        costs, c = formulation.spaces[layer.name].costs, chosen[layer.name]
        into = [shuffles.get(e, _NO_SHUFFLE) for e in formulation.graph.producers[layer.name]]
        forward, backward = (sum(times[i] for times in into) for i in (0, 1))
        step = _layer_step(costs, c, forward, backward)
        times = _layer_times(costs, c, forward + backward)
        sources += costs.sources[:, c]
        received += _layer_traffic(costs, c)
        if layer.name in shared:
            block = shared[layer.name]
            step, times = _with_shared_step(step, block), _with_shared_times(times, block)
            sources[block.update_source] += block.update
            received += block.exchange_bytes
            received += _all_reduce_bytes(block.gradient_bytes, block.gradient_group)
        steps.append(step)
        layers[layer.name] = times
    sizes = _sizes(formulation, chosen, shuffles, shared)
    return Costed(
        choices=tuple(choices),
        step=overlapped_step(steps, formulation.machine.topology, training),
        memory=_peak_memory(formulation, sizes, training),
        layers=layers,
        sizes=sizes,
        communication_bytes=received,
        sources={n: float(s) for n, s in zip(SOURCES, sources, strict=True) if s > 0},
    )


def searched_step(formulation: Formulation, costed: Costed) -> float:
    """The step of an assignment as the search compares it: on the timeline, or its largest term.

    No term is more than the simulated step, but the timeline knows less of it than they do. [s]

    Parameters
    ----------
    formulation
        The network on the machine.
    costed
        The assignment.
    """
    return max(costed.step.total, float(formulation.terms(costed.choices).max()))


def _layer_step(costs: LayerCosts, c: int, forward: float, backward: float) -> LayerStep:
    """What a layer does in a step.

    Parameters
    ----------
    costs, c
        Costs of its candidates, and which of them it is.
    forward, backward
        Shuffles of its inputs in each pass. [s]
    """
    return LayerStep(
        forward=float(costs.forward_pass[c]) + forward,
        backward=float(costs.backward_pass[c]) + backward,
        update=float(costs.update[c]),
        gradient_bytes=float(costs.gradient_bytes[c]),
        gradient_group=tuple(int(g) for g in costs.gradient_group[c]),
    )


def _layer_times(costs: LayerCosts, c: int, shuffle: float) -> LayerTimes:
    """Time of a layer by cause.

    Parameters
    ----------
    costs, c
        Costs of its candidates, and which of them it is.
    shuffle
        Shuffles of its inputs in both passes. [s]
    """
    return LayerTimes(
        forward=float(costs.forward[c]),
        backward=float(costs.backward_data[c] + costs.backward_weight[c]),
        update=float(costs.update[c]),
        halo=float(costs.halo[c]),
        reduction=float(costs.reduction[c]),
        shuffle=shuffle,
        gradient=float(costs.gradient_time[c]),
    )


def _layer_traffic(costs: LayerCosts, c: int) -> float:
    """What a device receives for a layer. [B]"""
    reduced = _all_reduce_bytes(float(costs.gradient_bytes[c]), costs.gradient_group[c])
    return float(costs.communication_bytes[c]) + reduced


def _all_reduce_bytes(num_bytes: float, group: Sequence[int] | NDArray[np.int64]) -> float:
    """What a device receives in an all-reduce: all but its own part, twice. [B]"""
    return 2.0 * num_bytes * (1.0 - 1.0 / float(np.prod(group)))


def _with_shared_step(step: LayerStep, block: SharedBlock) -> LayerStep:
    """What a layer does in a step that uses the weight of another one."""
    return replace(
        step,
        update=step.update + block.update,
        gradient_bytes=block.gradient_bytes,
        gradient_group=block.gradient_group,
        exchange=block.exchange,
    )


def _with_shared_times(times: LayerTimes, block: SharedBlock) -> LayerTimes:
    """Times of a layer that uses the weight of another one."""
    return replace(
        times,
        update=times.update + block.update,
        gradient=times.gradient + block.gradient_time + block.exchange,
    )


def _peak_memory(
    formulation: Formulation, sizes: Mapping[str, LayerMemory], training: Training
) -> PeakMemory:
    """Peak memory of a device.

    Parameters
    ----------
    formulation
        The network on the machine.
    sizes
        Local sizes of each layer.
    training
        Options of the step: the memory model and the bucket size.
    """
    reserved = float(formulation.cluster.device.reserved_memory)
    if training.memory_model == "paradl":
        return paradl(formulation.graph, sizes, reserved=reserved)
    if training.memory_model == "retained":
        return retained(formulation.graph, sizes, reserved=reserved)
    return liveness(formulation.graph, sizes, reserved=reserved, bucket_bytes=training.bucket_bytes)


def _shuffles(
    formulation: Formulation, chosen: Mapping[str, int]
) -> dict[Edge, tuple[float, float]]:
    """Forward and backward shuffle of every edge. [s]"""
    result = {}
    for edge in formulation.edges:
        times = formulation.edge_times[edge]
        pair = (chosen[edge.source], chosen[edge.target])
        result[edge] = (float(times.forward[pair]), float(times.backward[pair]))
    return result


def _sizes(
    formulation: Formulation,
    chosen: Mapping[str, int],
    shuffles: Mapping[Edge, tuple[float, float]],
    shared: Mapping[str, SharedBlock],
) -> dict[str, LayerMemory]:
    """Local sizes of each layer.

    Parameters
    ----------
    formulation
        The network on the machine.
    chosen
        Candidate of each layer.
    shuffles
        Forward and backward shuffle of every edge: what is shuffled is held twice. [s]
    shared
        What layers add that use the weight of another one.
    """
    training = formulation.machine.training
    size = training.activation_size
    result: dict[str, LayerMemory] = {}
    inputs_of: dict[tuple[int, int], tuple[float, ...]] = {}
    read_of: dict[str, float] = {}
    for layer in formulation.layers:
        space, c = formulation.spaces[layer.name], chosen[layer.name]
        costs = space.costs
        key = (id(space), c)
        if key not in inputs_of:
            one = space.candidates.take(np.array([c]))
            inputs_of[key] = tuple(float(local_size(t, one)[0]) * size for t in space.layer.inputs)
        copied = tuple(
            shuffles.get(edge, _NO_SHUFFLE)[0] > 0.0
            for edge in formulation.graph.producers[layer.name]
        )
        into = zip(formulation.graph.producers[layer.name], inputs_of[key], copied, strict=True)
        for edge, read, moved in into:
            if not moved:
                read_of[edge.source] = max(read, read_of.get(edge.source, 0.0))
        further = shared[layer.name].parameters if layer.name in shared else 0.0
        frozen = shared[layer.name].frozen if layer.name in shared else 0.0
        result[layer.name] = LayerMemory(
            weights=float(costs.weights[c])
            + further * training.weight_size
            + frozen * training.frozen_size,
            gradients=float(costs.gradients[c]) + further * training.gradient_size,
            state=float(costs.state[c]) + further * training.state_size,
            output=float(costs.output[c]),
            kept=float(costs.scattered[c]),
            inputs=inputs_of[key],
            copied=copied,
            saved=float(costs.saved[c]),
            workspace=float(costs.workspace[c]),
            buffer=float(costs.communication_bytes[c]),
        )
    for name, memory in result.items():
        if name in read_of and memory.kept < memory.output:
            # blocks of uneven division are charged the largest
            result[name] = replace(memory, kept=max(read_of[name], memory.kept))
    return result
