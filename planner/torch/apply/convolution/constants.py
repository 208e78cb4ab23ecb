"""What does not depend on samples: parameters, buffers and what is computed of them.

Weights that a plan cuts are held in blocks; all others whole, by every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_arg

from planner.models.traced.nodes import CREATORS
from planner.torch.apply.layout import Box, Layout
from planner.torch.nodes import Arguments, arguments, operator_of, shape_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

# Arguments of operators that a plan cuts, and by which of the weights of the layer.
CUT = {
    "weight": "weight",
    "bias": "bias",
    "running_mean": "weight",
    "running_var": "weight",
}


def whole_layout(shape: Iterable[int], ranks: int) -> Layout:
    """Every rank has all of a tensor.

    Parameters
    ----------
    shape
        Its extents. [items]
    ranks
        How many there are. [items]
    """
    box = tuple((0, extent) for extent in shape)
    return Layout(boxes=(box,) * ranks, holders=((0,),) * ranks)


def cut_to(x: Tensor, box: Box) -> Tensor:
    """A block of a tensor, with memory of its own."""
    for dim, (start, stop) in enumerate(box):
        x = x.narrow(dim, start, stop - start)
    return x.detach().clone()


class Constants:
    """The tensors of a module that do not depend on samples, as this rank has them.

    Parameters
    ----------
    module
        The module, with its weights.
    program
        Its trace.
    data
        Operators that depend on samples.
    names
        Names of parameters and buffers by those of their placeholders, one for each tensor.
    layouts
        Where weights lie that are cut, by their names.
    rank, ranks
        This rank, and how many there are. [items]
    """

    def __init__(
        self,
        module: nn.Module,
        program: ExportedProgram,
        data: set[Node],
        names: Mapping[str, str],
        layouts: Mapping[str, Layout],
        rank: int,
        ranks: int,
    ) -> None:
        signature = program.graph_signature
        self._ranks = ranks
        self.names = names
        self.parameters = {names[node] for node in signature.inputs_to_parameters}
        self.layouts: dict[str, Layout] = {}
        self.tensors: dict[str, Tensor] = {}
        self.shapes: dict[str, torch.Size] = {}
        self._fixed: dict[str, Tensor] = {
            node: program.constants[name]
            for node, name in signature.inputs_to_lifted_tensor_constants.items()
        }
        for name in dict.fromkeys(names.values()):
            tensor = _member(module, name)
            layout = layouts.get(name) or whole_layout(tensor.shape, ranks)
            block = cut_to(tensor, layout.boxes[rank])
            self.shapes[name] = tensor.shape
            self.layouts[name] = layout
            own = name in self.parameters
            self.tensors[name] = nn.Parameter(block, tensor.requires_grad) if own else block
        self._nodes = [
            node
            for node in program.graph.nodes
            if node.op == "call_function"
            and node not in data
            and operator_of(node) != "_assert_tensor_metadata"
        ]
        self._data = data
        self._computed: dict[Node, Any] = {}

    def compute(self) -> None:
        """Compute what is made of parameters and buffers, for one forward pass."""
        self._computed = {}
        for node in self._nodes:
            args, options = map_arg((node.args, node.kwargs), self._value)
            self._computed[node] = node.target(*args, **options)

    def _value(self, node: Node) -> Any:
        if node in self._computed:
            return self._computed[node]
        if node in self._data:
            # only its shape is read
            readers = [one for one in node.users if one.op != "output" and one not in self._data]
            assert all(operator_of(one) in CREATORS for one in readers)
            return torch.empty(()).expand(shape_of(node))
        return self.held(node)[0]

    def held(self, node: Node) -> tuple[Tensor, Layout]:
        """The rank's part of what an operator is, and where that lies."""
        if node in self._computed:
            found = self._computed[node]
            return found, whole_layout(getattr(found, "shape", ()), self._ranks)
        if node.op == "get_attr":
            found = _member(node.graph.owning_module, str(node.target))
            return found, whole_layout(found.shape, self._ranks)
        if node.name in self._fixed:
            found = self._fixed[node.name]
            return found, whole_layout(found.shape, self._ranks)
        name = self.names[node.name]
        return self.tensors[name], self.layouts[name]


def _member(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def cut_weights(
    rows: Iterable[tuple[str, Node, Mapping[str, Layout]]],
    names: Mapping[str, str],
    size_of: Callable[[str], torch.Size],
) -> dict[str, Layout]:
    """Where weights lie that are cut, by their names.

    Parameters
    ----------
    rows
        Layers whose weights are cut: their kind, their operator, and where the weights lie.
    names
        Names of parameters and buffers by those of their placeholders.
    size_of
        Extents of each. [items]
    """
    found: dict[str, Layout] = {}
    for kind, node, weights in rows:
        product, turned = product_of(node, kind) if kind != "batch_norm" else ({}, False)
        for argument, source in (product or arguments(node)).items():
            if argument not in CUT or getattr(source, "op", "") != "placeholder":
                continue
            if argument.startswith("running") and kind != "batch_norm":
                continue
            name, layout = names.get(source.name), weights.get(CUT[argument])
            if name is None or layout is None or name in found:
                continue
            shape = size_of(name)
            count = len(shape)
            # a product that is written as a convolution of one position, or the other way round
            boxes = tuple((box + ((0, 1),) * count)[:count] for box in layout.boxes)
            if turned and argument == "weight":
                boxes = tuple(box[::-1] for box in boxes)
            if tuple(max(stop for _, stop in dim) for dim in zip(*boxes, strict=True)) == shape:
                found[name] = layout.with_boxes(boxes)
    return found


def product_of(node: Node, kind: str) -> tuple[Arguments, bool]:
    """What stands for the weight and the bias of a product; whether that has its inputs first.

    Parameters
    ----------
    node, kind
        The operator, and the kind of its layer; of one that is no product nothing is returned.
    """
    given, name = arguments(node), operator_of(node)
    weight, bias, turned = given.get("weight"), given.get("bias"), False
    if name == "addmm" and given["beta"] == given["alpha"] == 1:
        weight, bias, turned = given["mat2"], given["self"], True
    elif name in ("mm", "matmul"):
        weight, turned = given["mat2" if "mat2" in given else "other"], True
    if weight is None:
        return {}, False
    while kind == "linear" and operator_of(weight) in ("permute", "t", "transpose"):
        if len(shape_of(weight)) != 2 or list(arguments(weight).get("dims", [1, 0])) != [1, 0]:
            break
        weight, turned = weight.all_input_nodes[0], not turned
    return {"weight": weight, "bias": bias}, turned
