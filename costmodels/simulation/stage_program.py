"""What a stage does with one micro-batch: its forward pass, its backward pass, and in between.

An operation reads tensors that others make; what reads a tensor last frees it. A layer that is
recomputed makes its output twice: once for the layers that read it forward, and again, right before
the backward pass of its segment, for the backward passes of that segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodels.communication.patterns import NOTHING, Pattern
from costmodels.graph import Edge, Graph, Layer
from costmodels.simulation.execution import Queue
from costmodels.simulation.layouts import Change, Changes
from costmodels.simulation.messages import NO_MESSAGE, Wires
from costmodels.simulation.operations import (
    Key,
    Local,
    Made,
    Operation,
    Ref,
    free_unread,
    message_operation,
)
from costmodels.simulation.pieces import Piece
from costmodels.simulation.schedules import BACKWARD, FORWARD, WEIGHT
from costmodels.strategy import Strategy

ACTIVATIONS, GRADIENTS = "activations", "activation gradients"
_AS_IS = Change(pattern=Pattern(kind=NOTHING, group=()), message=NO_MESSAGE, num_bytes=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plant:
    """What all stages of a job know of each other.

    Parameters
    ----------
    graph
        The network at one micro-batch.
    strategy
        The strategy.
    pieces
        Of every layer.
    wires
        Links of every stage.
    stage_of
        Stage of every layer.
    activation_size
        Of one activation. [B]
    weight_apart
        Whether backward passes of weights are runs of their own.
    """

    graph: Graph
    strategy: Strategy
    pieces: Mapping[str, Piece]
    wires: tuple[Wires, ...]
    stage_of: Mapping[str, int]
    activation_size: int
    weight_apart: bool


class StageProgram:
    """Operations of one stage on one micro-batch, by phase."""

    def __init__(self, plant: Plant, number: int) -> None:
        self.plant, self.number = plant, number
        self.graph, self.pieces = plant.graph, plant.pieces
        self.stage = plant.strategy.stages[number]
        self.wires = plant.wires[number]
        self.changes = Changes(self.wires)
        inside = set(self.stage.layers)
        self.layers = [layer for layer in self.graph.compute_layers if layer.name in inside]
        self.segment = {name: i for i, names in enumerate(self.stage.recompute) for name in names}
        self.phases: dict[str, list[Operation]] = {FORWARD: [], BACKWARD: [], WEIGHT: []}
        self.weight_ready: dict[str, Ref] = {}
        self.gradient_from: dict[str, list[Ref]] = {}
        self.moved: dict[tuple[str, str, bytes], tuple[Key, Local | None]] = {}
        for layer in self.layers:
            self._forward(layer, FORWARD)
            self._send(layer)
        self._all_backward()
        free_unread(self.phases.values())

    # forward

    def _again(self, reader: str, source: str) -> bool:
        """Whether a backward pass reads what is computed again."""
        return reader in self.segment and self.segment.get(source) == self.segment[reader]

    def _out(self, name: str, again: bool) -> Local:
        return ("again" if again else "out", name, 0)

    def _edge_change(self, edge: Edge) -> Change:
        """Communication of an activation between its maker and a reader in this stage."""
        piece = self.pieces[edge.target]
        maker = self.pieces.get(edge.source)
        if maker is None:
            return _AS_IS
        source = maker.writes
        if self.plant.stage_of[edge.source] != self.number:
            if maker.writes.degrees.shape != piece.writes.degrees.shape or self._shape_of(edge):
                return _AS_IS  # sent in the blocks that are read
            source = replace(source, partial=np.ones_like(source.partial))
        whole = self.graph.layers[edge.target].inputs[edge.slot].size * self.plant.activation_size
        return self.changes.between(
            source, piece.reads[edge.slot], maker.output, piece.inputs[edge.slot], float(whole)
        )

    def _shape_of(self, edge: Edge) -> bool:
        """Whether the maker's stage has other numbers of devices than the reader's."""
        stages, stage_of = self.plant.strategy.stages, self.plant.stage_of
        source, target = stages[stage_of[edge.source]], stages[stage_of[edge.target]]
        return tuple(source.shape) != tuple(target.shape)

    def _forward(self, layer: Layer, phase: str) -> None:
        """Forward pass of a layer, in its phase or, computed again, in the backward phase."""
        name, again = layer.name, phase == BACKWARD
        piece = self.pieces[name]
        after: list[Ref] = []
        makes: list[Made] = []
        uses: list[Local] = []
        takes: list[Local] = []
        for edge in self.graph.producers[name]:
            ready, read, made = self._arrival(edge, again)
            after += ready
            makes += made
            if read[0] in ("out", "again") and self._overwrites(layer, edge, again):
                takes.append(read)
            else:
                uses.append(read)
        if again:
            after += self._wakes(name)
        makes.append((self._out(name, again), ACTIVATIONS, piece.output))
        if piece.saved:
            makes.append((("saved again" if again else "saved", name, 0), ACTIVATIONS, piece.saved))
        kind = "recompute" if again else "forward"
        base = Operation(
            key=(kind, name, 0),
            kind=kind,
            queue=Queue.COMPUTE,
            after=tuple(dict.fromkeys(after)),
            seconds=piece.forward,
            makes=tuple(makes),
            takes=tuple(takes),
            uses=tuple(dict.fromkeys(uses)),
            scratch=piece.workspace,
            buffer=piece.buffer,
        )
        self._with_halo(base, piece, phase)
        self._statistics(base, piece, phase)

    def _with_halo(self, base: Operation, piece: Piece, phase: str) -> None:
        """A pass, cut into interior and boundary where it waits for a halo."""
        operations = self.phases[phase]
        exchanged = piece.halo_backward if base.kind == "backward" else piece.halo_forward
        if exchanged is None:
            operations.append(base)
            return
        halo, fixed = exchanged
        name, kind = base.name, base.kind
        exchange: Key = (f"{kind} halo", name, 0)
        wait: Ref = (self.number, phase, exchange)
        operations.append(
            message_operation(
                exchange,
                "halo exchange",
                self.wires.moved(float(halo.exchange[0]), fixed),
                base.after,
                num_bytes=piece.buffer / 2,
            )
        )
        if not halo.cut[0]:
            operations.append(base._replace(after=(*base.after, wait)))
            return
        interior: Key = (f"{kind} interior", name, 0)
        operations.append(base._replace(key=interior, seconds=float(halo.interior[0]), uses=()))
        operations.append(
            base._replace(
                seconds=float(halo.boundary[0]),
                after=((self.number, phase, interior), wait),
                makes=(),
                takes=(),
            )
        )

    def _statistics(self, base: Operation, piece: Piece, phase: str) -> None:
        message = self.wires.collective(
            "all_reduce", piece.statistics_group, piece.statistics_bytes
        )
        size = math.prod(piece.statistics_group)
        if message.time > 0.0:
            self.phases[phase].append(
                message_operation(
                    (f"{base.kind} statistics", base.name, 0),
                    "all_reduce",
                    message,
                    [(self.number, phase, base.key)],
                    num_bytes=2.0 * piece.statistics_bytes * (1.0 - 1.0 / size),
                )
            )

    def _done(self, name: str, kind: str, phase: str) -> Ref:
        """The operation after which a pass of a layer is through."""
        piece = self.pieces[name]
        sums = piece.statistics_bytes > 0.0 and any(n > 1 for n in piece.statistics_group)
        return self.number, phase, (f"{kind} statistics" if sums else kind, name, 0)

    def _arrival(self, edge: Edge, again: bool) -> tuple[list[Ref], Local, list[Made]]:
        """After what an input is there, which tensor it is, and what its reader must make."""
        piece = self.pieces[edge.target]
        if edge.source not in self.pieces:
            data: Local = ("data", edge.source, 0)
            return [], data, [(data, ACTIVATIONS, piece.inputs[edge.slot])]
        change = self._edge_change(edge)
        redone = again and self._again(edge.target, edge.source)
        phase = BACKWARD if redone else FORWARD
        source = self._out(edge.source, redone)
        made: list[Made] = []
        if self.plant.stage_of[edge.source] == self.number:
            ready = self._done(edge.source, "recompute" if redone else "forward", phase)
        else:
            ready = (
                self.plant.stage_of[edge.source],
                FORWARD,
                ("send", edge.source, self.number),
            )
            made = [(source, ACTIVATIONS, piece.inputs[edge.slot])]
        if change.message.time <= 0.0:
            return [ready], source, made
        # readers in the same layout share what was moved for the first of them
        layout = piece.codes_read[edge.slot] if change.copies else b""
        mark = (f"{source[0]}", edge.source, layout)
        if mark not in self.moved:
            number = len(self.moved)
            key: Key = ("change again" if redone else "change", edge.source, number)
            copy: Local | None = None
            if change.copies:
                copy = ("copy again" if redone else "copy", edge.source, number)
            self.moved[mark] = (key, copy)
            self.phases[phase].append(
                message_operation(
                    key,
                    change.pattern.kind,
                    change.message,
                    [ready],
                    num_bytes=change.num_bytes,
                    makes=(
                        *made,
                        *([(copy, ACTIVATIONS, piece.inputs[edge.slot])] if copy else []),
                    ),
                    uses=(source,) if copy else (),
                )
            )
        key, copy = self.moved[mark]
        return [(self.number, phase, key)], copy or source, []

    def _overwrites(self, layer: Layer, edge: Edge, again: bool) -> bool:
        """Whether a layer that works in place may take over its input: nobody reads it later."""
        name = edge.source
        if not layer.in_place or edge.slot != 0 or self.plant.stage_of[name] != self.number:
            return False
        if again and not self._again(layer.name, name):
            return False
        if self._edge_change(edge).copies:
            return False
        others = self.graph.consumers[name]
        if any(self.plant.stage_of[e.target] != self.number for e in others):
            return False
        if others[-1] != edge:
            return False
        return not self._read_backward(name, again)

    def _read_backward(self, name: str, again: bool) -> bool:
        """Whether an output (computed again or not) is read after the forward pass."""
        if self.graph.layers[name].keeps_output and (name in self.segment) == again:
            return True
        for edge in self.graph.consumers[name]:
            redone = self._again(edge.target, name)
            if redone != again:
                continue
            if edge.target in self.segment and not redone:
                return True  # the reader's segment starts from it
            if self.graph.layers[edge.target].keeps_inputs and not self._edge_change(edge).copies:
                return True
        return False

    def _send(self, layer: Layer) -> None:
        """Send an output to the stages that read it."""
        name, piece = layer.name, self.pieces[layer.name]
        readers = {self.plant.stage_of[e.target] for e in self.graph.consumers[name]}
        for other in sorted(readers - {self.number}):
            after = [self._done(name, "forward", FORWARD)]
            uses = (self._out(name, False),)
            whole = replace(piece.writes, partial=np.ones_like(piece.writes.partial))
            total = layer.output.size * self.plant.activation_size
            reduced = self.changes.between(
                piece.writes, whole, piece.output, piece.output, float(total)
            )
            mark = ("out", name, b"")
            if reduced.message.time > 0.0 and mark not in self.moved:
                key: Key = ("change", name, len(self.moved))
                self.moved[mark] = (key, None)
                self.phases[FORWARD].append(
                    message_operation(
                        key,
                        reduced.pattern.kind,
                        reduced.message,
                        after,
                        num_bytes=reduced.num_bytes,
                    )
                )
            if reduced.message.time > 0.0:
                after = [(self.number, FORWARD, self.moved[mark][0])]
            size = self._crossing(name, other)
            self.phases[FORWARD].append(
                message_operation(
                    ("send", name, other),
                    "send_recv",
                    self.wires.to_stage(self.plant.wires[other], size),
                    after,
                    num_bytes=size,
                    uses=uses,
                )
            )

    def _crossing(self, name: str, reader: int) -> float:
        """What a device sends of an output to another stage, or gets back as its gradient. [B]"""
        readers = [e for e in self.graph.consumers[name] if self.plant.stage_of[e.target] == reader]
        return max(
            self.pieces[name].output,
            *(self.pieces[e.target].inputs[e.slot] for e in readers if self._shape_of(e)),
            0.0,
        )

    # backward

    def _wakes(self, name: str) -> Iterator[Ref]:
        """Gradients from outside a segment, for which its recomputation waits."""
        segment = self.segment[name]
        if name != self.stage.recompute[segment][0]:
            return
        for member in self.stage.recompute[segment]:
            yield from self.gradient_from.get(member, ())

    def _all_backward(self) -> None:
        begun: set[int] = set()
        order = {layer.name: layer for layer in self.layers}
        for layer in self.layers:
            for edge in self.graph.consumers[layer.name]:
                other = self.plant.stage_of[edge.target]
                if other != self.number:
                    ref = (other, BACKWARD, ("send gradient", layer.name, self.number))
                    refs = self.gradient_from.setdefault(layer.name, [])
                    if ref not in refs:
                        refs.append(ref)
        for layer in reversed(self.layers):
            segment = self.segment.get(layer.name)
            if segment is not None and segment not in begun:
                begun.add(segment)
                for name in self.stage.recompute[segment]:
                    self._forward(order[name], BACKWARD)
            self._backward(layer)
        self._send_gradients()

    def _kept(self, layer: Layer) -> tuple[Local, ...]:
        """What the backward pass of a layer reads of the forward pass."""
        name = layer.name
        kept: list[Local] = []
        redone = name in self.segment
        if layer.keeps_inputs:
            for edge in self.graph.producers[name]:
                if edge.source not in self.pieces:
                    kept.append(("data", edge.source, 0))
                    continue
                again = self._again(name, edge.source)
                source = self._out(edge.source, again)
                change = self._edge_change(edge)
                if change.copies:
                    mark = (source[0], edge.source, self.pieces[name].codes_read[edge.slot])
                    copy = self.moved[mark][1]
                    assert copy is not None, "a change that copies makes a copy"
                    source = copy
                kept.append(source)
        if layer.keeps_output:
            kept.append(self._out(name, redone))
        if self.pieces[name].saved:
            kept.append(("saved again" if redone else "saved", name, 0))
        return tuple(dict.fromkeys(kept))

    def _backward(self, layer: Layer) -> None:
        name, piece = layer.name, self.pieces[layer.name]
        after = list(dict.fromkeys(self.gradient_from.get(name, ())))
        if not self.graph.consumers[name]:
            # the backward pass starts where the forward pass ends
            after.append(self._done(name, "forward", FORWARD))
        own: Local = ("grad", name, 0)
        makes: list[Made] = [(own, GRADIENTS, piece.output)]
        for edge in self.graph.producers[name]:
            if self.graph.needs_input_gradient(edge):
                maker = self.pieces[edge.source]
                size = max(piece.inputs[edge.slot], maker.output)
                makes.append((("grad", edge.source, 0), GRADIENTS, size))
        uses = (*self._kept(layer), own)
        base = Operation(
            key=("backward", name, 0),
            kind="backward",
            queue=Queue.COMPUTE,
            after=tuple(after),
            seconds=piece.backward,
            makes=tuple(makes),
            uses=uses,
            scratch=piece.workspace,
            buffer=piece.buffer,
        )
        self._weights(base, piece)
        self._statistics(base, piece, BACKWARD)
        for edge in self.graph.producers[name]:
            if self.graph.needs_input_gradient(edge):
                self._gradient(edge, self._done(name, "backward", BACKWARD))

    def _weights(self, base: Operation, piece: Piece) -> None:
        """The backward pass, in one or with that of the weight apart."""
        name = base.name
        # attention has a second backward product, but no weight
        weighted = self.graph.layers[name].parameters > 0 and piece.backward_weight > 0.0
        apart = self.plant.weight_apart and weighted
        split = apart or (piece.halo_backward is not None and piece.backward_weight > 0.0)
        if not split:
            self._with_halo(base, piece, BACKWARD)
            self.weight_ready[name] = (self.number, BACKWARD, base.key)
            return
        phase = WEIGHT if apart else BACKWARD
        weight = base._replace(
            key=("backward of weight", name, 0),
            kind="backward of weight",
            seconds=piece.backward_weight,
            makes=base.makes[:1],
            buffer=0.0,
        )
        data = base._replace(seconds=piece.backward_data)
        if apart:
            self._with_halo(data, piece, BACKWARD)
            weight = weight._replace(after=((self.number, BACKWARD, base.key),), makes=())
            self.phases[WEIGHT].append(weight)
        else:
            # work that needs no halo comes first, beside the exchange
            self.phases[BACKWARD].append(weight)
            self._with_halo(data, piece, BACKWARD)
        self.weight_ready[name] = (self.number, phase, weight.key)

    def _gradient(self, edge: Edge, ready: Ref) -> None:
        """Take the gradient of an input to the layout of its maker, and to its stage."""
        piece, maker = self.pieces[edge.target], self.pieces[edge.source]
        writes = replace(maker.writes, partial=np.ones_like(maker.writes.partial))
        reads = piece.reads[edge.slot]
        if self._shape_of(edge):
            writes = replace(reads, partial=np.ones_like(reads.partial))
        whole = self.graph.layers[edge.target].inputs[edge.slot].size * self.plant.activation_size
        change = self.changes.between(
            reads, writes, piece.inputs[edge.slot], maker.output, float(whole)
        )
        if change.message.time > 0.0:
            key: Key = ("change gradient", f"{edge.source}", edge.slot + 1000 * self._index(edge))
            self.phases[BACKWARD].append(
                message_operation(
                    key,
                    change.pattern.kind,
                    change.message,
                    [ready],
                    num_bytes=change.num_bytes,
                )
            )
            ready = (self.number, BACKWARD, key)
        self.gradient_from.setdefault(edge.source, []).append(ready)

    def _index(self, edge: Edge) -> int:
        return self.graph.consumers[edge.source].index(edge)

    def _send_gradients(self) -> None:
        """Send the gradients of inputs that other stages made back to them."""
        inside = {layer.name for layer in self.layers}
        for name in [n for n in self.gradient_from if n not in inside]:
            other = self.plant.stage_of[name]
            size = self._crossing(name, self.number)
            self.phases[BACKWARD].append(
                message_operation(
                    ("send gradient", name, other),
                    "send_recv",
                    self.wires.to_stage(self.plant.wires[other], size),
                    self.gradient_from[name],
                    num_bytes=size,
                    uses=(("grad", name, 0),),
                )
            )
