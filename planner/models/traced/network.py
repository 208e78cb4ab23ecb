"""A network from operators: how what was traced becomes layers.

Operators are named after the module that runs them, so that blocks of a network that are alike are
told by their names as those of built-in networks are.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from planner.models.traced.nodes import TracedNode, data_nodes, num_elements
from planner.models.traced.operators import OPERATORS
from planner.models.traced.regions import Region, find_regions
from planner.models.traced.translation import (
    USUAL_AXES,
    Constant,
    Translation,
    UnsupportedError,
    features,
)
from planner.models.traced.values import Value


def network_of_nodes(
    nodes: Sequence[TracedNode],
    outputs: Sequence[TracedNode],
    *,
    batch: int,
    name: str,
    source: str,
) -> Network:
    """The network that operators are.

    Parameters
    ----------
    nodes, outputs, batch, name, source
        As of `translated_nodes`.

    Raises
    ------
    InputError
        When there is nothing to plan.
    """
    return translated_nodes(nodes, outputs, batch=batch, name=name, source=source)[0]


def translated_nodes(
    nodes: Sequence[TracedNode],
    outputs: Sequence[TracedNode],
    *,
    batch: int,
    name: str,
    source: str,
) -> tuple[Network, Translation]:
    """The network that operators are, and which of them make which layer.

    Parameters
    ----------
    nodes
        All operators and what they are given, each after those that it reads.
    outputs
        Those whose tensors are the result.
    batch
        Samples of the trace. [items]
    name
        What the network is called.
    source
        Where it is from, in words.

    Raises
    ------
    InputError
        When there is nothing to plan.
    """
    data = data_nodes(nodes)
    net = Translation(
        batch=batch,
        sizes={node.weight: num_elements(node.shape) for node in nodes if node.weight},
        leaves=_leaf_paths(nodes),
        frozen=frozenset(node.weight for node in nodes if node.frozen),
    )
    for node in nodes:
        if not node.is_call:
            weights = [node.weight] if node.weight else []
            net.known[node] = Constant(weights=frozenset(weights))
    _enter(net, [node for node in nodes if node.is_input])
    _translate(net, nodes, data)
    _end(net, outputs, name)
    net.freeze()
    network = Network(
        name=name,
        input_shape={axis.name: axis.extent for axis in net.tensors["input"].axes[1:]},
        layers=tuple(net.rows),
        source=source,
        notes=" ".join(net.remarks),
    )
    build_graph(network, 1)
    return network, net


def _leaf_paths(nodes: Sequence[TracedNode]) -> frozenset[str]:
    """Paths of modules inside of which no other one is called."""
    paths, outer = set(), set()
    for node in nodes:
        calls = [path for _, path, _ in node.calls]
        paths.update(calls[-1:])
        outer.update(calls[:-1])
    return frozenset(paths - outer - {""})


def _enter(net: Translation, inputs: Sequence[TracedNode]) -> None:
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


def _input_axes(node: TracedNode) -> dict[str, int]:
    """Axes of an input: tokens where it is of whole numbers, else by its rank and its readers."""
    # one number for each sample, such as the class that it is of
    extents = node.shape[1:] or (1,)
    names = USUAL_AXES.get(len(extents), ())
    if node.shape[1:] == extents[:1] and node.whole_numbers:
        names = ("sequence",)
    readers = {one.operator for one in node.users}
    if len(extents) == 2 and any("1d" in name for name in readers):
        names = ("channel", "width")
    if not names:
        raise InputError(
            f"the input {node.name} must have from 1 to 4 dims beside the samples but has "
            f"{len(extents)}; reshape it inside of the module"
        )
    return dict(zip(names, extents, strict=True))


def _translate(net: Translation, nodes: Sequence[TracedNode], data: set[TracedNode]) -> None:
    """Every operator in order; what several are together comes first."""
    regions: dict[TracedNode, Region] = {}
    for region in find_regions(nodes, data):
        if not any(node in regions for node in region.nodes):
            regions |= dict.fromkeys(region.nodes, region)
    left: set[TracedNode] = set()
    for node in nodes:
        if not node.is_call:
            continue
        if node not in data:
            net.known[node] = net.constant(node)
            continue
        if node not in regions or node in left:
            _one(net, node)
        elif node is (region := regions[node]).last:
            before, owners = len(net.rows), dict(net.owners)
            try:
                found = region.make(net)
                net.known |= dict.fromkeys(region.nodes, found)
                net.nodes[net.rows[-1].name] = tuple(n for n in nodes if n in region.nodes)
            except (UnsupportedError, InputError):
                _forget(net, before)
                net.owners = owners
                left |= region.nodes
                for each in nodes:
                    if each in region.nodes:
                        _one(net, each)
                    if each is node:
                        break


def _forget(net: Translation, count: int) -> None:
    """Take back layers that are no use."""
    for row in net.rows[count:]:
        del net.tensors[row.name], net.layers[row.name], net.nodes[row.name]
        net.owners = {weight: at for weight, at in net.owners.items() if at != row.name}
    del net.rows[count:]


def _one(net: Translation, node: TracedNode) -> None:
    """One operator: as a kind of layer where one describes it, else as an opaque one."""
    name = node.operator
    if name == "_assert_tensor_metadata" or (name == "getitem" and not node.users):
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


def _forget_unread(net: Translation, read: set[str]) -> None:
    """Take out layers whose output nobody reads: they are not trained."""
    kept = []
    for row in reversed(net.rows):
        if row.name in read or row.kind == "loss":
            kept.append(row)
            read.update(row.inputs, filter(None, [row.options.get("share")]))
    net.rows = kept[::-1]


def _end(net: Translation, outputs: Sequence[TracedNode], name: str) -> None:
    """The loss, where there is none; and a check that there is anything to plan."""
    values = [(one, known) for one in outputs if isinstance(known := net.known.get(one), Value)]
    if not net.rows or not values:
        raise InputError(
            f"{name} cannot be planned: it must compute its output from its inputs but does not; "
            "return what is trained"
        )
    _forget_unread(net, {value.layer for _, value in values})
    node, last = values[0]
    if 0 in node.shape:
        shape = ", ".join(map(str, node.shape))
        raise InputError(
            f"{name} cannot be planned: its output must have values but is of the shape "
            f"[{shape}]; give its layers at least one feature"
        )
    if (
        last.dims
        and not any(row.kind == "loss" for row in net.rows)
        and features(last) in last.axes
    ):
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
