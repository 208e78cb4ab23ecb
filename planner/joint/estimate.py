"""What a step of every global choice takes and holds, in closed form: which ones to simulate first.

The pipeline is taken as Narayanan et al. 2021 do (section 2.2): the slowest group of devices works
on all micro-batches, and each group waits for the others once, in as many parts as it has chunks.
Gradients hide behind the last backward pass. A plan states what its simulation shows, not this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.collectives import (
    all_gather_time,
    all_reduce_time,
    reduce_scatter_time,
    send_recv_time,
)
from costmodels.communication.topology import Topology
from costmodels.simulation import Runtime
from costmodels.strategy.blocks import cut_stages
from costmodels.strategy.propagate import inner_first
from costmodels.strategy.usual import stage_shape
from planner.joint.choices import Choice
from planner.joint.inside import Insides, MicroBatch
from planner.request.setting import Setting
from planner.simulation.run import OVERLAP_FACTOR, waiting_time

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A global choice and what it is expected to cost.

    Parameters
    ----------
    choice
        The choice.
    seconds
        A step. [s]
    memory
        The most that a device holds. [B]
    """

    choice: Choice
    seconds: float
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stages:
    """What the stages of a pipeline cost; rows are chunks, columns groups of devices.

    Parameters
    ----------
    forward, backward
        On one micro-batch. [s]
    kept
        What a micro-batch leaves for its backward pass. [B]
    parameters, weights, gradients, state, update
        Of each group. [items], [B], [s]
    sent
        What the largest message between stages carries. [B]
    """

    forward: Floats
    backward: Floats
    kept: Floats
    parameters: Floats
    weights: Floats
    gradients: Floats
    state: Floats
    update: Floats
    sent: float


