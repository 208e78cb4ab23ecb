"""Paleo: the analytical model of Qi, Sparks and Talwalkar 2017 (ICLR), for one step.

A pass of a layer takes its FLOPs at the platform's percent of the peak (PPP) and then its bytes at
the memory bandwidth, one after the other; every layer is equally good. Gradients of all layers are
reduced together after the backward pass by one of three schemes, and a layer whose filters are
split fetches its whole input from the ranks that hold parts of it, and sends its gradient back.
Nothing overlaps. Paleo knows data parallelism, model parallelism by filters, and hybrids of both,
layer by layer: the convolutions by sample and the fully connected layers by filter, for example.

Two differences from the authors' program: layers between the weighted ones cost their memory
traffic, and a step of communication has a latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from costmodels.closed_form.links import collective_link, ring_all_gather_time
from costmodels.closed_form.passes import (
    distribution_of,
    needs_input_gradient,
    pass_work,
)
from costmodels.closed_form.result import CAUSES, ClosedForm
from costmodels.communication.topology import Topology
from costmodels.compute import Work
from costmodels.distribution import Candidates, Distribution, one_candidate
from costmodels.errors import InputError
from costmodels.graph import Graph, Layer
from costmodels.layers.local_work import local_parameters, local_size, update_work
from costmodels.step.machine import Machine

# What the authors' program uses for AlexNet on K80 and Inception v3 on K40, both with cuDNN
# (scripts/exp_case_*.sh of TalwalkarLab/paleo); with matrix products only they use 0.21 and 0.46.
PERCENT_OF_PEAK = 0.62

# Steps of an all-reduce, each with the whole buffer, and whether one rank does them all.
_SCHEMES: Mapping[str, Callable[[int], float]] = {
    "one_to_all": lambda p: 2.0 * (p - 1),
    "tree": lambda p: 2.0 * math.ceil(math.log2(p)),
    "butterfly": lambda p: float(math.ceil(math.log2(p))),
}
SCHEMES = tuple(_SCHEMES)


def paleo_step(
    graph: Graph,
    distributions: Mapping[str, Distribution],
    machine: Machine,
    *,
    percent_of_peak: float = PERCENT_OF_PEAK,
    scheme: str = "tree",
) -> ClosedForm:
    """Time of a step of a plan that splits samples and filters.

    Parameters
    ----------
    graph
        The network at the global batch.
    distributions
        How every layer but the inputs is split.
    machine
        Links, device and training options.
    percent_of_peak
        Part of the peak FLOP/s that the platform reaches on average.
    scheme
        How gradients are reduced: one of `SCHEMES`.
    """
    if not 0 < percent_of_peak <= 1:
        raise InputError.rule(
            "the platform's percent of peak",
            "be above 0 and at most 1",
            f"{percent_of_peak:g}",
            "write 0.62 for 62 %",
        )
    if scheme not in _SCHEMES:
        raise InputError.rule(
            "the reduction scheme",
            f"be one of {', '.join(SCHEMES)}",
            f"'{scheme}'",
            "choose one",
        )
    forward = backward = update = reduction = 0.0
    gradients: dict[tuple[int, ...], float] = {}
    for layer in graph.compute_layers:
        distribution = distribution_of(distributions, layer)
        _check_split(layer, distribution)
        candidates = one_candidate(distribution)
        there, back = pass_work(graph, layer, candidates)
        forward += _platform_seconds(there, machine, percent_of_peak)
        backward += _platform_seconds(back, machine, percent_of_peak)
        reduction += _fetch_time(graph, layer, distribution, candidates, machine)
        if layer.parameters and layer.shares_weight_with is None:
            parameters = local_parameters(layer, candidates)
            work = update_work(parameters, machine.training.optimizer)
            update += _platform_seconds([work], machine, percent_of_peak)
            group = distribution.degrees.get("sample", (1,) * len(distribution.shape))
            size = float(parameters[0]) * machine.training.gradient_size
            gradients[group] = gradients.get(group, 0.0) + size
    communication = dict.fromkeys(CAUSES, 0.0)
    communication["reduction"] = reduction
    communication["gradient"] = _gradients_time(gradients, machine.topology, scheme)
    return ClosedForm(
        strategy=_dims_name(graph, distributions),
        forward=forward,
        backward=backward,
        update=update,
        communication=communication,
        sources={"percent_of_peak": forward + backward + update},
    )


def _gradients_time(
    gradients: Mapping[tuple[int, ...], float], topology: Topology, scheme: str
) -> float:
    """Gradients of each group, one group after the other. [s]"""
    seconds = 0.0
    for group, size in gradients.items():
        alpha, beta = collective_link(topology, group)
        seconds += _SCHEMES[scheme](math.prod(group)) * (alpha + size * beta)
    return seconds


def _check_split(layer: Layer, distribution: Distribution) -> None:
    """Refuse a split that Paleo does not know."""
    weighted = layer.kind in ("conv", "linear", "embedding")
    known = {"sample", "filter"} if weighted else {"sample", "filter", "channel"}
    if set(distribution.degrees) - known:
        raise InputError.rule(
            f"layer '{layer.name}'",
            "be split by sample or filter",
            f"split as {distribution}",
            "use paradl or the planner's own step model for such plans",
        )


def _platform_seconds(works: list[Work], machine: Machine, percent_of_peak: float) -> float:
    """FLOPs at the reachable rate, then bytes at the memory bandwidth. [s]"""
    device, precision = machine.compute.device, machine.compute.precision
    rate = percent_of_peak * device.peak_flops[precision]
    return sum(
        float(np.max(work.flops)) / rate
        + float(np.max(work.bytes_moved(precision))) / device.memory_bandwidth
        for work in works
    )


def _fetch_time(
    graph: Graph, layer: Layer, distribution: Distribution, candidates: Candidates, machine: Machine
) -> float:
    """A layer with split filters reads all of x, of which each of its ranks has an equal part. [s]

    The gradient goes the same way back. The data is loaded where it is needed.
    """
    ways = distribution.degrees.get("filter")
    if ways is None or not needs_input_gradient(graph, layer):
        return 0.0
    size = float(local_size(layer.inputs[0], candidates)[0]) * machine.training.activation_size
    return 2.0 * ring_all_gather_time(machine.topology, ways, size / math.prod(ways))


def _dims_name(graph: Graph, distributions: Mapping[str, Distribution]) -> str:
    """What the plan is called."""
    dims = {d for layer in graph.compute_layers for d in distributions[layer.name].degrees}
    parts = [name for dim, name in (("sample", "data"), ("filter", "filter")) if dim in dims]
    return "+".join(parts) or "serial"
