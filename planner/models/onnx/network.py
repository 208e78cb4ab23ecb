"""A network from an ONNX file: every operator in the terms of traced modules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from costmodels.errors import InputError
from costmodels.graph import Network
from planner.models.onnx.files import clean, read_model, shown
from planner.models.onnx.graph import (
    MOST_OF_A_MASK,
    MOST_VALUES,
    OnnxGraph,
    attributes,
    hides_later,
    is_mask,
    numbers_of,
)
from planner.models.onnx.inputs import input_shapes
from planner.models.onnx.operators import translate
from planner.models.traced.network import network_of_nodes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def network_of_onnx(path: str | os.PathLike[str], inputs: object) -> Network:
    """The network of an ONNX file.

    Parameters
    ----------
    path
        The file.
    inputs
        Shapes of its inputs, where the file leaves them open.

    Raises
    ------
    InputError
        When it is no ONNX file, or nothing can be planned of it.
    """
    called = os.fspath(path)
    model = read_model(called)
    shapes, symbols = input_shapes(model.graph, inputs, called)
    graph = OnnxGraph(model=model, called=called, symbols=symbols)
    for node in model.graph.node:
        for name in filter(None, node.input):
            graph.readers.setdefault(name, []).append(node)
    _give_tensors(graph, model, shapes)
    done: set[str] = set(graph.known)
    for node in model.graph.node:
        missing = [name for name in node.input if name and name not in done]
        twice = [name for name in node.output if name and name in done]
        if missing or twice:
            word = "reads" if missing else "writes"
            rule = "be written once, before it is read"
            raise InputError(
                f"{called} cannot be planned: every tensor must {rule} but {shown(node)} {word} "
                f"'{clean((missing or twice)[0])}', which is {'not yet' if missing else 'already'} "
                "there; export it again"
            )
        try:
            if not _is_of_sequences(graph, node):
                graph.infer(node)
                translate(graph, node)
        except InputError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # what shape inference lets pass, ill-formed attributes for example
            raise InputError(
                f"{called} cannot be planned: {shown(node)} is not written as ONNX has it "
                f"({type(error).__name__}); export it again"
            ) from None
        done.update(filter(None, node.output))
    _check_outputs(graph)
    outputs = [graph.known[one.name] for one in model.graph.output if one.name in graph.known]
    batch = next(iter(shapes.values()))[0]
    name = clean(Path(called).stem) or "model"
    return network_of_nodes(graph.nodes, outputs, batch=batch, name=name, source="an ONNX file")


def _check_outputs(graph: OnnxGraph) -> None:
    """Refuse outputs of other extents than the file says, where it leaves none of its inputs open.

    Where it does, what it says of outputs is often of the sample that it was exported with.
    """
    ends = (graph.model.graph.input, graph.model.graph.output)
    dims = [[one.type.tensor_type.shape.dim for one in rows] for rows in ends]
    if any(not one.HasField("dim_value") for row in dims[0] for one in row):
        return
    for one, row in zip(graph.model.graph.output, dims[1], strict=True):
        if one.name not in graph.types or not one.type.tensor_type.HasField("shape"):
            continue
        found = graph.shape(one.name)
        said = [dim.dim_value if dim.HasField("dim_value") else None for dim in row]
        if len(said) == len(found) and all(
            extent in (None, real) for extent, real in zip(said, found, strict=True)
        ):
            continue
        raise InputError.rule(
            f"the output '{clean(one.name)}' of {graph.called}",
            f"have the extents {['?' if extent is None else extent for extent in said]} that the "
            "file says",
            list(found),
            "export it again",
        )


def _is_of_sequences(graph: OnnxGraph, node: NodeProto) -> bool:
    """Whether an operator cuts a tensor into a list, or takes one of it: this is a split."""
    from onnx import helper

    if node.op_type == "SplitToSequence" and len(node.input) > 1:
        sizes = graph.numbers(node, 1)
        of, shape = attributes(node), graph.shape(node.input[0])
        axis = int(of.get("axis", 0))
        if sizes is None or not shape or not -len(shape) <= axis < len(shape):
            return False
        if not graph.shape(node.input[1]):
            step, whole = max(sizes[0], 1), shape[axis]
            sizes = [min(step, whole - start) for start in range(0, whole, step)]
        if len(sizes) > MOST_VALUES:
            return False
        names = [f"{node.output[0]}.{number}" for number in range(len(sizes))]
        cut = helper.make_node(
            "Split", [node.input[0], f"{node.output[0]}.sizes"], names, axis=axis
        )
        cut.metadata_props.extend(node.metadata_props)
        tensor = helper.make_tensor(cut.input[1], 7, [len(sizes)], sizes)
        _give_constant(graph, tensor, "", False)
        graph.infer(cut)
        translate(graph, cut)
        graph.sequences[node.output[0]] = names
        return True
    if node.op_type != "SequenceAt" or len(node.input) != 2:
        return False
    if node.input[0] not in graph.sequences:
        return False
    names, place = graph.sequences[node.input[0]], graph.numbers(node, 1)
    if not place or not -len(names) <= place[0] < len(names):
        return False
    name = names[place[0]]
    graph.known[node.output[0]] = graph.known[name]
    graph.types[node.output[0]] = graph.types[name]
    return True


def _give_tensors(graph: OnnxGraph, model: ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
    """Inputs and weights.

    Parameters
    ----------
    graph, model
        What is known so far, and the file.
    shapes
        Of the inputs. [items]
    """
    from onnx import TensorProto, helper

    types = {one.name: one.type.tensor_type.elem_type for one in model.graph.input}
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
    for name, shape in shapes.items():
        graph.give(
            name,
            helper.make_tensor_type_proto(types[name], shape),
            is_input=True,
            whole_numbers=types[name] not in floats,
        )
    kinds = {
        one.name: prop.value
        for one in (*model.graph.value_info, *model.graph.input)
        for prop in one.metadata_props
        if prop.key == _KIND
    }
    sparse = [one.values for one in model.graph.sparse_initializer]
    for tensor in (*model.graph.initializer, *sparse):
        if tensor.name in graph.known:
            continue
        if any(extent < 0 for extent in tensor.dims):
            raise InputError.rule(
                f"the extents of '{clean(tensor.name)}' of {graph.called}",
                "be at least 0",
                list(tensor.dims),
                "export it again",
            )
        _give_constant(graph, tensor, kinds.get(tensor.name, ""), tensor.data_type in floats)


def _give_constant(graph: OnnxGraph, tensor: TensorProto, kind: str, floats: bool) -> None:
    """A tensor of the file, which is trained if nothing says that it is not.

    Parameters
    ----------
    graph, tensor
        What is known so far, and the tensor.
    kind
        What PyTorch's exporter says of it: "PARAMETER", or something else.
    floats
        Whether it can be trained.
    """
    from onnx import helper

    square = len(tensor.dims) > 1 and tensor.dims[-1] == tensor.dims[-2]
    value = numbers_of(tensor, MOST_OF_A_MASK if square else MOST_VALUES)
    mask = value is not None and is_mask(value)
    several = len(tensor.dims) > 0 and any(extent != 1 for extent in tensor.dims)
    trained = kind == "PARAMETER" if kind else floats and several and not mask
    graph.give(
        tensor.name,
        helper.make_tensor_type_proto(tensor.data_type, tensor.dims),
        weight=tensor.name if trained else "",
        hides_later=mask and value is not None and hides_later(value),
    )
    if value is not None and value.size <= MOST_VALUES:
        graph.values[tensor.name] = value
