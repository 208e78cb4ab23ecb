"""What the passes of a layer take: computation, exposed halos, reductions and statistics.

Arrays are over candidates. Assumes that passes run one after the other, and that nothing but halos
is hidden within a layer.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.communication.collectives import all_reduce_time, reduce_scatter_time
from costmodels.communication.halo import halo_exchange
from costmodels.communication.topology import Topology
from costmodels.compute import TimeSource
from costmodels.compute.roofline import BANDWIDTH_FRACTION
from costmodels.distribution import Candidates
from costmodels.graph import FUSED_OPERATIONS, Layer, Tensor
from costmodels.layers.halo_work import halo_work
from costmodels.layers.local_work import (
    bias_work,
    local_size,
    local_work,
    side_work,
    update_work,
)
from costmodels.layers.reduced_precision import cast, cast_work, runs_in_fp8
from costmodels.step.machine import Machine
from costmodels.step.timeline import gradient_time, outermost_time

Floats = NDArray[np.float64]

# Rows of computation by source: those of `TimeSource`, and what kernels wait for their launch.
SOURCES = (*(source.name.lower() for source in TimeSource), "launch")
NUM_SOURCES, LAUNCH = len(SOURCES), len(SOURCES) - 1
# So many candidates are worth finding those that compute the same. [items]
MANY = 64


class Computation(Struct):
    """Local computation of a layer. [s]"""

    forward: Floats
    backward_data: Floats
    backward_weight: Floats
    update: Floats
    sources: Floats

    def take(self, places: NDArray[np.int64]) -> Computation:
        """That of candidates at these places."""
        rows = (getattr(self, name) for name in self.__struct_fields__)
        return Computation(*(row.take(places, axis=-1) for row in rows))


def _compute(
    layer: Layer, candidates: Candidates, direction: str, machine: Machine
) -> tuple[Floats, Floats]:
    """Seconds of one pass, and by source."""
    count = len(candidates)
    seconds, by_source = np.zeros(count), np.zeros((NUM_SOURCES, count))
    training = machine.training
    # a host that runs ahead is counted for a whole pass, see costmodels.simulation.host
    every, launch_time = np.arange(count), 0.0 if training.runs_ahead else training.launch_time
    if direction == "forward":
        launch_time *= machine.training.forward_launches
    # products in single precision read any layout
    transposes = machine.training.transposes and machine.compute.arithmetic != "fp32"
    sides = side_work(layer, candidates, direction, transposes=transposes)
    fp8 = training.precision == "fp8" and runs_in_fp8(layer)
    sides += cast_work(layer, candidates, direction) if fp8 else []
    for work in local_work(layer, candidates, direction):
        compute = machine.compute
        time, source = compute.time(work, fp8=True) if fp8 else compute.time(work)
        time, source = np.broadcast_to(time, count), np.broadcast_to(source, count)
        if layer.operation in FUSED_OPERATIONS and direction == "forward":
            # read by the kernel of the layer before
            seconds = seconds + np.maximum(time - machine.compute.device.kernel_latency, 0.0)
            by_source[source, every] += time
            continue
        by_source[source, every] += time
        for side in sides:
            # whoever measured the layer measured these, too
            more, how = machine.compute.time(side)
            more = np.where(source > TimeSource.INTERPOLATED, more, 0.0)
            by_source[np.broadcast_to(how, count), every] += more
            time = time + more
        waiting = np.maximum(launch_time - time, 0.0)
        seconds = seconds + time + waiting
        by_source[LAUNCH] += waiting
    return seconds, by_source


def layer_computation(
    layer: Layer,
    candidates: Candidates,
    machine: Machine,
    parameters: Floats,
    wants_gradient: bool,
) -> Computation:
    """All passes and the update of the given number of local parameters.

    Parameters
    ----------
    layer, candidates, machine
        As of `layer_costs`.
    parameters
        Trainable numbers of the local part of the weight; (candidates,). [items]
    wants_gradient
        Whether any input wants a gradient.
    """
    if len(candidates) >= MANY and not _tells_levels_apart(layer):
        first, places = candidates.totals
        some = candidates.take(first)
        found = _computation(layer, some, machine, parameters[first], wants_gradient)
        return found.take(places)
    return _computation(layer, candidates, machine, parameters, wants_gradient)


def _tells_levels_apart(layer: Layer) -> bool:
    """Whether it matters at which level a dim is split: where an axis has too few units for it."""
    tensors = (*layer.inputs, layer.output)
    return any(axis.units is not None for tensor in tensors for axis in tensor.axes)


def _computation(
    layer: Layer,
    candidates: Candidates,
    machine: Machine,
    parameters: Floats,
    wants_gradient: bool,
) -> Computation:
    """As `layer_computation`, of each candidate by itself."""
    count = len(candidates)
    forward, by_source = _compute(layer, candidates, "forward", machine)
    backward_data, backward_weight, update = np.zeros(count), np.zeros(count), np.zeros(count)
    # the only backward pass of what multiplies no matrices makes the weight's gradient, too
    if wants_gradient or (not layer.is_dense and layer.parameters):
        backward_data, more = _compute(layer, candidates, "backward_data", machine)
        by_source = by_source + more
    if layer.trains_weight or (layer.multiplies_activations and wants_gradient):
        backward_weight, more = _compute(layer, candidates, "backward_weight", machine)
        by_source = by_source + more
    elif layer.is_dense and layer.parameters:
        time, source = machine.compute.time(bias_work(layer, candidates))
        backward_weight = backward_weight + time
        by_source[np.broadcast_to(source, count), np.arange(count)] += time
    if layer.parameters and machine.training.accumulated:
        device = machine.compute.device
        rate = BANDWIDTH_FRACTION * device.memory_bandwidth
        backward_weight = backward_weight + parameters * machine.training.accumulated / rate
    if layer.parameters and layer.shares_weight_with is None:
        works = [update_work(parameters, machine.training.optimizer)]
        if machine.training.precision == "fp8" and runs_in_fp8(layer):
            works.append(cast(parameters))
        for work in works:
            time, source = machine.compute.time(work)
            # all weights are updated in a few fused kernels: no fixed cost for each layer
            time = np.maximum(time - machine.compute.device.kernel_latency, 0.0)
            update = update + time
            by_source[source, np.arange(count)] += time
    return Computation(forward, backward_data, backward_weight, update, by_source)


class ExposedHalos(Struct):
    """What the halo exchange of the passes exposes, and what each pass receives. [s], [B]

    `slabs_forward` and `slabs_backward` are what of that is computation, `joined_forward` and
    `joined_backward` the tensors in which blocks lie with their halos, and `weight_first` says
    whether the weight's gradient is made beside the exchange of the backward pass.
    """

    forward: Floats
    backward: Floats
    slabs_forward: Floats
    slabs_backward: Floats
    joined_forward: Floats
    joined_backward: Floats
    weight_first: NDArray[np.bool_]
    num_bytes: Floats


def exposed_halos(
    layer: Layer,
    candidates: Candidates,
    machine: Machine,
    computation: Computation,
    wants_gradient: bool,
) -> ExposedHalos:
    """What the halo exchanges add to the passes.

    Parameters
    ----------
    layer, candidates, machine
        As of `layer_costs`.
    computation
        Of the layer: the exchanges hide behind it.
    wants_gradient
        Whether any input wants a gradient.
    """
    forward, backward = (
        halo_exchange(
            layer,
            candidates,
            machine.topology,
            backward=way,
            element_size=machine.training.activation_size,
        )
        for way in (False, True)
    )
    zero = np.zeros(len(candidates))
    exposed_backward, slabs_backward, joined_backward, weight_first = zero, zero, zero, zero > 0.0
    if wants_gradient:
        times = (computation.backward_data, computation.backward_weight)
        work = halo_work(layer, candidates, "backward_data", times, machine, backward)
        exposed_backward, slabs_backward = work.exposed, work.slabs
        joined_backward = work.joined
        if machine.training.halo_overlap:
            weight_first = (work.exchange > 0.0) & (computation.backward_weight > 0.0)
    work = halo_work(layer, candidates, "forward", (computation.forward, 0.0), machine, forward)
    return ExposedHalos(
        forward=work.exposed,
        backward=exposed_backward,
        slabs_forward=work.slabs,
        slabs_backward=slabs_backward,
        joined_forward=work.joined,
        joined_backward=joined_backward,
        weight_first=weight_first,
        num_bytes=forward.num_bytes + backward.num_bytes * wants_gradient,
    )


class LayerReductions(Struct):
    """Reductions that the next layer waits for, and what a rank receives of each. [s], [B]

    `summed_forward` and `summed_backward` are the all-reduces that take their place where all of
    the sums are needed everywhere, `least_backward` the lesser of the two for each input, and
    `link_backward` how long these fill the links of the outermost level.
    """

    forward: Floats
    backward: Floats
    summed_forward: Floats
    summed_backward: Floats
    least_backward: Floats
    link_backward: Floats
    num_bytes: list[Floats]


def layer_reductions(
    layer: Layer,
    candidates: Candidates,
    machine: Machine,
    input_gradients: tuple[bool, ...],
    *,
    timed: bool = True,
) -> LayerReductions:
    """Partial outputs, and partial gradients of the inputs that want one.

    Parameters
    ----------
    layer, candidates, machine, input_gradients
        As of `layer_costs`.
    timed
        Whether what they take is asked for, besides what a rank receives.
    """
    size = machine.training.activation_size
    topology, algorithm = machine.topology, machine.training.all_reduce

    def reduced(tensor: Tensor, dims: frozenset[str]) -> tuple[Floats, Floats, Floats]:
        group = candidates.sharing_group(tensor, dims)
        block = local_size(tensor, candidates) * size
        members = group.prod(axis=1)
        received = block * (1.0 - 1.0 / members)
        scattered, summed = np.zeros(len(candidates)), np.zeros(len(candidates))
        some = np.flatnonzero(members > 1)
        if len(some) and timed:
            scattered[some] = reduce_scatter_time(topology, group[some], block[some])
            summed[some] = gradient_time(topology, group[some], block[some], algorithm)
        return scattered, summed, received

    forward, summed_forward, received = reduced(layer.output, layer.reduced_dims)
    backward = summed_backward = least = link = np.zeros(len(candidates))
    num_bytes = [received]
    for slot, tensor in enumerate(layer.inputs):
        if input_gradients[slot]:
            time, summed, received = reduced(tensor, layer.absent_dims(slot))
            backward, summed_backward = backward + time, summed_backward + summed
            least = least + np.minimum(time, summed)
            num_bytes.append(received)
            if timed:
                group = candidates.sharing_group(tensor, layer.absent_dims(slot))
                link = link + outermost_time(topology, group, received)
    return LayerReductions(
        forward, backward, summed_forward, summed_backward, least, link, num_bytes
    )


def statistics_time(layer: Layer, candidates: Candidates, topology: Topology) -> Floats:
    """All-reduces of the layer's statistics, one in each pass. [s]

    Parameters
    ----------
    layer, candidates
        As of `layer_costs`.
    topology
        Links of the devices used.
    """
    if layer.statistics is None:
        return np.zeros(len(candidates))
    numbers = np.full(len(candidates), 4.0 * layer.statistics.count)
    for dim in layer.statistics.per:
        numbers = numbers * candidates.local(dim, layer.dims[dim])
    group = candidates.group(layer.statistics.over)
    return 2.0 * all_reduce_time(topology, group, numbers)
