"""A module of layers that are split one by one: each rank runs its blocks of every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from costmodels.errors import InputError
from costmodels.graph import build_graph
from planner.models.traced.values import Value
from planner.plan.sharding import Sharding
from planner.torch.apply.checkpoint import WeightBlock
from planner.torch.apply.convolution.blocks import block_as
from planner.torch.apply.convolution.constants import Constants, cut_to, cut_weights
from planner.torch.apply.convolution.operations import KINDS
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.convolution.sums import cross_entropy, mean_of
from planner.torch.apply.exchange import Exchange, Why, moved
from planner.torch.apply.in_place import check_in_place
from planner.torch.apply.layout import Layout
from planner.torch.apply.module import PlannedModule, Received
from planner.torch.apply.tracing import first_names

if TYPE_CHECKING:
    from torch.fx import Node

    from planner.torch.ingest import TracedNetwork

LossFunction = Callable[[Tensor, Tensor], Tensor]


class ConvolutionModule(PlannedModule):
    """A module whose layers are split as a plan says, each by itself.

    Parameters
    ----------
    module
        The original module.
    traced
        The network that it is, at the batch of a step.
    sharding
        Where all tensors lie.
    batch
        Samples of a step. [items]
    loss
        A function of output and target, None for the cross entropy of the features.
    """

    def __init__(
        self,
        module: nn.Module,
        traced: TracedNetwork,
        sharding: Sharding,
        batch: int,
        loss: LossFunction | None = None,
    ) -> None:
        super().__init__()
        program, known = traced.program, traced.known
        nodes = list(program.graph.nodes)
        signature = program.graph_signature
        self._exchange = Exchange()
        # whether dropout drops, and who is told of every block: for those who compare
        self.drops = True
        self.watcher: Callable[[str, str, Tensor], None] | None = None
        self._loss = loss
        data = traced.data
        self._entries = [node for node in nodes if node.name in set(signature.user_inputs)]
        graph = build_graph(traced.network, batch)
        self._sites = {
            row.name: Site(
                layer=graph.layers[row.name],
                sources=row.inputs,
                sharding=sharding.layer(row.name),
                mesh=sharding.meshes[sharding.layer(row.name).mesh],
                nodes=traced.nodes[row.name],
                data=data,
                known=known,
                moves=traced.moves,
                exchange=self._exchange,
                held=self._held,
                training=lambda: self.training,
                drops=lambda: self.training and self.drops,
            )
            for row in traced.network.layers
        }
        check_in_place(nodes, data)
        firsts = first_names(module)
        names = {
            node: firsts.get(name, name)
            for held in (signature.inputs_to_parameters, signature.inputs_to_buffers)
            for node, name in held.items()
        }
        sizes = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        cut = cut_weights(
            (
                (site.layer.kind, site.node, {k: row[0] for k, row in site.weights.items()})
                for site in self._sites.values()
                if site.layer.kind in ("conv", "linear", "bias", "batch_norm")
            ),
            names,
            lambda name: sizes[name].shape,
        )
        self._constants = Constants(
            module, program, data, names, cut, self._exchange.rank, len(sharding.meshes[0].ranks)
        )
        tensors = self._constants.tensors
        self._first_names = {
            **{name: first for name, first in firsts.items() if first in tensors},
            **{name: name for name in tensors if name not in firsts},
        }
        for name, first in self._first_names.items():
            _register(self, name, tensors[first])
        self.register_state_dict_post_hook(_with_boxes)
        self._output = self._last(known, nodes, signature.user_outputs)

    def _last(self, known: Mapping[Any, object], nodes: list[Any], outputs: Any) -> Value:
        by_name = {node.name: node for node in nodes}
        rows = (known.get(by_name[str(name)]) for name in outputs if str(name) in by_name)
        return next(value for value in rows if isinstance(value, Value))

    def _held(self, node: Node) -> tuple[Tensor, Layout]:
        return self._constants.held(node)

    @property
    def _rank(self) -> int:
        return self._exchange.rank

    def _input_layout(self) -> Layout:
        """Where the samples lie: as the first layer that reads them has them."""
        for site in self._sites.values():
            if "input" in site.sources:
                return site.inputs[site.sources.index("input")]
        raise InputError("a plan that is applied must have a layer that reads the samples")

    def local_batch(self, tensor: Tensor, slot: int | str = 0) -> Tensor:
        """The part of a tensor of the whole batch that this rank reads."""
        if slot == "target":
            return self._target_of(tensor)
        if slot != 0:
            raise InputError(
                f"a convolutional network that a plan is applied to must have one input but input "
                f"{slot} is asked for; use slot 0"
            )
        layout = self._input_layout()
        box = layout.boxes[self._rank]
        whole = tuple(max(stop for _, stop in dim) for dim in zip(*layout.boxes, strict=True))
        if tuple(tensor.shape) != whole:
            raise InputError(
                f"a batch of the plan must be of shape {list(whole)} but is of "
                f"{list(tensor.shape)}; give all samples of a step"
            )
        return cut_to(tensor, box)

    def _target_of(self, tensor: Tensor) -> Tensor:
        """What of a target meets the rank's block of the output."""
        box = self._read_box()
        # a target has the dims of the output, or all but its features
        box = box if tensor.dim() == len(box) else (box[0], *box[2:])
        return cut_to(tensor, box[: tensor.dim()])

    def _loss_site(self) -> Site | None:
        last = next(reversed(self._sites.values()))
        return last if last.layer.kind == "loss" else None

    def _read_box(self) -> Any:
        """The box of the output that the rank's part of the loss reads."""
        site = self._loss_site()
        if site is None:
            raise InputError(
                "a plan that is applied must end in a loss but does not; let the module return "
                "features"
            )
        return site.inputs[0].boxes[self._rank]

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """The rank's block of the output or, where a target is given, the mean loss.

        Parameters
        ----------
        x
            The rank's part of the samples.
        target
            Its part of what the loss compares with.
        """
        self._constants.compute()
        done: dict[str, Tensor] = {"input": x}
        places: dict[str, Layout] = {"input": self._input_layout()}
        readers = {source: name for name, site in self._sites.items() for source in site.sources}
        for name, site in self._sites.items():
            blocks = [
                self._brought(done[source], places[source], site, slot)
                for slot, source in enumerate(site.sources)
            ]
            for slot, block in enumerate(blocks):
                self._seen(name, f"input {slot}", block)
            if site.layer.kind == "loss":
                return self._ended(site, blocks[0], target)
            if site.layer.kind not in KINDS:
                raise site.refusal("layers of that kind are not run in blocks")
            site.read_now = blocks
            done[name], places[name] = KINDS[site.layer.kind](site, blocks), site.output
            site.read_now = []
            self._seen(name, "output", done[name])
            for source in site.sources:
                if readers[source] == name:
                    done.pop(source, None)
        raise InputError("a plan that is applied must end in a loss but does not")

    def _seen(self, layer: str, what: str, x: Tensor) -> None:
        if self.watcher is not None:
            self.watcher(layer, what, x)

    def _brought(self, x: Tensor, source: Layout, site: Site, slot: int) -> Tensor:
        """An input of a layer, from where the layer before left it.

        Parameters
        ----------
        x, source
            The rank's block of it, and where it lies.
        site, slot
            The layer that reads it, and which input it is.
        """
        why = Why(f"{site.sources[slot]} -> {site.name}", "shuffle")
        return moved(x, self._exchange, source, site.input_gradients[slot], why)

    def _ended(self, site: Site, x: Tensor, target: Tensor | None) -> Tensor:
        """The loss of a block, or the block as the original module returns it.

        Parameters
        ----------
        site, x, target
            The loss, what it reads, and what it compares with.
        """
        if target is not None and self._loss is None and not site.nodes:
            return cross_entropy(site, x, target)
        value = self._output
        if value.layer != site.sources[0]:
            value = site.moves[site.sources[0]][1]
        x = block_as(value, x, site.inputs[0].boxes[self._rank])
        if target is None or self._loss is None:
            return x
        if site.axes_that_cut({"channel"}):
            raise site.refusal("a loss of your own reads all features but they are cut")
        dims = [dim for dim in range(len(site.inputs[0].boxes[0])) if dim != 1]
        total = self._loss(x, target)
        count = 1
        for dim in dims:
            count *= read_extent(site, dim)
        return mean_of(site, total * count, count, dims)

    def step(self, *inputs: Tensor, target: Tensor | None = None) -> Tensor:
        """The forward and the backward pass of one step; the mean loss of the whole batch."""
        loss = self(*inputs, target=target)
        loss.backward()
        return loss.detach()

    def _full(self, name: str, x: Tensor) -> Tensor:
        layout = self._constants.layouts[name]
        box = tuple((0, extent) for extent in self._constants.shapes[name])
        return self._exchange.move(x, layout, (box,) * len(layout.boxes), Why(name, "gathering"))

    def full_parameters(self) -> dict[str, Tensor]:
        """All parameters as one process would have them."""
        return {name: self._full(name, p.detach()) for name, p in self.named_parameters()}

    def full_gradients(self) -> dict[str, Tensor]:
        """Their gradients after a step."""
        return {
            name: self._full(name, torch.zeros_like(p) if p.grad is None else p.grad)
            for name, p in self.named_parameters()
        }

    def messages(self) -> list[Received]:
        """What this rank sent and received since it was asked last."""
        found, self._exchange.record = self._exchange.record, []
        return found

    @property
    def sites(self) -> Mapping[str, Site]:
        """Every layer as it runs on this rank."""
        return self._sites


def _with_boxes(module: Any, state: dict[str, Any], prefix: str, metadata: object) -> None:
    """Let a checkpoint know where the blocks of a state dict lie."""
    constants = module._constants
    for name, first in module._first_names.items():
        layout = constants.layouts[first]
        box = layout.boxes[module._rank]
        if any(box != other for other in layout.boxes):
            shape = constants.shapes[first]
            state[prefix + name] = WeightBlock.of(state[prefix + name], box, shape)


def read_extent(site: Site, dim: int) -> int:
    """Positions of a dim of the block that a layer reads. [items]"""
    start, stop = site.inputs[0].boxes[site.rank][dim]
    return stop - start


def _register(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor where it is found by its name.

    Parameters
    ----------
    module, name, tensor
        The tensor, its name with dots, and the module that it is under.
    """
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module._modules[part]
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(last, tensor)
    else:
        module.register_buffer(last, tensor)
