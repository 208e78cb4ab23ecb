"""What one micro-batch costs inside of a stage, layer by layer, for each way to split the layers.

The simulation's own operations are summed, of the distinct blocks of the network alone. Data
parallelism and the number of stages change nothing of that: a replica works on its samples. Nor
does recomputation, which runs forward passes again and keeps less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.topology import Topology
from costmodels.graph import Graph
from costmodels.simulation import Behaviour, Compiler, Job, Queue, Runtime, run_graph
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.pieces import Piece, Pieces
from costmodels.simulation.schedules import BACKWARD, FORWARD
from costmodels.strategy import Strategy
from planner.joint.reduced import Reduced
from planner.request.by_degrees import strategy_by_degrees
from planner.request.parts import Degrees
from planner.request.setting import Setting, training_graph

Floats = NDArray[np.float64]
# What lives from the forward pass to the backward pass.
_ACTIVATIONS = "activations"
# What stays throughout the step, by holder.
_STANDING = ("weights", "weight gradients", "optimizer state", "communication buffers", "reserved")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One micro-batch of a replica on the devices of tensor, context and expert parallelism.

    Rows are the layers of the whole network in the order of the forward pass.

    Parameters
    ----------
    forward, backward
        Computation, and communication of activations; recomputation is part of backward. [s]
    kept
        What waits for the backward pass. [B]
    parameters, weights, gradients, state, update
        Of the local blocks of weights: numbers, sizes, and time to update them; 0 for layers that
        share the weight of another one. [items], [B], [s]
    output
        Size of the output of every layer, as it is sent to another stage. [B]
    passing
        What a pass over the network holds on top of all that. [B]
    """

    forward: Floats
    backward: Floats
    kept: Floats
    parameters: Floats
    weights: Floats
    gradients: Floats
    state: Floats
    update: Floats
    output: Floats
    passing: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Again:
    """What is computed again, layer by layer.

    Parameters
    ----------
    computed
        Whether the forward pass of a layer runs again.
    kept
        What waits for the backward pass even so. [B]
    passing
        What the recomputation of a block holds at most. [B]
    """

    computed: NDArray[np.bool_]
    kept: Floats
    passing: float


