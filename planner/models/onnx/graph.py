"""Walking an ONNX graph: the shape of every tensor, and the values of those that make shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

from costmodels.errors import InputError
from planner.models.onnx.files import clean, shown
from planner.models.traced.nodes import CREATORS, Argument, Arguments, TracedNode

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto, TensorProto, TypeProto

Array: TypeAlias = "NDArray[Any]"
Attributes: TypeAlias = "dict[str, Any]"

# Values are only needed of what shapes are made of, and of masks. [items]
MOST_VALUES, MOST_OF_A_MASK = 4096, 2**24
# What a mask adds to scores that are hidden is below this.
HIDDEN = -1e4
# Operators that shapes are made with; no other is computed.
_COMPUTED = frozenset(
    {
        *("Shape", "Size", "Constant", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice"),
        *("Cast", "CastLike", "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Min", "Max"),
        *("Range", "ConstantOfShape", "Equal", "Greater", "Less", "And", "Or", "Not", "Where"),
        *("Expand", "Reshape", "Identity", "Floor", "Ceil", "Sqrt", "ReduceProd", "Transpose"),
    }
)


class OnnxGraph(Struct, kw_only=True, eq=False):
    """What is known of the tensors of a graph so far, by their names.

    Parameters
    ----------
    model, called
        The model, and what error messages call it.
    symbols
        Extents that the graph names. [items]
    nodes
        All nodes so far.
    known
        The node that makes each tensor.
    types
        The type of each tensor with its shape.
    values
        The numbers of small tensors that do not depend on samples.
    data, trained
        Nodes that depend on the samples, and those that are made of weights.
    readers
        The operators that read each tensor.
    sequences
        Of each list of tensors the names of these.
    """

    model: ModelProto
    called: str
    symbols: Mapping[str, int]
    nodes: list[TracedNode] = field(default_factory=list)
    known: dict[str, TracedNode] = field(default_factory=dict)
    types: dict[str, TypeProto] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    data: set[TracedNode] = field(default_factory=set)
    trained: set[TracedNode] = field(default_factory=set)
    readers: dict[str, list[NodeProto]] = field(default_factory=dict)
    sequences: dict[str, list[str]] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """Extents of a tensor. [items]"""
        return tuple(one.dim_value for one in self.types[name].tensor_type.shape.dim)

    def give(self, name: str, type_: TypeProto, **more: Argument) -> None:
        """A tensor that no operator makes.

        Parameters
        ----------
        name, type_
            The tensor.
        more
            Of the node that stands for it.
        """
        self.types[name] = type_
        node = TracedNode(name=clean(name), shapes=(self.shape(name),), **more)
        self.nodes.append(node)
        self.known[name] = node
        if node.is_input:
            self.data.add(node)
        if node.weight:
            self.trained.add(node)

    def node(
        self,
        operator: str,
        arguments: Arguments,
        shapes: Sequence[tuple[int, ...]],
        place: NodeProto,
    ) -> TracedNode:
        """One more operator.

        Parameters
        ----------
        operator, arguments
            What it does.
        shapes
            Of what it makes. [items]
        place
            The operator of the file that it is of.
        """
        made = TracedNode(
            name=clean(place.name or place.output[0]),
            operator=operator,
            arguments=arguments,
            shapes=tuple(shapes),
            calls=_module_calls(place),
        )
        self.nodes.append(made)
        if operator in CREATORS:
            return made
        if any(one in self.data for one in made.all_input_nodes):
            self.data.add(made)
        elif any(one in self.trained for one in made.all_input_nodes):
            self.trained.add(made)
        return made

    def argument(self, name: str) -> Argument:
        """A tensor as an argument: the number itself where it is one that is not trained."""
        node = self.known[name]
        value = self.values.get(name)
        if value is None or value.size != 1 or node in self.trained or node in self.data:
            return node
        return value.item()

    def numbers(self, node: NodeProto, place: int, attribute: str = "") -> list[int] | None:
        """Whole numbers that an operator is given as a tensor, or as an attribute; None for none.

        Parameters
        ----------
        node, place
            The operator, and which of its inputs.
        attribute
            What it is called where it is an attribute.
        """
        if len(node.input) > place and node.input[place]:
            value = self.values.get(node.input[place])
            return None if value is None else [int(one) for one in value.reshape(-1)]
        found = attributes(node).get(attribute)
        return None if found is None else list(found)

    def infer(self, node: NodeProto) -> None:
        """The types of what an operator makes, and the values where shapes are made of them.

        Raises
        ------
        InputError
            When these are not known, or not those of a tensor.
        """
        made = self._inferred(node)
        for name in filter(None, node.output):
            type_ = made.get(name)
            dims = type_.tensor_type.shape.dim if type_ is not None else ()
            if (
                type_ is None
                or not type_.HasField("tensor_type")
                or not type_.tensor_type.HasField("shape")
                or any(not one.HasField("dim_value") for one in dims)
            ):
                type_ = self._written(name)
            if type_ is None:
                raise InputError(
                    f"{self.called} cannot be planned: all shapes must be known but that of what "
                    f"{shown(node)} makes is not, or depends on the samples; give it a fixed size, "
                    "or write its shape into the file (value_info)"
                )
            self.types[name] = type_
        sizes = [math.prod(self.shape(name)) for name in node.output if name]
        # what it is to be like has no part in its numbers
        given = [name for name in node.input if name][: 1 if node.op_type == "CastLike" else None]
        if (
            node.op_type not in _COMPUTED
            or node.domain
            or len(sizes) != 1
            or sizes[0] > MOST_VALUES
        ):
            return
        if node.op_type in ("Shape", "Size") or all(name in self.values for name in given):
            self._compute(node)

    def _inferred(self, node: NodeProto) -> Mapping[str, TypeProto]:
        import onnx

        version = next(
            (
                one.version
                for one in self.model.opset_import
                if one.domain == node.domain or {one.domain, node.domain} == {"", "ai.onnx"}
            ),
            0,
        )
        try:
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            if node.domain:
                return {}  # an operator of another set
            raise InputError(
                f"{self.called} cannot be planned: every operator must be one of version {version} "
                f"of ONNX (opset_import) or of another set (domain) but {shown(node)} is neither; "
                "export it again"
            ) from None
        given = {name: self.types[name] for name in node.input if name in self.types}
        values = {
            name: onnx.numpy_helper.from_array(self.values[name], name)
            for name in given
            if name in self.values
        }
        try:
            found: Mapping[str, TypeProto] = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                given,
                values,
                opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version,
            )
        except Exception as error:
            reason = re.sub(r"[^\x20-\x7e]+", " ", str(error)).strip()[:200]
            raise InputError(
                f"{self.called} cannot be planned: {shown(node)} does not fit what it reads "
                f"({reason}); export it again, or correct --input"
            ) from None
        return found

    def _written(self, name: str) -> TypeProto | None:
        """The type of a tensor as the file says it, None where that has open extents."""
        rows = (*self.model.graph.value_info, *self.model.graph.output)
        found: TypeProto | None = next((one.type for one in rows if one.name == name), None)
        if found is None or not found.tensor_type.HasField("shape"):
            return None
        for dim in found.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                if dim.dim_param not in self.symbols:
                    return None
                dim.dim_value = self.symbols[dim.dim_param]
        return found

    def _compute(self, node: NodeProto) -> None:
        """The numbers of what an operator makes of known ones."""
        import numpy as np

        out = node.output[0]
        if node.op_type == "Shape":
            of = attributes(node)
            extents = self.shape(node.input[0])[slice(of.get("start"), of.get("end"))]
            self.values[out] = np.array(extents, dtype=np.int64)
            return
        if node.op_type == "Size":
            self.values[out] = np.array(math.prod(self.shape(node.input[0])), dtype=np.int64)
            return
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        if node.op_type == "CastLike":
            kind = helper.tensor_dtype_to_np_dtype(self.types[out].tensor_type.elem_type)
            self.values[out] = self.values[node.input[0]].astype(kind)
            return

        given = {name: self.values[name] for name in node.input if name}
        try:
            with np.errstate(all="ignore"):
                (value,) = ReferenceEvaluator(node).run(None, given)
        except Exception:
            return  # what needs it says that it is not known
        if isinstance(value, np.ndarray) and value.shape == self.shape(out):
            self.values[out] = value


def attributes(node: NodeProto) -> Attributes:
    """Attributes of an operator by name, texts as such."""
    from onnx import helper

    found = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    return {k: v.decode(errors="replace") if isinstance(v, bytes) else v for k, v in found.items()}


def numbers_of(tensor: TensorProto, most: int = MOST_VALUES) -> Array | None:
    """The numbers of a tensor of a file, None where there are many or they are not in it.

    Parameters
    ----------
    tensor
        The tensor.
    most
        How many there are at most. [items]
    """
    from onnx import TensorProto, numpy_helper

    if math.prod(tensor.dims) > most or tensor.data_location == TensorProto.EXTERNAL:
        return None
    try:
        value: Array = numpy_helper.to_array(tensor)
    except Exception:
        return None  # its data are not as many as it says
    return value


def is_mask(value: Array) -> bool:
    """Whether numbers hide some of the scores of attention."""
    kind = value.dtype.kind
    return value.ndim >= 2 and (kind == "b" or (kind == "f" and bool((value <= HIDDEN).any())))


def hides_later(value: Array) -> bool:
    """Whether a mask tells later positions from others, and nothing else."""
    import numpy as np

    rows, columns = value.shape[-2:]
    if rows != columns or rows < 2:
        return False
    hidden = value if value.dtype.kind == "b" else value <= HIDDEN
    upper = np.triu(np.ones((rows, rows), dtype=bool), 1)
    above, below = hidden[..., upper], hidden[..., ~upper]
    return bool((above.all() and not below.any()) or (below.all() and not above.any()))


def _module_calls(node: NodeProto) -> list[tuple[str, str, str]]:
    """The modules that an operator is of, where the file says it: PyTorch's exporters do."""
    for one in node.metadata_props:
        if one.key == "pkg.torch.onnx.name_scopes":
            paths = re.findall(r"'([^']*)'", one.value)[:-1]
            # outside of all modules stands what PyTorch adds itself
            return [(path, clean(path), "") for path in paths if not path.startswith("_empty")]
    if node.name.startswith("/"):
        steps = node.name.strip("/").split("/")[:-1]
        paths = [".".join(steps[: n + 1]) for n in range(len(steps))]
        return [(path, clean(path), "") for path in paths]
    return []


def module_of(node: NodeProto) -> str:
    """The module that an operator is of, whichever of its calls: empty where none is said."""
    path = next((path for path, *_ in _module_calls(node)[::-1] if path), "")
    # older exporters number the calls of a module
    return re.sub(r"_\d+(?=\.|$)", "", path) if node.name.startswith("/") else path
