"""What a layer costs under each of many distributions, in seconds and bytes.

Everything is vectorised over candidates. Within a layer, passes run one after the other, and
communication that the next operation waits for is not hidden, except halos behind the interior
(Dryden et al. 2019, section IV.A). Gradient all-reduces are kept apart: a step hides them behind
the rest of the backward pass (see `costmodels.step.timeline`).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.distribution import Candidates
from costmodels.graph import Layer
from costmodels.layers.layer_passes import (
    Computation,
    exposed_halos,
    layer_computation,
    layer_reductions,
    statistics_time,
)
from costmodels.layers.local_work import local_numbers, local_parameters, local_size
from costmodels.layers.reduced_precision import weight_copies
from costmodels.step.machine import Machine
from costmodels.step.timeline import bucketed_time, gradient_link_time, gradient_time
from costmodels.step.training import Training

Floats = NDArray[np.float64]

# Convolution workspace: what cuDNN is usually allowed; algorithms that need more are not chosen.
WORKSPACE_LIMIT = 256 * 2**20


class LayerCosts(Struct, frozen=True, kw_only=True, eq=False):
    """Costs of one layer, each an array over its candidates.

    Parameters
    ----------
    forward, backward_data, backward_weight, update
        Local computation. [s]
    halo_forward, halo_backward
        Part of the halo exchange that the interior does not hide, with what cutting the kernel
        in regions costs. [s]
    reduce_forward, reduce_backward
        Reduce-scatter of partial outputs, and of partial input gradients. [s]
    slabs_forward, slabs_backward
        What of the exposed halos is computation, or copies between computation. [s]
    weight_first
        Whether backward-weight runs beside the halo exchange of the backward pass, and the rest
        after it.
    summed_forward, summed_backward
        The all-reduces that take the place of these where all of a sum is needed everywhere. [s]
    least_backward, link_backward
        The lesser of the two for each input, and how long these fill the outermost links. [s]
    statistics
        All-reduces of statistics within the layer, forward and backward. [s]
    gradient_bytes
        Local weight gradients to all-reduce; 0 where no other rank has the same weights. [B]
    gradient_group
        Members at each level of the groups that all-reduce them; (candidates, levels). [items]
    gradient_time
        What they add at least to all-reduces of buckets. [s]
    gradient_alone, gradient_link
        Their all-reduce when nothing travels with them, and how long they fill the outermost links
        at least. [s]
    numbers
        Of the local block of the weight, those that are not trained among them. [items]
    weights, gradients, state, output, scattered, saved, workspace
        Memory: weights, their gradients, optimizer state, the output as the layer makes it, what
        is left of that once partial sums are reduced and scattered, what else backward keeps
        (an input joined with its halo too), and scratch space while the layer runs. [B]
    communication_bytes
        Bytes that a rank receives in halos and reductions of a step. [B]
    sources
        Time of computation by the `TimeSource` of the estimate and, in the last row, how long
        kernels wait for their launch; (sources, candidates). [s]
    """

    forward: Floats
    backward_data: Floats
    backward_weight: Floats
    update: Floats
    halo_forward: Floats
    halo_backward: Floats
    reduce_forward: Floats
    reduce_backward: Floats
    slabs_forward: Floats
    slabs_backward: Floats
    weight_first: NDArray[np.bool_]
    summed_forward: Floats
    summed_backward: Floats
    least_backward: Floats
    link_backward: Floats
    statistics: Floats
    gradient_bytes: Floats
    gradient_group: NDArray[np.int64]
    gradient_time: Floats
    gradient_alone: Floats
    gradient_link: Floats
    numbers: Floats
    weights: Floats
    gradients: Floats
    state: Floats
    output: Floats
    scattered: Floats
    saved: Floats
    workspace: Floats
    communication_bytes: Floats
    sources: Floats

    def take(self, indices: NDArray[np.int64]) -> LayerCosts:
        """The costs of some of the candidates."""
        taken = {}
        for name in LayerCosts.__struct_fields__:
            value = getattr(self, name)
            taken[name] = value[:, indices] if name == "sources" else value[indices]
        return LayerCosts(**taken)

    def joined(self, more: LayerCosts) -> LayerCosts:
        """The costs of these candidates and of others behind them."""
        joined = {}
        for name in LayerCosts.__struct_fields__:
            pair = [getattr(self, name), getattr(more, name)]
            joined[name] = np.concatenate(pair, axis=1 if name == "sources" else 0)
        return LayerCosts(**joined)

    @property
    def compute(self) -> Floats:
        """Local computation of a step. [s]"""
        return self.forward + self.backward_data + self.backward_weight + self.update

    @property
    def halo(self) -> Floats:
        """Exposed halo exchange of a step. [s]"""
        return self.halo_forward + self.halo_backward

    @property
    def reduction(self) -> Floats:
        """Reductions that the next layer waits for. [s]"""
        return self.reduce_forward + self.reduce_backward + self.statistics

    @property
    def forward_pass(self) -> Floats:
        """All that the forward pass takes. [s]"""
        return self.forward + self.halo_forward + self.reduce_forward + self.statistics / 2

    @property
    def backward_pass(self) -> Floats:
        """All that the backward pass takes, gradient all-reduces left out. [s]"""
        return (
            self.backward_data
            + self.backward_weight
            + self.halo_backward
            + self.reduce_backward
            + self.statistics / 2
        )

    @property
    def total(self) -> Floats:
        """Forward, backward and update, gradient all-reduces left out. [s]"""
        return self.forward_pass + self.backward_pass + self.update


def saved_bytes(layer: Layer, training: Training) -> float:
    """What a layer keeps for its backward pass beside inputs and output. [B]

    Parameters
    ----------
    layer
        The layer.
    training
        Says in which types, and what a framework keeps that a fused kernel would not.
    """
    size = training.activation_size
    saved = float(layer.saved_bytes + layer.saved_elements * size)
    if layer.kind == "glu" and training.keeps_gates:
        saved += layer.output.size * size
    if layer.kind == "attention" and training.holds_packed:
        # a view holds all of its memory; where heads share keys, queries are copied apart
        packed = sum(tensor.size for tensor in layer.inputs)
        saved += (packed - layer.output.size) * size * (packed == 3 * layer.output.size)
    if layer.kind == "rms_norm" and training.norms_apart:
        # the input, but in single precision, and what the weight multiplies
        saved += layer.output.size * 4.0
    if layer.kind == "loss" and training.logit_kept is not None:
        saved += layer.output.size * max(training.logit_kept - size, 0.0)
    return saved


def layer_costs(
    layer: Layer,
    candidates: Candidates,
    machine: Machine,
    *,
    input_gradients: tuple[bool, ...],
    largest_bucket: float | None,
    computation: Computation | None = None,
) -> LayerCosts:
    """Cost a layer under every candidate.

    Parameters
    ----------
    layer
        The layer.
    candidates
        Its distributions.
    machine
        Links, device and training options.
    input_gradients
        For each input, whether backward must send a gradient to it.
    largest_bucket
        Largest size of gradient buckets; None where reductions, statistics and all-reduces of
        gradients are simulated, which are then left at 0. [B]
    computation
        The local computation, where it is known.
    """
    training, topology = machine.training, machine.topology
    size = training.activation_size
    wants_gradient = any(input_gradients)
    parameters = local_parameters(layer, candidates) * (layer.shares_weight_with is None)
    numbers = local_numbers(layer, candidates) * (layer.shares_weight_with is None)
    if computation is None:
        computation = layer_computation(layer, candidates, machine, parameters, wants_gradient)
    halos = exposed_halos(layer, candidates, machine, computation, wants_gradient)
    timed = largest_bucket is not None
    reductions = layer_reductions(layer, candidates, machine, input_gradients, timed=timed)
    group = candidates.group(set(candidates.dims) - set(layer.weight_dims))
    gradient = parameters * training.gradient_size * (group.prod(axis=1) > 1)
    output = local_size(layer.output, candidates) * size
    inputs = sum(local_size(tensor, candidates) for tensor in layer.inputs) * size
    saved_part = local_size(layer.output, candidates) / layer.output.size
    workspace = none = np.zeros(len(candidates))
    bucketed, alone, link, statistics = none, none, none, none
    if largest_bucket is not None:
        of = (topology, group, gradient)
        bucketed = bucketed_time(*of, largest_bucket, training.all_reduce)
        alone = gradient_time(*of, training.all_reduce) * (gradient > 0.0)
        link = gradient_link_time(*of, training.all_reduce)
        statistics = statistics_time(layer, candidates, topology)
    if layer.operation == "conv":
        workspace = np.minimum(inputs + output, WORKSPACE_LIMIT)
    elif layer.kind == "loss":
        workspace = output / size * training.logit_scratch
    # a block with its halo is kept as the input is, that of a gradient is there for its pass only
    keeps = float(layer.keeps_inputs)
    workspace = workspace + np.maximum(halos.joined_forward * (1.0 - keeps), halos.joined_backward)
    return LayerCosts(
        forward=computation.forward,
        backward_data=computation.backward_data,
        backward_weight=computation.backward_weight,
        update=computation.update,
        halo_forward=halos.forward,
        halo_backward=halos.backward,
        reduce_forward=reductions.forward,
        reduce_backward=reductions.backward,
        slabs_forward=halos.slabs_forward,
        slabs_backward=halos.slabs_backward,
        weight_first=halos.weight_first,
        summed_forward=reductions.summed_forward,
        summed_backward=reductions.summed_backward,
        least_backward=reductions.least_backward,
        link_backward=reductions.link_backward,
        statistics=statistics * (1.0 if wants_gradient or parameters.any() else 0.5),
        gradient_bytes=gradient,
        gradient_group=group,
        gradient_time=bucketed,
        gradient_alone=alone,
        gradient_link=link,
        numbers=numbers,
        weights=parameters * training.weight_size
        + (numbers - parameters) * training.frozen_size
        + numbers * weight_copies(layer, training),
        gradients=parameters * training.gradient_size,
        state=parameters * training.state_size,
        output=output,
        scattered=output / candidates.group(layer.reduced_dims).prod(axis=1),
        saved=saved_bytes(layer, training) * saved_part
        + inputs / size * layer.copy_size
        + halos.joined_forward * keeps,
        workspace=workspace,
        communication_bytes=sum(reductions.num_bytes, halos.num_bytes),
        sources=computation.sources,
    )