class Insides:
    """What micro-batches cost under the degrees of parallelism that were asked for.

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which the step is simulated.
    """

    def __init__(self, setting: Setting, runtime: Runtime) -> None:
        self.setting, self.runtime = setting, runtime
        self.reduced = Reduced.of(setting.model)
        self.known: dict[tuple[Degrees, int], MicroBatch] = {}
        self.pieces: dict[tuple[int, int], tuple[Graph, dict[tuple[int, ...], Pieces]]] = {}
        self.layers = [layer.name for layer in setting.graph.compute_layers]

    def of(self, degrees: Degrees, samples: int) -> MicroBatch:
        """What a micro-batch costs.

        Parameters
        ----------
        degrees
            Of tensor, context and expert parallelism; with what is computed again.
        samples
            Of a replica in a micro-batch. [samples]

        Raises
        ------
        InputError
            When the degrees do not fit the network.
        """
        key = (degrees, samples)
        if key not in self.known:
            self._cost(replace(degrees, recompute="none"), samples)
        return self.known[key]

    def _cost(self, degrees: Degrees, samples: int) -> None:
        """Cost a micro-batch, whatever is computed again."""
        setting = self.setting
        # experts lie on ranks of other samples
        dp = max(degrees.ep // degrees.cp, 1)
        gpus, batch = degrees.tp * degrees.cp * dp, samples * dp
        network = self.reduced.network
        if (gpus, batch) not in self.pieces:
            graph = training_graph(network, batch, setting.machine.training)
            self.pieces[gpus, batch] = (graph, {})
        graph, known = self.pieces[gpus, batch]
        topology = Topology.of(setting.cluster, setting.cluster.shape(gpus))
        machine = replace(setting.machine, topology=topology)
        small = replace(
            setting, model=network, graph=graph, machine=machine, batch=batch, gpus=gpus
        )
        strategy, _, _ = strategy_by_degrees(small, replace(degrees, dp=dp))
        whole = self._measured(small, strategy, known)
        again = {
            "none": _Again(
                computed=np.zeros(len(self.layers), dtype=bool), kept=whole.kept, passing=0.0
            ),
            "selective": self._selective(small.graph, whole),
            "full": self._full(small.graph, whole),
        }
        for what, rows in again.items():
            self.known[replace(degrees, recompute=what), samples] = replace(
                whole,
                backward=whole.backward + whole.forward * rows.computed,
                kept=rows.kept,
                passing=whole.passing + rows.passing,
            )

    def _measured(
        self, small: Setting, strategy: Strategy, known: dict[tuple[int, ...], Pieces]
    ) -> MicroBatch:
        """Sums of the operations of a step of one micro-batch.

        Parameters
        ----------
        small, strategy
            The distinct blocks on the devices of one replica, and their strategy.
        known
            Costs of their layers.
        """
        job = Job(
            graph=small.graph,
            strategy=strategy,
            cluster=small.cluster,
            shape=small.machine.topology.shape,
            compute=small.machine.compute,
            training=small.machine.training,
            runtime=self.runtime,
        )
        compiler = Compiler(job, known)
        phases, pieces = compiler.programs[0].phases, compiler.view.pieces
        seconds: dict[str, dict[str, float]] = {FORWARD: {}, BACKWARD: {}}
        for phase, found in seconds.items():
            for operation in phases[phase]:
                if operation.queue in (Queue.COMPUTE, Queue.FEATURE):
                    name = _layer(operation.name, pieces)
                    taken = operation.seconds + operation.transfer
                    found[name] = found.get(name, 0.0) + taken
        made = {
            tensor: size
            for operation in phases[FORWARD]
            for tensor, holder, size in operation.makes
            if holder == _ACTIVATIONS
        }
        kept: dict[str, float] = {}
        for operation in phases[BACKWARD]:
            for tensor in (*operation.takes, *operation.uses):
                kept[tensor[1]] = kept.get(tensor[1], 0.0) + made.pop(tensor, 0.0)
        step = run_graph(compiler.compile(1), Behaviour(overlap_factor=0.0))
        memory = step.peak.memory
        standing = sum(memory.holders.get(name, 0.0) for name in _STANDING)
        return MicroBatch(
            forward=self._rows(seconds[FORWARD]),
            backward=self._rows(seconds[BACKWARD]),
            kept=self._rows(kept),
            **{
                what: self._of_pieces(pieces, what)
                for what in ("parameters", "weights", "gradients", "state", "update", "output")
            },
            passing=max(memory.total - standing - sum(kept.values()), 0.0),
        )

    def _rows(self, values: Mapping[str, float]) -> Floats:
        """Values of distinct layers for all layers of the network."""
        like = self.reduced.like
        return np.array([values.get(like[name], 0.0) for name in self.layers])

    def _of_pieces(self, pieces: Mapping[str, Piece], what: str) -> Floats:
        return self._rows({name: getattr(piece, what) for name, piece in pieces.items()})

    def _selective(self, graph: Graph, whole: MicroBatch) -> _Again:
        """Attention is computed again; what the next layer reads of it stays."""
        like = self.reduced.like
        attends = np.array([graph.layers[like[n]].kind == "attention" for n in self.layers])
        kept = np.where(attends, np.minimum(whole.kept, whole.output), whole.kept)
        most = float((whole.kept - kept).max(initial=0.0))
        return _Again(computed=attends, kept=kept, passing=most)

    def _full(self, graph: Graph, whole: MicroBatch) -> _Again:
        """Blocks are computed again from what they read of others."""
        units: dict[str, list[int]] = {}
        for place, name in enumerate(self.layers):
            units.setdefault(unit_of(name), []).append(place)
        computed = np.zeros(len(self.layers), dtype=bool)
        kept = whole.kept.copy()
        most = 0.0
        like = self.reduced.like
        for places in units.values():
            if len(places) < 2:
                continue
            computed[places] = True
            for place in places:
                readers = graph.consumers[like[self.layers[place]]]
                home = unit_of(like[self.layers[place]])
                if all(unit_of(edge.target) == home for edge in readers):
                    kept[place] = 0.0
                else:
                    kept[place] = whole.output[place]
            most = max(most, float(whole.kept[places].sum() - kept[places].sum()))
        return _Again(computed=computed, kept=kept, passing=most)


def _layer(name: str, known: Mapping[str, object]) -> str:
    """The layer that an operation belongs to: changes of layout are named after their maker."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name
