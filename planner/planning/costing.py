"""What one assignment costs: its step on a timeline, its memory, and both by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.graph import Edge
from costmodels.layers.layer_cost import LayerCosts
from costmodels.layers.layer_passes import NUM_SOURCES, SOURCES
from costmodels.layers.local_work import local_size
from costmodels.step.memory import LayerMemory, PeakMemory, liveness, paradl
from costmodels.step.timeline import LayerStep, StepTime, overlapped_step
from costmodels.step.training import Training
from planner.planning.formulate import Formulation

# Forward and backward shuffle of an input that carries no gradient: it is read where it lies. [s]
_NO_SHUFFLE = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Time of one layer in a step by cause, shuffles of its inputs included. [s]"""

    forward: float
    backward: float
    update: float
    halo: float
    reduction: float
    shuffle: float
    gradient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
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


def cost(
    formulation: Formulation, choices: Sequence[int], training: Training | None = None
) -> Costed:
    """Cost an assignment on the timeline.

    Parameters
    ----------
    formulation
        The network on the machine.
    choices
        Candidate of each layer.
    training
        Options of gradient all-reduces other than those that the formulation was made with.
    """
    training = training or formulation.machine.training
    chosen = dict(zip((layer.name for layer in formulation.layers), choices, strict=True))
    shuffles = _shuffles(formulation, chosen)
    steps, layers, sources = [], {}, np.zeros(NUM_SOURCES)
    received = 0.0
    for layer in formulation.layers:
        costs, c = formulation.spaces[layer.name].costs, chosen[layer.name]
        into = [shuffles.get(e, _NO_SHUFFLE) for e in formulation.graph.producers[layer.name]]
        forward, backward = (sum(times[i] for times in into) for i in (0, 1))
        steps.append(_layer_step(costs, c, forward, backward))
        layers[layer.name] = _layer_times(costs, c, forward + backward)
        sources += costs.sources[:, c]
        received += _layer_traffic(costs, c)
    sizes = _sizes(formulation, chosen, shuffles)
    return Costed(
        choices=tuple(choices),
        step=overlapped_step(steps, formulation.machine.topology, training),
        memory=_peak_memory(formulation, sizes, training),
        layers=layers,
        sizes=sizes,
        communication_bytes=received,
        sources={n: float(s) for n, s in zip(SOURCES, sources, strict=True) if s > 0},
    )


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
    """What a device receives for a layer; an all-reduce brings all but its own part, twice. [B]"""
    members = float(np.prod(costs.gradient_group[c]))
    gradient = float(costs.gradient_bytes[c])
    return float(costs.communication_bytes[c]) + 2.0 * gradient * (1.0 - 1.0 / members)


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
    """
    size = formulation.machine.training.activation_size
    result: dict[str, LayerMemory] = {}
    inputs_of: dict[tuple[int, int], tuple[float, ...]] = {}
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
        result[layer.name] = LayerMemory(
            weights=float(costs.weights[c]),
            gradients=float(costs.gradients[c]),
            state=float(costs.state[c]),
            output=float(costs.output[c]),
            inputs=inputs_of[key],
            copied=copied,
            saved=float(costs.saved[c]),
            workspace=float(costs.workspace[c]),
            buffer=float(costs.communication_bytes[c]),
        )
    return result
