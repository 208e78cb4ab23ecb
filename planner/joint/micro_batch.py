"""What a micro-batch of a replica costs, layer by layer."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.joint.choices import Choice

Floats = NDArray[np.float64]


class MicroBatch(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One micro-batch of a replica on the devices of tensor, context and expert parallelism.

    Rows are the layers of the whole network in the order of the forward pass.

    Parameters
    ----------
    forward, backward
        Computation, and communication of activations; recomputation is part of backward. [s]
    computed, forward_computed
        Computation of both, and of the forward pass. [s]
    launched, launched_forward
        What the host takes to launch both, and the forward pass, ahead of the device. [s]
    least, least_forward
        What no device spends less on both, or on the forward pass, whatever it does beside them: of
        layers, or of whole blocks at their first layer. [s]
    gaps
        What a device waits at least for communication between the first and the last computation of
        a block, in the forward and in the backward pass, where one stage has all blocks and nothing
        is computed again. [s]
    apart, awaited, least_before
        Backward passes of weights, as far as a schedule can run them by themselves; what they
        wait for otherwise, of blocks at their first layer; and as `least` without them. [s]
    balance
        What stages are balanced by where they are not made of blocks: computation of both, without
        recomputation. [s]
    kept, waiting
        What waits for the backward pass, and for that of weights where it runs later. [B]
    parameters, numbers, weights, gradients, state, update
        Of the local blocks of weights: those trained, all, sizes, and time to update them; 0 for
        layers that share the weight of another one. [items], [B], [s]
    output, sent, left
        Size of the output of every layer, what of it a device sends to another stage, and what
        blocks that are computed again keep of it. [B]
    beside
        What passes of each layer hold beside what layers before it keep. [B]
    cuts
        Ways that weights are cut at each level of the cluster, without repetition. [ways]
    cut_of
        Which of them the weight of a layer is cut by.
    full
        Whether a bucket of gradients is full with that of a layer.
    weighs
        A number that all micro-batches have of which all of these of weights are the same.
    features
        Groups of ranks that exchange features, by their members at each level of the cluster.
    """

    forward: Floats
    backward: Floats
    computed: Floats
    forward_computed: Floats
    launched: Floats
    launched_forward: Floats
    least: Floats
    least_forward: Floats
    gaps: tuple[float, float]
    apart: Floats
    awaited: Floats
    least_before: Floats
    balance: Floats
    kept: Floats
    waiting: Floats
    parameters: Floats
    numbers: Floats
    weights: Floats
    gradients: Floats
    state: Floats
    update: Floats
    output: Floats
    sent: Floats
    left: Floats
    beside: Floats
    cuts: tuple[tuple[int, ...], ...]
    cut_of: NDArray[np.int64]
    full: NDArray[np.bool_]
    weighs: int
    features: frozenset[tuple[int, ...]]

    def least_spent(self, *, filled: bool) -> Floats:
        """What no device spends less on both passes of each layer. [s]

        Parameters
        ----------
        filled
            Whether passes of weights fill bubbles: between the two a device may do something else.
        """
        return self.least_before + self.apart if filled else self.least

    def total_spent(self, *, filled: bool) -> float:
        """The same of all layers. [s]

        Parameters
        ----------
        filled
            As of `least_spent`.
        """
        return self.total_least_apart if filled else self.total_least

    def standing(self, choice: Choice, ranks: Floats) -> Floats:
        """What stays of each layer: weights, gradients and optimizer state. [B]

        Parameters
        ----------
        choice
            What is cut over replicas, and what waits in the memory of the hosts.
        ranks
            Those that share the weight of each layer among each other. [items]
        """
        found: Floats = self.gradients / (ranks if choice.zero > 1 else 1.0)
        if "weights" not in choice.offload:
            found = found + self.weights / (ranks if choice.zero > 2 else 1.0)
        if "optimizer" not in choice.offload:
            found = found + self.state / (ranks if choice.zero > 0 else 1.0)
        return found

    @cached_property
    def held_before(self) -> Floats:
        """What the layers before each one, and all of them in the end, keep for backward. [B]"""
        return np.concatenate(([0.0], np.cumsum(self.kept)))

    @cached_property
    def passing(self) -> float:
        """What a pass over the network holds on top of what it keeps for backward. [B]"""
        most = float((self.held_before[:-1] + self.beside).max(initial=0.0))
        return max(most - self.total_kept, 0.0)

    @cached_property
    def total(self) -> float:
        """Both passes of all layers. [s]"""
        return float(self.forward.sum() + self.backward.sum())

    @cached_property
    def total_apart(self) -> float:
        """Backward passes of weights. [s]"""
        return float(self.apart.sum())

    @cached_property
    def total_awaited(self) -> float:
        """What these wait for where no schedule runs them by themselves. [s]"""
        return float(self.awaited.sum())

    @cached_property
    def total_computed(self) -> float:
        """Computation of all layers. [s]"""
        return float(self.computed.sum())

    @cached_property
    def total_least(self) -> float:
        """What all layers take at least. [s]"""
        return float(self.least.sum())

    @cached_property
    def total_least_apart(self) -> float:
        """What all layers take at least where backward passes of weights run by themselves. [s]"""
        return float((self.least_before + self.apart).sum())

    @cached_property
    def total_least_forward(self) -> float:
        """What their forward passes take of that. [s]"""
        return float(self.least_forward.sum())

    @cached_property
    def total_kept(self) -> float:
        """What all layers keep. [B]"""
        return float(self.kept.sum())

    @cached_property
    def passes(self) -> Floats:
        """What both passes take and leave, in rows, however they are cut into stages."""
        times = (self.forward, self.backward, self.computed, self.launched, self.launched_forward)
        return np.stack([*times, self.kept, self.apart, self.awaited, self.waiting])

    @cached_property
    def held(self) -> Floats:
        """What there is of weights, in rows by how they are cut."""
        masks = [self.cut_of == number for number in range(len(self.cuts))]
        sizes = (self.parameters, self.weights, self.gradients, self.state, self.update, self.full)
        return np.stack([values * mask for values in sizes for mask in masks])
