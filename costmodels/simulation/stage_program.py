"""What a stage does with one micro-batch: its forward pass, its backward pass, and in between.

An operation reads tensors that others make; what reads a tensor last frees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from costmodels.graph import Edge, Layer
from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import (
    Key,
    Local,
    Made,
    Operation,
    Ref,
    free_unread,
    message_operation,
)
from costmodels.simulation.passes import last_operation, pass_operations, statistics_operations
from costmodels.simulation.pieces import Piece
from costmodels.simulation.pipelining import pipeline_products
from costmodels.simulation.ring import gradient_operations, ring_operations, ring_ranks
from costmodels.simulation.schedules import BACKWARD, FORWARD, WEIGHT
from costmodels.simulation.sends import Arrivals, send_operations, sharing_ranks
from costmodels.simulation.tensors import (
    ACTIVATIONS,
    GRADIENTS,
    JobView,
    StageTensors,
    gathers_for_backward,
)

WEIGHT_GRADIENTS = "weight gradients"


class StageProgram:
    """Operations of one stage on one micro-batch, by phase."""

    def __init__(self, view: JobView, number: int) -> None:
        self.view, self.number = view, number
        self.graph, self.pieces = view.graph, view.pieces
        self.stage = view.strategy.stages[number]
        self.stage_links = view.stage_links[number]
        self.weight_links = view.weight_links[number]
        self.tensors = StageTensors(view, number)
        inside = set(self.stage.layers)
        self.layers = [layer for layer in self.graph.compute_layers if layer.name in inside]
        self.segment, self.moved = self.tensors.segment, self.tensors.moved
        self.phases: dict[str, list[Operation]] = {FORWARD: [], BACKWARD: [], WEIGHT: []}
        self.weight_ready: dict[str, Ref] = {}
        self.gradient_from: dict[str, list[Ref]] = {}
        self.fresh: list[Local] = []
        self.arrivals = Arrivals(self.tensors, self.phases)
        self.late: dict[str, float] = {}  # what a pass waits for its host at its end
        for layer in self.layers:
            self._forward(layer, FORWARD)
            done = self._done(layer.name, "forward", FORWARD)
            self.phases[FORWARD] += send_operations(self.tensors, layer, done)
        self._all_backward()
        self._drop_fresh()
        free_unread(self.phases.values())
        if view.runtime.pipelines_products:
            products = {layer.name for layer in self.layers if layer.is_dense and layer.parameters}
            for phase, operations in self.phases.items():
                self.phases[phase] = pipeline_products(operations, (number, phase), products)

    # forward

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
            if read[0] in ("out", "again") and self.tensors.overwrites(layer, edge, again):
                takes.append(read)
            else:
                uses.append(read)
        if again:
            after += self._wakes(name)
        makes += self.tensors.outputs(name, again)
        saved = self.tensors.saved(name)
        if saved:
            makes.append((("saved again" if again else "saved", name, 0), ACTIVATIONS, saved))
        kind = "recompute" if again else "forward"
        base = Operation(
            key=(kind, name, 0),
            kind=kind,
            queue=Queue.COMPUTE,
            after=tuple(dict.fromkeys(after)),
            seconds=piece.forward * (1.0 - self.tensors.stored.get(name, 0.0) * again),
            makes=tuple(makes),
            takes=tuple(takes),
            uses=tuple(dict.fromkeys(uses)),
            scratch=piece.workspace,
            buffer=piece.buffer,
        )
        self._pass(phase, base, piece)
        self._sums(phase, base, piece)

    def _pass(self, phase: str, base: Operation, piece: Piece) -> None:
        around = next(filter(self.tensors.comes_around, self.graph.producers[base.name]), None)
        if around is not None:
            change = self.tensors.change(around)
            # the keys and values at hand, and those on their way
            both = 2.0 * piece.inputs[around.slot] / math.prod(change.pattern.group)
            base = base._replace(buffer=base.buffer + both)
            self.phases[phase] += ring_operations(self.number, phase, base, change)
            return
        self.phases[phase] += pass_operations(self.number, phase, base, piece, self.stage_links)

    def _sums(self, phase: str, base: Operation, piece: Piece) -> None:
        self.phases[phase] += statistics_operations(
            self.number, phase, base, piece, self.stage_links
        )

    def _done(self, name: str, kind: str, phase: str) -> Ref:
        """The operation after which a pass of a layer is through."""
        return self.number, phase, last_operation(name, kind, self.pieces[name])

    def _arrival(self, edge: Edge, again: bool) -> tuple[list[Ref], Local, list[Made]]:
        """After what an input is there, which tensor it is, and what its reader must make."""
        piece = self.pieces[edge.target]
        if edge.source not in self.pieces:
            data: Local = ("data", edge.source, 0)
            return [], data, [(data, ACTIVATIONS, piece.inputs[edge.slot])]
        change = self.tensors.change(edge)
        redone = again and self.tensors.again(edge.target, edge.source)
        phase = BACKWARD if redone else FORWARD
        source = self.tensors.out(edge.source, redone)
        made: list[Made] = []
        if self.view.stage_of[edge.source] == self.number:
            ready = self._done(edge.source, "recompute" if redone else "forward", phase)
        else:
            ready = self.arrivals.output(edge.source)
            made = [(source, ACTIVATIONS, piece.inputs[edge.slot])]
        if change.message.time <= 0.0 or self.tensors.comes_around(edge):
            return [ready], source, made
        # readers in the same layout share what was moved for the first of them
        layout = piece.codes_read[edge.slot] if change.copies else b""
        mark = self.tensors.mark(edge, layout, redone=redone)
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
                    self.tensors.called(edge, change),
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

    # backward

    def _wakes(self, name: str) -> Iterator[Ref]:
        """Gradients from outside a segment, for which its recomputation waits."""
        members = self.stage.recompute[self.segment[name]]
        if name != next(member for member in members if member in self.tensors.redone):
            return
        for member in members:
            yield from self.gradient_from.get(member, ())

    def _reads_again(self, layer: Layer) -> None:
        """What a backward pass waits for beside gradients: what it reads is made again."""
        for edge in self.graph.producers[layer.name] if layer.keeps_inputs else ():
            if self.tensors.again(layer.name, edge.source):
                ready = [self._done(edge.source, "recompute", BACKWARD)]
                if not self.tensors.gathered_again(edge):
                    ready, _, _ = self._arrival(edge, True)
                self.gradient_from.setdefault(layer.name, []).extend(ready)

    def _all_backward(self) -> None:
        begun: set[int] = set()
        order = {layer.name: layer for layer in self.layers}
        for layer in self.layers:
            for edge in self.graph.consumers[layer.name]:
                other = self.view.stage_of[edge.target]
                if other != self.number and self.graph.needs_input_gradient(edge):
                    ref = self.arrivals.gradient(layer.name, other)
                    refs = self.gradient_from.setdefault(layer.name, [])
                    if ref not in refs:
                        refs.append(ref)
        for layer in reversed(self.layers):
            segment = self.segment.get(layer.name)
            if segment is not None and segment not in begun:
                begun.add(segment)
                for name in self.stage.recompute[segment]:
                    if name in self.tensors.redone:
                        self._forward(order[name], BACKWARD)
                    else:
                        self._reads_again(order[name])
            self._backward(layer)
        self._send_gradients()

    def _backward(self, layer: Layer) -> None:
        name, piece = layer.name, self.pieces[layer.name]
        after = list(dict.fromkeys(self.gradient_from.get(name, ())))
        if not self.graph.consumers[name]:
            # the backward pass starts where the forward pass ends
            after.append(self._done(name, "forward", FORWARD))
        own: Local = ("grad", name, 0)
        # the gradient of a loss is one number, which some runtimes write over what it kept
        number = layer.kind == "loss" and self.view.runtime.logit_kept is not None
        goes_in = name not in self.graph.untrained
        makes: list[Made] = [(own, GRADIENTS, 0.0 if number or not goes_in else piece.output)]
        for edge in self.graph.producers[name]:
            if self.graph.needs_input_gradient(edge):
                maker = self.pieces[edge.source]
                size = max(piece.inputs[edge.slot], maker.output)
                makes.append((("grad", edge.source, 0), GRADIENTS, size))
        again = gathers_for_backward(self.tensors, layer, after)
        self.phases[BACKWARD] += again
        uses = (*self.tensors.kept(layer), own, *(op.makes[0][0] for op in again))
        fresh: Local = ("fresh gradient", name, 0)
        if self.view.fresh_size and piece.parameters:
            makes.append((fresh, WEIGHT_GRADIENTS, piece.parameters * self.view.fresh_size))
            self.fresh.append(fresh)
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
        self._weights(base, piece, [(self.number, BACKWARD, op.key) for op in again])
        if goes_in:
            self._sums(BACKWARD, base, piece)
        for edge in self.graph.producers[name]:
            if self.graph.needs_input_gradient(edge):
                self._gradient(edge, self._done(name, "backward", BACKWARD))

    def _weights(self, base: Operation, piece: Piece, gathered: list[Ref]) -> None:
        """The backward pass, in one or with that of the weight apart.

        Parameters
        ----------
        base
            The pass in one.
        piece
            The layer.
        gathered
            What its weight's pass waits for besides.
        """
        name = base.name
        # attention has a second backward product, but no weight
        weighted = self.graph.layers[name].parameters > 0 and piece.backward_weight > 0.0
        apart = self.view.weight_apart and weighted
        beside = self.view.weight_beside and weighted and not piece.weight_first
        if not (apart or beside or piece.weight_first):
            base = base._replace(after=(*base.after, *gathered))
            self._pass(BACKWARD, base, piece)
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
        if apart or beside:
            self._pass(BACKWARD, data, piece)
            after = ((self.number, BACKWARD, base.key), *gathered)
            self.phases[phase].append(weight._replace(after=after, makes=()))
        else:
            # work that needs no halo comes first, beside the exchange where that overlaps
            self.phases[BACKWARD].append(weight)
            if piece.halo_backward is not None and piece.halo_backward[0].apart[0]:
                data = data._replace(after=(*data.after, (self.number, BACKWARD, weight.key)))
            self._pass(BACKWARD, data, piece)
        self.weight_ready[name] = (self.number, phase, weight.key)

    def _drop_fresh(self) -> None:
        """Gradients of the micro-batch are added up when all of its backward pass is through."""
        phase = self.phases[WEIGHT] or self.phases[BACKWARD]
        if self.fresh and phase:
            phase[-1] = phase[-1]._replace(uses=(*phase[-1].uses, *self.fresh))

    def _gradient(self, edge: Edge, ready: Ref) -> None:
        """Take the gradient of an input to the layout of its maker, and to its stage."""
        piece, maker = self.pieces[edge.target], self.pieces[edge.source]
        reads = piece.reads[edge.slot]
        writes = self.tensors.summed(reads if self.tensors.reshaped(edge) else maker.writes)
        read = self.graph.layers[edge.target].inputs[edge.slot].size
        change = self.tensors.changes.between(
            reads,
            writes,
            piece.inputs[edge.slot],
            self.tensors.share(edge) * maker.output,
            float(read * self.view.activation_size),
        )
        if change.message.time > 0.0:
            place = self.graph.consumers[edge.source].index(edge)
            key: Key = ("change gradient", f"{edge.source}", edge.slot + 1000 * place)
            if change.pattern.kind == "reduce_scatter" and self.tensors.comes_around(edge):
                edges = self.graph.producers[edge.target]
                around = next(filter(self.tensors.comes_around, edges))
                parts = ring_ranks(self.tensors.change(around))
                self.phases[BACKWARD] += gradient_operations(
                    self.number, BACKWARD, edge.target, key, change, parts
                )
            else:
                called = self.tensors.called(edge, change)
                self.phases[BACKWARD].append(
                    message_operation(
                        key, called, change.message, [ready], num_bytes=change.num_bytes
                    )
                )
            ready = (self.number, BACKWARD, key)
        self.gradient_from.setdefault(edge.source, []).append(ready)

    def _send_gradients(self) -> None:
        """Send the gradients of inputs that other stages made back to them."""
        inside = {layer.name for layer in self.layers}
        for name in [n for n in self.gradient_from if n not in inside]:
            other = self.view.stage_of[name]
            size = self.tensors.crossing(name, self.number)
            size /= math.prod(sharing_ranks(self.view, name, self.number))
            self.phases[BACKWARD].append(
                message_operation(
                    ("send gradient", name, other),
                    "send_recv",
                    self.stage_links.to_stage(self.view.stage_links[other], size),
                    self.gradient_from[name],
                    num_bytes=size,
                    uses=(("grad", name, 0),),
                )
            )
