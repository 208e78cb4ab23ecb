"""A layer as it runs on this rank: what it reads and writes, and where that lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from costmodels.errors import InputError
from costmodels.graph import Layer
from planner.models.traced.values import Value
from planner.plan import LayerSharding, Mesh
from planner.plan.sharding import PARTIAL, sharded_dim
from planner.torch.apply.convolution.blocks import block_as, local_box, output_block
from planner.torch.apply.exchange import Exchange, Why, moved
from planner.torch.apply.layout import Box, Layout, layout_of
from planner.torch.nodes import Arguments, arguments

if TYPE_CHECKING:
    from torch.fx import Node


@dataclass(kw_only=True)
class Site:
    """One layer on this rank.

    Parameters
    ----------
    layer
        The layer.
    sources
        Layers that it reads, by slot.
    sharding, mesh
        Where its tensors lie.
    nodes
        Its operators, none for a loss that is added.
    data
        All operators that depend on samples.
    known, moves
        What each operator's output is, and what copies make of what.
    exchange
        The ranks.
    held
        The rank's part of what does not depend on samples, and where that lies.
    training, drops
        Whether the module is in training, and whether dropout drops.
    """

    layer: Layer
    sources: tuple[str, ...]
    sharding: LayerSharding
    mesh: Mesh
    nodes: tuple[Node, ...]
    data: set[Node]
    known: Mapping[Node, object]
    moves: Mapping[str, tuple[Value, Value]]
    exchange: Exchange
    held: Callable[[Node], tuple[Tensor, Layout]]
    training: Callable[[], bool]
    drops: Callable[[], bool]
    read_now: list[Tensor] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The layer."""
        return self.layer.name

    @property
    def rank(self) -> int:
        """This rank."""
        return self.exchange.rank

    @cached_property
    def inputs(self) -> tuple[Layout, ...]:
        """Where its inputs lie, by slot."""
        return tuple(layout_of(one, self.mesh) for one in self.sharding.inputs)

    @cached_property
    def input_gradients(self) -> tuple[Layout, ...]:
        """Where the gradients that it makes of its inputs lie, before they are summed."""
        rows = self.sharding.inputs
        return tuple(layout_of(one, self.mesh, one.gradient_sums) for one in rows)

    @cached_property
    def output(self) -> Layout:
        """Where what it writes lies, before that is summed."""
        return layout_of(self.sharding.output, self.mesh)

    @cached_property
    def weights(self) -> dict[str, tuple[Layout, Layout]]:
        """Where each of its weights lies, and its gradient before that is summed."""
        found = {
            one.name: (
                layout_of(one, self.mesh),
                layout_of(one, self.mesh, one.gradient_sums),
            )
            for one in self.sharding.weights
        }
        if self.layer.kind == "batch_norm" and not found:
            # one that is used before, of which the plan has no weights, or whose statistics are all
            summed = self.axes_that_cut() - self.axes_that_cut({"channel"})
            boxes = tuple((box[1],) for box in self.output.boxes)
            gradient = Layout(boxes=boxes, holders=self.holders(summed))
            found = dict.fromkeys(("weight", "bias"), (gradient.whole, gradient))
        return found

    def axes_that_cut(self, dims: Iterable[str] | None = None) -> set[str]:
        """Axes of the mesh that cut its output or an input, along some of their dims.

        Parameters
        ----------
        dims
            The dims, all by default, those that are summed over too.
        """
        found = set()
        for tensor in (*self.sharding.inputs, self.sharding.output):
            for axis, placement in zip(self.mesh.axes, tensor.placements, strict=True):
                dim = sharded_dim(placement)
                cuts = placement == PARTIAL if dim is None else True
                if cuts and (dims is None or (dim is not None and tensor.dims[dim] in dims)):
                    found.add(axis.name)
        return found

    def holders(self, axes: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The place of each rank along some axes."""
        chosen = [name in set(axes) for name in self.mesh.names]
        places = (self.mesh.coordinates(rank) for rank in self.mesh.ranks)
        return tuple(
            tuple(digit for digit, one in zip(place, chosen, strict=True) if one)
            for place in places
        )

    @property
    def out_box(self) -> Box:
        """What the rank writes."""
        return self.output.boxes[self.rank]

    @property
    def node(self) -> Node:
        """Its last operator."""
        return self.nodes[-1]

    @property
    def given(self) -> Arguments:
        """Arguments of that."""
        return arguments(self.node)

    def refusal(self, what: str) -> InputError:
        """Why the layer cannot be run as it is split."""
        return InputError(
            f"the plan cannot be applied to layer '{self.name}' ({self.layer.kind}): {what}; "
            "forbid that split (--forbid) and plan again"
        )

    def why(self, cause: str) -> Why:
        """What is sent for the layer."""
        return Why(self.name, cause)

    def _viewed(self, node: Node) -> tuple[Value, int]:
        """What an argument is, as a view of the input of a slot."""
        value = self.known[node]
        assert isinstance(value, Value), "only asked of what depends on samples"
        for slot, source in enumerate(self.sources):
            if source == value.layer:
                return value, slot
        for slot, source in enumerate(self.sources):
            if source in self.moves and self.moves[source][0] == value:
                return self.moves[source][1], slot
        raise self.refusal("it reads a tensor that is viewed in a way which cannot be cut")

    def read(self, node: Node) -> tuple[Tensor, Box]:
        """The block of an argument, and which one it is."""
        value, slot = self._viewed(node)
        box = self.inputs[slot].boxes[self.rank]
        return block_as(value, self.read_now[slot], box), local_box(value, box)

    def written(self, x: Tensor) -> Tensor:
        """The block of the layer's output, from that of its last operator."""
        value: Any = self.known[self.node]
        return output_block(value[0] if isinstance(value, tuple) else value, x, self.out_box)

    def weight(self, node: Node, name: str, boxes: tuple[Box, ...] | None = None) -> Tensor:
        """The rank's block of a weight, so that its gradient is summed as the plan says.

        Parameters
        ----------
        node
            What stands for the weight.
        name
            Which of the weights of the plan it is.
        boxes
            What ranks need of it, where that is not what the plan says.
        """
        x, layout = self.held(node)
        wanted, gradient = self.weights[name]
        if boxes is not None:
            gradient = gradient.with_boxes(boxes)
        elif len(layout.boxes[0]) != len(wanted.boxes[0]):
            # a product that is written as a convolution of one position, or the other way round
            count = len(layout.boxes[0])
            gradient = gradient.with_boxes(
                (box + ((0, 1),) * count)[:count] for box in gradient.boxes
            )
        return moved(x, self.exchange, layout, gradient, self.why("weight"))

    def whole(self, node: Node) -> Tensor:
        """All of a tensor that does not depend on samples; each rank's work counts once."""
        x, layout = self.held(node)
        everything = tuple(tuple((0, n) for n in full_shape(layout)) for _ in layout.boxes)
        gradient = Layout(boxes=everything, holders=self.holders(self.axes_that_cut()))
        return moved(x, self.exchange, layout, gradient, self.why("weight"))


def full_shape(layout: Layout) -> tuple[int, ...]:
    """Extents of the whole tensor. [items]"""
    return tuple(max(stop for _, stop in dim) for dim in zip(*layout.boxes, strict=True))
