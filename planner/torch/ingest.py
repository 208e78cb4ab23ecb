"""A module of PyTorch as a network: trace it, and turn its operators into layers.

Operators are named after the module that runs them, so that blocks of a network that are alike are
told by their names as those of built-in networks are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from planner.torch.nodes import data_nodes, module_calls, operator_of, shape_of
from planner.torch.operators import OPERATORS
from planner.torch.regions import Region, find_regions
from planner.torch.trace import is_free_control, trace
from planner.torch.translation import USUAL_AXES, Constant, Translation, UnsupportedError, features
from planner.torch.values import Value

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An input of a module.

    Parameters
    ----------
    name
        The argument, empty for one that is given by its place.
    tensor
        A tensor of its shape and type, or a value that is no tensor.
    """

    name: str
    tensor: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedNetwork:
    """The network that a module is, with all that it was made of.

    Parameters
    ----------
    network
        The network.
    program
        The operators of the module.
    translation
        Which of them make which layer.
    """

    network: Network
    program: ExportedProgram
    translation: Translation


def network_of_module(module: object, samples: Sequence[Sample], name: str) -> TracedNetwork:
    """The network that a module is.

    Parameters
    ----------
    module
        The module, on the device "meta".
    samples
        Its inputs, all with as many samples.
    name
        What the network is called.

    Raises
    ------
    InputError
        When it cannot be traced, or its inputs have no samples in common.
    """
    tensors = [one.tensor for one in samples if hasattr(one.tensor, "shape")]
    batches = {one.shape[0] if one.dim() else 0 for one in tensors}
    if len(batches) != 1 or 0 in batches:
        shapes = ", ".join(str(list(one.shape)) for one in tensors)
        raise InputError(
            f"{name}: the first extent of all inputs must be the samples but inputs are {shapes}; "
            "correct them"
        )
    args = [one.tensor for one in samples if not one.name]
    program = trace(module, args, {one.name: one.tensor for one in samples if one.name}, name)
    net = translated(program, batches.pop(), name)
    shape = {axis.name: axis.extent for axis in net.tensors["input"].axes[1:]}
    network = Network(
        name=name,
        input_shape=shape,
        layers=tuple(net.rows),
        source="a PyTorch module",
        notes=" ".join(net.remarks),
    )
    build_graph(network, 1)
    return TracedNetwork(network=network, program=program, translation=net)


def translated(program: ExportedProgram, batch: int, name: str) -> Translation:
    """The layers of a traced module.

    Parameters
    ----------
    program
        The module.
    batch
        Samples of the trace. [items]
    name
        What error messages call it.
    """
    nodes = list(program.graph.nodes)
    signature = program.graph_signature
    parameters = signature.inputs_to_parameters
    inputs = set(signature.user_inputs)
    data = data_nodes(nodes, inputs)
    net = Translation(
        batch=batch,
        sizes={parameters[node.name]: _size(node) for node in nodes if node.name in parameters},
        leaves=_leaf_paths(nodes),
    )
    for node in nodes:
        if node.op == "placeholder":
            weights = [parameters[node.name]] if node.name in parameters else []
            net.known[node] = Constant(weights=frozenset(weights))
    _enter(net, [node for node in nodes if node.name in inputs and node in data])
    _translate(net, nodes, data)
    _end(net, program, name)
    return net


def _size(node: Node) -> int:
    size = 1
    for extent in shape_of(node):
        size *= extent
    return size


def _leaf_paths(nodes: Sequence[Node]) -> frozenset[str]:
    """Paths of modules inside of which no other one is called."""
    paths, outer = set(), set()
    for node in nodes:
        calls = [path for _, path, _ in module_calls(node)]
        paths.update(calls[-1:])
        outer.update(calls[:-1])
    return frozenset(paths - outer - {""})


def _enter(net: Translation, inputs: Sequence[Node]) -> None:
    """The inputs: the first is that of the network, others of another shape are made of it."""
    first: dict[str, int] = {}
    for node in inputs:
        axes = _input_axes(node)
        if not first:
            first, net.known[node] = axes, net.enter("input", axes)
        elif axes == first:
            net.known[node] = net.value("input")
        else:
            layer = net.add(node, "rearrange", "input", axes=axes, along={})
            net.known[node] = net.value(layer)


def _input_axes(node: Node) -> dict[str, int]:
    """Axes of an input: tokens where it is of whole numbers, else by its rank and its readers."""
    extents = shape_of(node)[1:]
    names = USUAL_AXES.get(len(extents), ())
    if len(extents) == 1 and not node.meta["val"].dtype.is_floating_point:
        names = ("sequence",)
    readers = {operator_of(one) for one in node.users if one.op == "call_function"}
    if len(extents) == 2 and any("1d" in name for name in readers):
        names = ("channel", "width")
    if not names:
        raise InputError(
            f"the input {node.name} must have from 1 to 4 dims beside the samples but has "
            f"{len(extents)}; reshape it inside of the module"
        )
    return dict(zip(names, extents, strict=True))


