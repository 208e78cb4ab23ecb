"""What one micro-batch costs inside of a stage, layer by layer, for each way to split the layers.

The simulation's own operations are summed, of the distinct blocks of the network alone. Data
parallelism and the number of stages change nothing of that: a replica works on its samples. Nor
does recomputation, which runs forward passes again and keeps less.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.simulation import Compiler, Job, Queue, Runtime
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.pieces import Piece
from costmodels.simulation.schedules import BACKWARD, FORWARD
from costmodels.simulation.segments import blocks_of_layers, several_layers
from costmodels.simulation.sends import sharing_ranks
from costmodels.simulation.tensors import ACTIVATIONS, JobView
from costmodels.strategy.blocks import is_transformer
from planner.joint.again import Again, Recomputation, units_of
from planner.joint.choices import Choice
from planner.joint.micro_batch import MicroBatch
from planner.joint.operations import (
    beside_each_other,
    full_buckets,
    held_beside,
    held_for_weights,
    launched_of_layers,
    read_by_others,
    seconds_of_layers,
    spans_of_units,
    without_weights,
)
from planner.joint.reduced import Reduced
from planner.joint.split_networks import SplitNetwork, SplitNetworks
from planner.joint.units import Units
from planner.request.parts import Degrees
from planner.request.setting import Setting

Floats = NDArray[np.float64]
# What a layer has of weights, and what updating them takes.
WEIGHED = ("parameters", "numbers", "weights", "gradients", "state", "update")


class Insides:
    """What micro-batches cost under the degrees of parallelism that were asked for.

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which the step is simulated.
    cuts_weights
        Whether weights are cut over replicas.
    """

    def __init__(self, setting: Setting, runtime: Runtime, *, cuts_weights: bool = False) -> None:
        # how long the host takes depends on all that a stage does, see `MicroBatch.launched`
        self.setting, self.runtime = setting, replace(runtime, runs_ahead=False)
        self.runs_ahead = setting.machine.training.runs_ahead
        zero = 3 if cuts_weights else 0
        self.zero = None if runtime.usual_zero == zero else zero
        self.reduced = Reduced.of(setting.model, setting.graph)
        self.splits = SplitNetworks(setting, self.reduced, self.zero)
        self.known: dict[tuple[Degrees, int], MicroBatch] = {}
        self.layers = [layer.name for layer in setting.graph.compute_layers]
        # the distinct layers, and which of them each layer is like
        self.distinct = list(dict.fromkeys(self.reduced.like[name] for name in self.layers))
        place_of = {name: number for number, name in enumerate(self.distinct)}
        self.like = np.array([place_of[self.reduced.like[name]] for name in self.layers])
        # what there is of weights, each with a number
        self.weighed: dict[tuple[object, ...], int] = {}
        self.recomputation: Recomputation | None = None
        self.units = list(units_of(self.layers).values())
        self.sums = Units(self.units)
        # of each layer, a number for its unit
        self.unit_of_layer = np.unique([*map(unit_of, self.layers)], return_inverse=True)[1]
        place = {name: number for number, name in enumerate(self.layers)}
        self.block_of = blocks_of_layers(setting.graph)
        several = several_layers(self.block_of)
        self.blocks = [[place[name] for name in names] for names in several.values()]
        self.sums_of_blocks = Units(self.blocks)
        # whether no two units are under way between the same computations
        self.in_turn = all(
            places == list(range(places[0], places[-1] + 1)) for places in self.units
        )
        # stages of a transformer are made of whole blocks
        self.by_blocks = is_transformer(setting.graph) and self.in_turn

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
            self._cost(dataclasses.replace(degrees, recompute="none"), samples)
        return self.known[key]

    def partly(self, choice: Choice, starts: Sequence[int]) -> MicroBatch:
        """What a micro-batch costs of which the first blocks of each stage are computed again.

        Parameters
        ----------
        choice
            Says how many.
        starts
            The first layer of each stage.
        """
        whole = self.of(choice.inside, choice.samples)
        kept = self.of(choice.split, choice.samples)
        again = np.zeros(len(self.layers), dtype=bool)
        seen: dict[int, int] = {}
        for places in self.blocks:
            stage = bisect_right(starts, places[0])
            seen[stage] = seen.get(stage, 0) + 1
            again[places] = seen[stage] <= choice.again
        mixed = {
            name: np.where(again, getattr(whole, name), getattr(kept, name))
            for name in (
                *("backward", "computed", "launched", "least", "least_before", "kept", "beside"),
            )
        }
        return replace(kept, **mixed)

    def most_again(self, starts: Sequence[int]) -> int:
        """Blocks of the stage that has the most of those that can be computed again. [items]"""
        counts = Counter(bisect_right(starts, places[0]) for places in self.blocks)
        return max(counts.values(), default=0)

    def _cost(self, degrees: Degrees, samples: int) -> None:
        """Cost a micro-batch, whatever is computed again."""
        whole = self._measured(self.splits.of(degrees, samples))
        if self.recomputation is None:
            early = self.runtime.stops_early
            self.recomputation = Recomputation(self.setting.graph, self.blocks, early)
        again = {
            "none": self.recomputation.none(whole.kept),
            "selective": self.recomputation.selective(whole.kept, whole.output),
            "full": self.recomputation.full(whole.kept, whole.left),
        }
        for what, rows in again.items():
            anew = whole.forward * rows.computed
            self.known[dataclasses.replace(degrees, recompute=what), samples] = replace(
                whole,
                backward=whole.backward + anew,
                computed=whole.computed + whole.forward_computed * rows.computed,
                launched=whole.launched + whole.launched_forward * rows.computed,
                least=self._least(whole, rows, what, whole.computed, whole.least),
                gaps=whole.gaps if what == "none" else (0.0, 0.0),
                least_before=self._least(
                    whole, rows, what, whole.computed - whole.apart, whole.least_before
                ),
                kept=rows.kept,
                beside=whole.beside + rows.beside,
            )

    def _least(
        self, whole: MicroBatch, rows: Again, what: str, computed: Floats, least: Floats
    ) -> Floats:
        """As of `MicroBatch`, with what is computed again.

        Parameters
        ----------
        whole
            The micro-batch without recomputation.
        rows, what
            What is computed again, and what that is called.
        computed, least
            Computation, and what no device spends less, without recomputation. [s]
        """
        if what == "none":
            return least
        computed = computed + whole.forward_computed * rows.computed
        if not self.by_blocks:
            return computed
        starts = [places[0] for places in self.units]
        whole_units = np.zeros(len(self.layers))
        # one pass after the other, or what is computed alone, beside all communication
        whole_units[starts] = np.add.reduceat(computed, starts)
        if what != "full":
            return np.maximum(whole_units, least)
        again = whole.least_forward * rows.computed
        # where it stops early, a chain is shorter by no more than what is left out
        again[starts] -= np.add.reduceat(whole.forward * ~rows.computed, starts)
        chain: Floats = least + again.clip(min=0.0)
        return np.maximum(whole_units, chain)

    def _measured(self, replica: SplitNetwork) -> MicroBatch:
        """Sums of the operations of a step of one micro-batch."""
        small = replica.setting
        job = Job(
            graph=small.graph,
            strategy=replica.strategy,
            cluster=small.cluster,
            shape=small.machine.topology.shape,
            compute=small.machine.compute,
            training=small.machine.training,
            runtime=self.runtime,
        )
        compiler = Compiler(job, replica.known)
        phases, pieces = compiler.programs[0].phases, compiler.view.pieces
        ways = {phase: self._added_up(phase) for phase in (FORWARD, BACKWARD)}
        seconds = {phase: add_up(phases[phase], pieces) for phase, add_up in ways.items()}
        alone = {
            phase: self._rows(seconds_of_layers(phases[phase], pieces, (Queue.COMPUTE,)))
            for phase in seconds
        }
        host = {phase: np.zeros(len(self.layers)) for phase in seconds}
        if self.runs_ahead:
            view = compiler.view
            rows = {phase: launched_of_layers(phases[phase], view) for phase in seconds}
            host = {phase: self._rows(each) for phase, each in rows.items()}
        graph = small.graph
        weighted = {
            name
            for name, piece in pieces.items()
            if graph.layers[name].parameters > 0 and piece.backward_weight > 0.0
        }
        apart = self._rows({name: pieces[name].backward_weight for name in weighted})
        spans = {phase: self._of_units(spans_of_units(phases[phase], pieces)) for phase in seconds}
        gaps = {phase: float(spans[phase].sum() - alone[phase].sum()) for phase in seconds}
        least, data, awaited = alone, alone[BACKWARD] - apart, np.zeros(len(self.layers))
        if self.by_blocks:
            others = list(without_weights(phases[BACKWARD], pieces, weighted))
            least, data = spans, self._of_units(spans_of_units(others, pieces))
            awaited = (spans[BACKWARD] - data - self.sums.at_firsts(apart)).clip(min=0.0)
        made = {
            tensor: size
            for operation in phases[FORWARD]
            for tensor, holder, size in operation.makes
            if holder == ACTIVATIONS
        }
        kept = dict.fromkeys(pieces, 0.0)
        for operation in phases[BACKWARD]:
            for tensor in (*operation.takes, *operation.uses):
                kept[tensor[1]] = kept.get(tensor[1], 0.0) + made.pop(tensor, 0.0)
        changes = compiler.programs[0].tensors.change_of.values()
        return MicroBatch(
            features=frozenset(tuple(change.pattern.group) for change in changes),
            forward=self._rows(seconds[FORWARD]),
            backward=self._rows(seconds[BACKWARD]),
            computed=alone[FORWARD] + alone[BACKWARD],
            forward_computed=alone[FORWARD],
            launched=host[FORWARD] + host[BACKWARD],
            launched_forward=host[FORWARD],
            least=least[FORWARD] + least[BACKWARD],
            least_forward=least[FORWARD],
            gaps=(max(gaps[FORWARD], 0.0), max(gaps[BACKWARD], 0.0))
            if self.in_turn
            else (0.0, 0.0),
            apart=apart,
            awaited=awaited,
            least_before=least[FORWARD] + data,
            balance=self._of_pieces(pieces, "forward") + self._of_pieces(pieces, "backward"),
            kept=self._rows(kept),
            waiting=self._rows(held_for_weights(phases, weighted)),
            output=self._of_pieces(pieces, "output"),
            left=self._rows(
                read_by_others(compiler.programs[0], self.block_of, self.runtime.stops_early)
            ),
            sent=self._sent(compiler.view),
            beside=self._rows(held_beside(compiler, kept)),
            **self._weights(small.machine.topology.shape, pieces),
        )

    def _added_up(self, phase: str) -> Callable[..., dict[str, float]]:
        """How operations of a pass add up to what its layers take."""
        free = self.runtime.weight_beside and "zero-bubble" not in self.runtime.lacks
        # a schedule that runs passes of weights by themselves has nothing beside those
        serial = not self.by_blocks or (phase == BACKWARD and free)
        return seconds_of_layers if serial else beside_each_other

    def _weights(self, shape: tuple[int, ...], pieces: Mapping[str, Piece]) -> dict[str, Any]:
        """What there is of weights, by how many ways they are cut, and in which buckets they are.

        Parameters
        ----------
        shape, pieces
            The devices of one replica, and the layers on them.
        """
        rows = {
            name: tuple(n // same for n, same in zip(shape, piece.gradient_group, strict=True))
            for name, piece in pieces.items()
        }
        # a network without weights has nothing of one
        held = [rows[name] for name, piece in pieces.items() if piece.numbers]
        found = tuple(sorted(set(held or [shape])))
        number = {cut: place for place, cut in enumerate(found)}
        like = self.reduced.like
        cut_of = np.array([number.get(rows[like[name]], -1) for name in self.layers])
        sizes = [pieces[like[name]].gradients for name in self.layers]
        rows_of: dict[str, NDArray[Any]]
        rows_of = {name: self._of_pieces(pieces, name) for name in WEIGHED}
        rows_of["cut_of"] = cut_of
        rows_of["full"] = full_buckets(sizes, cut_of.tolist(), self.runtime.bucket)
        key = (found, *(each.tobytes() for each in rows_of.values()))
        weighs = self.weighed.setdefault(key, len(self.weighed))
        return {"cuts": found, "weighs": weighs, **rows_of}

    def _rows(self, values: Mapping[str, float]) -> Floats:
        """Values of distinct layers for all layers of the network."""
        distinct = np.array([values.get(name, 0.0) for name in self.distinct])
        return distinct.take(self.like)

    def _of_units(self, values: Mapping[str, float]) -> Floats:
        """Values of distinct units, at the first layer of each unit of the network."""
        rows, like = np.zeros(len(self.layers)), self.reduced.like
        for places in self.units:
            rows[places[0]] = values.get(unit_of(like[self.layers[places[0]]]), 0.0)
        return rows

    def _sent(self, view: JobView) -> Floats:
        """What a device sends of the output of every layer to the same ranks of another stage."""
        return self._rows(
            {
                name: piece.output / math.prod(sharing_ranks(view, name, 0))
                for name, piece in view.pieces.items()
            }
        )

    def _of_pieces(self, pieces: Mapping[str, Piece], what: str) -> Floats:
        return self._rows({name: getattr(piece, what) for name, piece in pieces.items()})