class Estimates:
    """Estimates of the choices of one question.

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which steps are simulated.
    insides
        What micro-batches cost.
    """

    def __init__(self, setting: Setting, runtime: Runtime, insides: Insides) -> None:
        self.setting, self.runtime, self.insides = setting, runtime, insides
        self.stages: dict[tuple[object, ...], _Stages] = {}
        self.cuts: dict[int, tuple[int, ...]] = {}
        self.rates: dict[tuple[object, ...], float] = {}
        self.topologies: dict[int, Topology] = {}

    def of(self, choice: Choice) -> Estimate:
        """The estimate of a choice."""
        inside = self.insides.of(choice.inside, choice.samples)
        stages = self._stages(choice, inside)
        work = stages.forward + stages.backward
        computed = choice.micro_batches * float(work.sum(axis=0).max())
        if choice.zero == 3:
            gathers = self._gathers(choice, stages)
            # what is gathered behind computation slows it down
            work = np.maximum(work + OVERLAP_FACTOR * np.minimum(work, gathers), gathers)
        groups = work.sum(axis=0)
        steady = choice.micro_batches * float(groups.max())
        waits = float(groups.sum() - groups.max()) / choice.chunks
        sends = 0.0
        if choice.pp > 1:
            sends = 2.0 * (choice.pp - 1) * choice.chunks * self._send(choice, stages.sent)
        seconds = steady + waits + sends + self._weights(choice, stages)
        seconds += waiting_time(computed, self.setting.gpus)
        return Estimate(choice=choice, seconds=seconds, memory=self._memory(choice, stages, inside))

    def _stages(self, choice: Choice, inside: MicroBatch) -> _Stages:
        parts = choice.pp * choice.chunks
        key = (choice.inside, choice.samples, parts, choice.pp)
        if key not in self.stages:
            starts = list(self._cut(parts))

            def by_stage(values: Floats) -> Floats:
                return np.add.reduceat(values, starts).reshape(choice.chunks, choice.pp)

            def by_group(values: Floats) -> Floats:
                total: Floats = by_stage(values).sum(axis=0)
                return total

            ends = [start - 1 for start in starts[1:]]
            self.stages[key] = _Stages(
                forward=by_stage(inside.forward),
                backward=by_stage(inside.backward),
                kept=by_stage(inside.kept),
                parameters=by_group(inside.parameters),
                weights=by_group(inside.weights),
                gradients=by_group(inside.gradients),
                state=by_group(inside.state),
                update=by_group(inside.update),
                sent=float(inside.output[ends].max(initial=0.0)),
            )
        return self.stages[key]

    def _cut(self, parts: int) -> tuple[int, ...]:
        """The first layer of each stage."""
        if parts not in self.cuts:
            place = {name: number for number, name in enumerate(self.insides.layers)}
            cut = cut_stages(self.setting.graph, parts, None)
            self.cuts[parts] = tuple(place[names[0]] for names in cut)
        return self.cuts[parts]

    def _topology(self, pp: int) -> Topology:
        """Links of the devices of a stage."""
        if pp not in self.topologies:
            shape = stage_shape(self.setting.machine.topology.shape, pp)
            self.topologies[pp] = Topology.of(self.setting.cluster, shape)
        return self.topologies[pp]

    def _exchange(self, choice: Choice, kind: str, num_bytes: float) -> float:
        """A collective over the ranks that hold the same weights. [s]

        Parameters
        ----------
        choice
            Says which ranks those are.
        kind
            Of the collective.
        num_bytes
            The whole of what is exchanged. [B]
        """
        ranks = choice.dp * choice.inside.cp
        if ranks == 1 or num_bytes <= 0.0:
            return 0.0
        key = (kind, choice.pp, choice.inside.tp, num_bytes)
        if key not in self.rates:
            topology = self._topology(choice.pp)
            inner = inner_first(choice.inside.tp, topology.shape)
            assert inner is not None, "tensor parallelism divides a stage"
            pairs = zip(topology.shape, inner, strict=True)
            group = np.array([size // ways for size, ways in pairs])
            if kind == "all_reduce":
                time = all_reduce_time(topology, group, num_bytes)
            elif kind == "reduce_scatter":
                time = reduce_scatter_time(topology, group, num_bytes)
            else:
                time = all_gather_time(topology, group, num_bytes / ranks)
            self.rates[key] = float(time)
        return self.rates[key]

    def _send(self, choice: Choice, num_bytes: float) -> float:
        """A message from one stage to the next. [s]"""
        key = ("send", choice.pp, num_bytes)
        if key not in self.rates:
            whole = self.setting.machine.topology
            inner = stage_shape(whole.shape, choice.pp)
            level = max(i for i, size in enumerate(inner) if size < whole.shape[i])
            self.rates[key] = float(send_recv_time(whole, level, num_bytes))
        return self.rates[key]

    def _gathers(self, choice: Choice, stages: _Stages) -> Floats:
        """Weights that are cut, gathered for both passes. [s]"""
        size = self.setting.machine.training.activation_size
        each = [
            2.0 * self._exchange(choice, "all_gather", float(number) * size / choice.chunks)
            for number in stages.parameters
        ]
        return np.broadcast_to(np.array(each), stages.forward.shape)

    def _weights(self, choice: Choice, stages: _Stages) -> float:
        """What gradients and the update add to a step. [s]"""
        training = self.setting.machine.training
        kind = "reduce_scatter" if choice.zero > 1 else "all_reduce"
        cut = choice.dp * choice.inside.cp if choice.zero else 1
        worst = 0.0
        for group in range(choice.pp):
            exchange = self._exchange(choice, kind, float(stages.gradients[group]))
            # the last gradient is ready when the backward pass ends
            behind = float(stages.backward[:, group].sum())
            each = self.runtime.each_micro_batch or choice.zero == 3
            times = choice.micro_batches if each else 1
            spent = max(times * exchange - behind * self.runtime.overlap, 0.0)
            spent += OVERLAP_FACTOR * min(times * exchange, behind) * self.runtime.overlap
            if 0 < choice.zero < 3:
                whole = float(stages.parameters[group]) * training.activation_size
                spent += self._exchange(choice, "all_gather", whole)
            worst = max(worst, spent + float(stages.update[group]) / cut)
        return worst

    def _memory(self, choice: Choice, stages: _Stages, inside: MicroBatch) -> float:
        """The most that a device holds. [B]"""
        ranks = choice.dp * choice.inside.cp
        standing = (
            stages.weights / (ranks if choice.zero > 2 else 1)
            + stages.gradients / (ranks if choice.zero > 1 else 1)
            + stages.state / (ranks if choice.zero > 0 else 1)
        )
        buffers = 2.0 * (self.runtime.bucket or 0.0)
        buffers = min(buffers, float(stages.gradients.max()))
        order = np.arange(choice.pp)
        count = choice.micro_batches
        if choice.chunks > 1:
            ahead = 2 * (choice.pp - order - 1) + (choice.chunks - 1) * choice.pp + 1
            ahead = np.minimum(ahead, count * choice.chunks)
            activations = ahead * stages.kept.mean(axis=0)
        else:
            activations = np.minimum(choice.pp - order, count) * stages.kept[0]
        reserved = self.setting.cluster.device.reserved_memory
        most = float((standing + activations).max())
        return most + inside.passing + buffers + reserved