def _translate(net: Translation, nodes: Sequence[Node], data: set[Node]) -> None:
    """Every operator in order; what several are together comes first."""
    regions: dict[Node, Region] = {}
    for region in find_regions(nodes, data):
        if not any(node in regions for node in region.nodes):
            regions |= dict.fromkeys(region.nodes, region)
    left: set[Node] = set()
    for node in nodes:
        if node.op not in ("call_function", "get_attr"):
            continue
        if node not in data:
            weights = [
                one.weights
                for source in node.all_input_nodes
                if isinstance(one := net.known.get(source), Constant)
            ]
            net.known[node] = Constant(weights=frozenset().union(*weights))
            continue
        if node not in regions or node in left:
            _one(net, node, data)
        elif node is (region := regions[node]).last:
            before = len(net.rows)
            try:
                found = region.make(net)
                net.known |= dict.fromkeys(region.nodes, found)
                net.nodes[net.rows[-1].name] = tuple(n for n in nodes if n in region.nodes)
            except (UnsupportedError, InputError):
                _forget(net, before)
                left |= region.nodes
                for each in nodes:
                    if each in region.nodes and each.op == "call_function":
                        _one(net, each, data)
                    if each is node:
                        break


def _forget(net: Translation, count: int) -> None:
    """Take back layers that are no use."""
    for row in net.rows[count:]:
        del net.tensors[row.name], net.nodes[row.name]
        net.owners = {weight: at for weight, at in net.owners.items() if at != row.name}
    del net.rows[count:]


def _one(net: Translation, node: Node, data: set[Node]) -> None:
    """One operator: as a kind of layer where one describes it, else as an opaque one."""
    name = operator_of(node)
    if name == "_assert_tensor_metadata":
        return
    if is_free_control(node):
        _translate_part(net, node, data)
        return
    before, owners = len(net.rows), dict(net.owners)
    try:
        if name not in OPERATORS:
            raise UnsupportedError
        net.known[node] = OPERATORS[name](net, node)
    except (UnsupportedError, InputError):
        _forget(net, before)
        net.owners = owners
        net.known[node] = net.opaque(node)


def _translate_part(net: Translation, node: Node, data: set[Node]) -> None:
    """The operators of a part of a module that is run as it is."""
    place = next(n for n, one in enumerate(node.args) if getattr(one, "op", "") == "get_attr")
    module: Any = node.graph.owning_module
    for part in str(node.args[place].target).split("."):
        module = getattr(module, part)
    nodes = list(module.graph.nodes)
    entries = [one for one in nodes if one.op == "placeholder"]
    given: dict[str, object] = {}
    for one, source in zip(entries, node.args[place + 1 :], strict=True):
        net.known[one] = net.known.get(source, Constant())
        if source in data:
            given[one.name] = source
    _translate(net, nodes, data_nodes(nodes, set(given)))
    results = nodes[-1].args[0]
    found = [net.known.get(one) for one in results]
    net.known[node] = tuple(found)


def _forget_unread(net: Translation, read: set[str]) -> None:
    """Take out layers whose output nobody reads: they are not trained."""
    kept = []
    for row in reversed(net.rows):
        if row.name in read or row.kind == "loss":
            kept.append(row)
            read.update(row.inputs)
    net.rows = kept[::-1]


def _end(net: Translation, program: ExportedProgram, name: str) -> None:
    """The loss, where the module has none; and a check that there is anything to plan."""
    outputs: Mapping[str, Node] = {node.name: node for node in program.graph.nodes}
    values = [
        value
        for one in program.graph_signature.user_outputs
        if isinstance(value := net.known.get(outputs.get(str(one))), Value)
    ]
    if not net.rows or not values:
        raise InputError(
            f"{name} cannot be planned: its output must depend on its inputs but does not; return "
            "what is trained"
        )
    _forget_unread(net, {value.layer for value in values})
    last = values[0]
    if (
        last.dims
        and not any(row.kind == "loss" for row in net.rows)
        and features(last) in last.axes
    ):
        node = outputs[str(program.graph_signature.user_outputs[0])]
        value = net.settled(node, last)
        row = net.add(node, "loss", value.layer)
        tensor = net.tensors.pop(row)
        made = net.rows.pop()
        del net.nodes[row]
        called = "loss" if "loss" not in net.tensors else f"{row}.loss"
        net.tensors[called] = tensor
        net.nodes[called] = ()
        net.rows.append(type(made)(name=called, kind="loss", inputs=made.inputs, options={}))
        net.remarks["A softmax and cross entropy over the features of the output is added."] = None
