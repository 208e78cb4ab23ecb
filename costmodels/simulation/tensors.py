"""Which tensors a stage has, in which layouts, and who reads them last.

A layer that is recomputed makes its output twice: once for the layers that read it forward, and
again, right before the backward pass of its segment, for the backward passes of that segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.communication.layout import Layouts
from costmodels.communication.patterns import NOTHING, SEND_RECV, Pattern
from costmodels.graph import Edge, Graph, Layer
from costmodels.layers.shared_weight import SharedBlock
from costmodels.simulation.layouts import Change, Changes, Handling
from costmodels.simulation.messages import NO_MESSAGE, StageLinks
from costmodels.simulation.operations import Key, Local, Made, Operation, Ref, message_operation
from costmodels.simulation.pieces import Piece
from costmodels.simulation.recomputation import computed_again, stored_shares
from costmodels.simulation.runtimes import Runtime
from costmodels.strategy import Strategy

ACTIVATIONS, GRADIENTS = "activations", "activation gradients"
# What is taken to a layout: which making of whose output, the layout, and which part of the output.
Mark = tuple[str, str, bytes, int]
_AS_IS = Change(pattern=Pattern(kind=NOTHING, group=()), message=NO_MESSAGE, num_bytes=0.0)


class JobView(Struct, frozen=True, kw_only=True, eq=False):
    """What the stages of a job must know of each other.

    Parameters
    ----------
    graph
        The network at one micro-batch.
    strategy
        The strategy.
    pieces
        Of every layer.
    stage_links
        Links of every stage.
    weight_links
        Links of all devices that hold the weights of every stage.
    stage_of
        Stage of every layer.
    activation_size
        Of one activation. [B]
    weight_apart
        Whether backward passes of weights run by themselves.
    holders
        For each user of a shared weight, the layer that holds it in its stage.
    shared
        What each layer adds whose weight another layer of its stage holds.
    handling
        What the framework adds around collectives of activations of every stage.
    runtime
        The framework.
    launch_time
        Time in which the host launches a kernel. [s]
    fresh_size
        Size of a weight's gradient until the backward pass of a micro-batch is through. [B]
    weight_beside
        Whether gradients of inputs are reduced beside the backward pass of the weight.
    """

    graph: Graph
    strategy: Strategy
    pieces: Mapping[str, Piece]
    stage_links: tuple[StageLinks, ...]
    weight_links: tuple[StageLinks, ...]
    stage_of: Mapping[str, int]
    activation_size: int
    weight_apart: bool
    holders: Mapping[str, str]
    shared: Mapping[str, SharedBlock]
    handling: tuple[Handling, ...]
    runtime: Runtime
    fresh_size: float
    launch_time: float
    weight_beside: bool = False


class StageTensors:
    """Tensors of one stage."""

    def __init__(self, view: JobView, number: int) -> None:
        self.view, self.number = view, number
        self.graph, self.pieces = view.graph, view.pieces
        self.stage = view.strategy.stages[number]
        self.changes = Changes(view.stage_links[number], view.handling[number])
        self.change_of: dict[Edge, Change] = {}
        self.summed_up: dict[int, tuple[Layouts, Layouts]] = {}
        self.segment = {name: i for i, names in enumerate(self.stage.recompute) for name in names}
        # parts of outputs that stay although their segment is computed again
        self.stored: dict[str, float] = {}
        self.redone: set[str] = set()
        for names in self.stage.recompute:
            self._recompute(names)
        # operation that takes a tensor to a layout, and the copy that it makes, if it does
        self.moved: dict[Mark, tuple[Key, Local | None]] = {}

    def _recompute(self, names: Sequence[str]) -> None:
        """What of a segment stays, and what is computed again."""
        by_operation = self.view.strategy.keep_products
        stored = {}
        if by_operation:
            scattered = {
                edge.target
                for name in names
                for edge in self.graph.producers[name]
                if edge.source in self.pieces and self.graph.layers[name].kind == "add"
                if self.change(edge).pattern.kind == "reduce_scatter"
            }
            stored = stored_shares(self.graph, names, scattered)
        early = by_operation or self.view.runtime.stops_early
        self.redone |= computed_again(self.graph, names, stored, early)
        self.stored |= stored

    def again(self, reader: str, source: str) -> bool:
        """Whether a backward pass reads what is computed again."""
        segment = self.segment.get(reader, -1)
        return source in self.redone and self.segment[source] == segment

    def outputs(self, name: str, again: bool) -> list[Made]:
        """What a forward pass makes of an output, with what of it stays."""
        size, share = self.pieces[name].output, self.stored.get(name, 0.0)
        if share >= 1.0:
            share = 0.0  # the output itself stays
        rows: list[Made] = [(self.out(name, again), ACTIVATIONS, (1.0 - share) * size)]
        if share and not again:
            rows.append((("stored", name, 0), ACTIVATIONS, share * size))
        return rows

    def out(self, name: str, again: bool) -> Local:
        """The output of a layer, as computed first or again."""
        return ("again" if again else "out", name, 0)

    def saved(self, name: str) -> float:
        """What a layer keeps for its backward pass beside its inputs and its output. [B]"""
        size = self.pieces[name].saved
        copied = self.graph.layers[name].copy_size / self.view.activation_size
        for edge in self.graph.producers[name] if copied else ():
            if self.gathered_again(edge):
                # of the part that is kept
                whole, part = self.pieces[name].inputs[edge.slot], self.pieces[edge.source].output
                size -= (whole - part) * copied
        return size

    def change(self, edge: Edge) -> Change:
        """Communication of an activation between its maker and a reader in this stage."""
        if edge not in self.change_of:
            self.change_of[edge] = self._change(edge)
        return self.change_of[edge]

    def share(self, edge: Edge) -> float:
        """What of its maker's output a reader reads: attention reads three parts of one. [part]"""
        read = self.graph.layers[edge.target].inputs[edge.slot].size
        return min(read / self.graph.layers[edge.source].output.size, 1.0)

    def mark(self, edge: Edge, layout: bytes, *, redone: bool) -> Mark:
        """What readers of the same part in the same layout have in common.

        Parameters
        ----------
        edge
            The input.
        layout
            That it is taken to.
        redone
            Whether the output is computed again.
        """
        others = self.graph.producers[edge.target] if self.share(edge) < 1.0 else ()
        before = sum(e.source == edge.source and e.slot < edge.slot for e in others)
        return self.out(edge.source, redone)[0], edge.source, layout, before

    def called(self, edge: Edge, change: Change) -> str:
        """What a change of layout is called: what goes to experts and back is an all-to-all.

        Together with sums over ranks no one collective does it, but that is what frameworks run.
        """
        layers = self.graph.layers
        routed = layers[edge.source].kind == "dispatch" or layers[edge.target].kind == "combine"
        kind = change.pattern.kind
        return "all_to_all" if routed and kind == SEND_RECV else kind

    def gathered_again(self, edge: Edge) -> bool:
        """Whether a layer keeps its own part of an input only, to gather it again."""
        reader = self.graph.layers[edge.target]
        gathers = self.view.strategy.gather_again or self.view.runtime.gathers_again
        if not (gathers and (reader.keeps_inputs or reader.copy_size)):
            return False
        return edge.source in self.pieces and self.change(edge).pattern.kind == "all_gather"

    def comes_around(self, edge: Edge) -> bool:
        """Whether an input comes around a ring: keys and values of a sequence that is divided."""
        return (
            self.view.strategy.ring_attention
            and self.graph.layers[edge.target].kind == "attention"
            and edge.slot > 0
            and self.gathered_again(edge)
        )

    def _change(self, edge: Edge) -> Change:
        piece = self.pieces[edge.target]
        maker = self.pieces.get(edge.source)
        if maker is None:
            return _AS_IS
        source = maker.writes
        if self.view.stage_of[edge.source] != self.number:
            if maker.writes.degrees.shape != piece.writes.degrees.shape or self.reshaped(edge):
                return _AS_IS  # sent in the blocks that are read
            source = self.summed(source)
        whole = self.graph.layers[edge.target].inputs[edge.slot].size * self.view.activation_size
        return self.changes.between(
            source,
            piece.reads[edge.slot],
            self.share(edge) * maker.output,
            piece.inputs[edge.slot],
            float(whole),
        )

    def summed(self, layouts: Layouts) -> Layouts:
        """A layout when its partial sums are summed up."""
        if id(layouts) not in self.summed_up:
            whole = replace(layouts, partial=np.ones_like(layouts.partial))
            self.summed_up[id(layouts)] = (layouts, whole)
        return self.summed_up[id(layouts)][1]

    def reshaped(self, edge: Edge) -> bool:
        """Whether the maker's stage has other numbers of devices than the reader's."""
        stages, stage_of = self.view.strategy.stages, self.view.stage_of
        source, target = stages[stage_of[edge.source]], stages[stage_of[edge.target]]
        return tuple(source.shape) != tuple(target.shape)

    def overwrites(self, layer: Layer, edge: Edge, again: bool) -> bool:
        """Whether a layer that works in place may take over its input: nobody reads it later.

        Parameters
        ----------
        layer
            The layer, which reads an input of this stage.
        edge
            The input.
        again
            Whether the layer is computed again.
        """
        name = edge.source
        if not layer.in_place or edge.slot != 0 or self.view.stage_of[name] != self.number:
            return False
        if again and not self.again(layer.name, name):
            return False
        if self.change(edge).copies:
            return False
        others = self.graph.consumers[name]
        if any(self.view.stage_of[e.target] != self.number for e in others):
            return False
        if self.stored.get(name, 0.0) >= 1.0:
            return False
        if others[-1] != edge:
            return False
        return not self.read_backward(name, again)

    def read_backward(self, name: str, again: bool) -> bool:
        """Whether an output (computed again or not) is read after the forward pass."""
        if self.graph.layers[name].keeps_output and (name in self.redone) == again:
            return True
        for edge in self.graph.consumers[name]:
            redone = self.again(edge.target, name)
            if redone != again:
                continue
            if edge.target in self.redone and not redone:
                return True  # what is computed again starts from it
            if not self.graph.layers[edge.target].keeps_inputs:
                continue
            if not self.change(edge).copies or self.gathered_again(edge):
                return True
        return False

    def crossing(self, name: str, reader: int) -> float:
        """What a device sends of an output to another stage, or gets back as its gradient. [B]"""
        readers = [e for e in self.graph.consumers[name] if self.view.stage_of[e.target] == reader]
        return max(
            self.pieces[name].output,
            *(self.pieces[e.target].inputs[e.slot] for e in readers if self.reshaped(e)),
            0.0,
        )

    def saved_of(self, name: str) -> Local:
        """What is `saved` of a layer."""
        return ("saved again" if name in self.redone else "saved", name, 0)

    def kept(self, layer: Layer) -> tuple[Local, ...]:
        """What the backward pass of a layer reads of the forward pass."""
        name = layer.name
        kept: list[Local] = []
        redone = name in self.redone
        share = self.stored.get(name, 0.0)
        if share:
            kept.append(self.out(name, False) if share >= 1.0 else ("stored", name, 0))
        if layer.keeps_inputs:
            for edge in self.graph.producers[name]:
                if edge.source not in self.pieces:
                    kept.append(("data", edge.source, 0))
                    continue
                again = self.again(name, edge.source)
                source = self.out(edge.source, again)
                change = self.change(edge)
                if change.copies and not self.gathered_again(edge):
                    layout = self.pieces[name].codes_read[edge.slot]
                    copy = self.moved[self.mark(edge, layout, redone=again)][1]
                    assert copy is not None, "a change that copies makes a copy"
                    source = copy
                kept.append(source)
        if layer.keeps_output:
            kept.append(self.out(name, redone))
        if self.saved(name):
            kept.append(self.saved_of(name))
        return tuple(dict.fromkeys(kept))


def gathers_for_backward(
    tensors: StageTensors, layer: Layer, after: Sequence[Ref]
) -> list[Operation]:
    """All-gathers of inputs of which only a part was kept, beside the gradient of the data.

    Parameters
    ----------
    tensors
        Those of the stage.
    layer
        The layer whose backward pass reads the inputs.
    after
        What that pass waits for.
    """
    rows = []
    for edge in tensors.graph.producers[layer.name]:
        if not tensors.gathered_again(edge) or tensors.comes_around(edge):
            continue
        change, slot = tensors.change(edge), edge.slot
        copy: Local = ("copy for backward", layer.name, slot)
        source = tensors.out(edge.source, tensors.again(layer.name, edge.source))
        if layer.copy_size:
            source = tensors.saved_of(layer.name)
        operation = message_operation(
            ("change for backward", layer.name, slot),
            tensors.called(edge, change),
            change.message,
            after,
            num_bytes=change.num_bytes,
            makes=((copy, ACTIVATIONS, tensors.pieces[layer.name].inputs[slot]),),
            uses=(source,),
        )
        rows.append(operation)
    return rows
