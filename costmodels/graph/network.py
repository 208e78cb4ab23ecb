"""Networks: a description that files hold, and the graph of layers that is made of it.

A `Network` is data: an input shape and a list of layers with their options. Given a batch size it
becomes a `Graph` of iteration spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from numbers import Integral, Real
from typing import Any

from msgspec import Struct, structs
from msgspec.structs import replace

from costmodels.errors import InputError, closest, printable, require_name
from costmodels.graph.freezing import without_backward
from costmodels.graph.kinds import KINDS, NUM_INPUTS, data, make_layer
from costmodels.graph.layer import SPATIAL_DIMS, Layer, Tensor
from costmodels.graph.sharing import check_shared_weights, owners_resolved

# what one sample may be made of
INPUT_AXES = ("channel", "depth", "height", "width", "sequence", "hidden")


def _axis_order(axis: str) -> int:
    return INPUT_AXES.index(axis) if axis in INPUT_AXES else len(INPUT_AXES)


def _plain_value(value: object) -> object:
    """An option as files have it: tuples, and numbers of the language itself."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain_value, value))
    if isinstance(value, Mapping):
        return {str(key): _plain_value(each) for key, each in value.items()}
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


class LayerSpec(Struct, frozen=True, kw_only=True):
    """One layer of a network description: kind, the layers it reads, options of the kind."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        # files have lists and programs numbers of their own, which would make equal layers differ
        options = {option: _plain_value(value) for option, value in self.options.items()}
        structs.force_setattr(self, "options", options)
        structs.force_setattr(self, "inputs", tuple(self.inputs or ()))


class Network(Struct, frozen=True, kw_only=True):
    """A network without a batch size.

    Parameters
    ----------
    name
        Name of the network.
    input_shape
        Axes of one sample: channel and up to three of depth, height, width; or sequence. [items]
    layers
        The layers, each after those it reads or in any order.
    source
        Where the architecture is published.
    notes
        What a reader must know, such as inferred figures.
    """

    name: str
    input_shape: Mapping[str, int]
    layers: tuple[LayerSpec, ...]
    source: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        require_name("the name of a network", self.name)
        for spec in self.layers:
            require_name(f"network '{self.name}': the name of a layer", spec.name)
        # kernels are given for depth, height and width, whatever the order of the axes
        shape = {axis: self.input_shape[axis] for axis in sorted(self.input_shape, key=_axis_order)}
        structs.force_setattr(self, "input_shape", shape)
        structs.force_setattr(self, "layers", tuple(self.layers))
        for text in ("source", "notes"):
            structs.force_setattr(self, text, printable(getattr(self, text)))


class Edge(Struct, frozen=True, kw_only=True):
    """The output of layer `source` read as input number `slot` of layer `target`."""

    source: str
    target: str
    slot: int


class Graph(Struct, frozen=True, kw_only=True, dict=True):
    """Layers in topological order and the activations that flow between them."""

    name: str
    layers: Mapping[str, Layer]
    edges: tuple[Edge, ...]

    @cached_property
    def producers(self) -> Mapping[str, tuple[Edge, ...]]:
        """Edges into each layer, by slot."""
        into: dict[str, list[Edge]] = {name: [] for name in self.layers}
        for edge in self.edges:
            into[edge.target].append(edge)
        return {name: tuple(edges) for name, edges in into.items()}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Edge, ...]]:
        """Edges out of each layer."""
        out: dict[str, list[Edge]] = {name: [] for name in self.layers}
        for edge in self.edges:
            out[edge.source].append(edge)
        return {name: tuple(edges) for name, edges in out.items()}

    @cached_property
    def compute_layers(self) -> tuple[Layer, ...]:
        """All layers but the inputs, in topological order."""
        return tuple(layer for layer in self.layers.values() if layer.kind != "input")

    @cached_property
    def sharers(self) -> Mapping[str, tuple[str, ...]]:
        """For each weight that several layers use, its owner and the other layers in order."""
        users: dict[str, list[str]] = {}
        for layer in self.compute_layers:
            if layer.shares_weight_with is not None:
                users.setdefault(layer.shares_weight_with, []).append(layer.name)
        return {owner: tuple(names) for owner, names in users.items()}

    def input_gradients(self, name: str) -> tuple[bool, ...]:
        """For each input of a layer, whether backward must send a gradient to it."""
        return tuple(self.needs_input_gradient(edge) for edge in self.producers[name])

    @cached_property
    def untrained(self) -> frozenset[str]:
        """Layers that hold and read nothing trained, frozen or not: no gradient goes into them."""
        found: set[str] = set()
        for layer in self.compute_layers:
            before = {edge.source for edge in self.producers[layer.name]}
            rest = (self.layers[source].kind for source in before - found)
            nothing = not layer.parameters and all(kind == "input" for kind in rest)
            if nothing or layer.stops_gradient:
                found.add(layer.name)
        return frozenset(found)

    def needs_input_gradient(self, edge: Edge) -> bool:
        """Whether backward sends a gradient along the edge: not into data, nor what is frozen."""
        if self.layers[edge.target].stops_gradient:
            return False
        return self.layers[edge.source].kind != "input" and edge.source not in self.untrained

    @property
    def parameters(self) -> int:
        """Trainable numbers, shared weights counted once. [items]"""
        return sum(
            layer.parameters for layer in self.layers.values() if not layer.shares_weight_with
        )

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass of the whole batch. [items]"""
        return sum(layer.macs for layer in self.layers.values())


def _after_inputs(network: Network) -> list[LayerSpec]:
    """Layers after all they read, else in the order given."""
    names = [spec.name for spec in network.layers]
    if not names:
        raise InputError(f"network '{network.name}': it must have layers but has none; add one")
    if len(set(names)) != len(names) or "input" in names:
        twice = sorted({n for n in names if names.count(n) > 1} | ({"input"} & set(names)))
        raise InputError(
            f"network '{network.name}': layer names must be unique and not 'input' but "
            f"'{twice[0]}' is taken; rename the layer"
        )
    known, seen, in_order = {"input", *names}, {"input"}, True
    for spec in network.layers:
        if not spec.inputs:
            raise InputError(
                f"network '{network.name}': layer '{spec.name}' must read at least one layer; "
                "give inputs = ['input'] for the first"
            )
        for source in spec.inputs:
            if source not in known:
                raise InputError(
                    f"network '{network.name}': layer '{spec.name}' reads '{source}', which is no "
                    f"layer; name one of {closest(source, ['input', *names])}"
                )
        in_order = in_order and seen.issuperset(spec.inputs)
        seen.add(spec.name)
    return list(network.layers) if in_order else _sorted_layers(network)


def _sorted_layers(network: Network) -> list[LayerSpec]:
    """Layers after all they read, where the order given is another."""
    specs = {spec.name: spec for spec in network.layers}
    index = {name: place for place, name in enumerate(specs)}
    order = TopologicalSorter({n: set(spec.inputs) - {"input"} for n, spec in specs.items()})
    try:
        order.prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise InputError(
            f"network '{network.name}': layers must not form a cycle but {cycle} does; remove "
            "the edge that goes back"
        ) from None
    ready: list[tuple[int, str]] = []
    ordered = []
    while order.is_active():
        for name in order.get_ready():
            heappush(ready, (index[name], name))
        # the order given is kept wherever it is possible
        name = heappop(ready)[1]
        ordered.append(specs[name])
        order.done(name)
    return ordered


def build_graph(network: Network, batch: int) -> Graph:
    """The graph of a network for a global batch.

    Parameters
    ----------
    network
        The description.
    batch
        Samples in the global batch. [items]

    Raises
    ------
    InputError
        When names clash, a layer is missing, layers form a cycle, or a shape does not fit.
    """
    if batch < 1:
        raise InputError.rule(
            "the global batch",
            "be at least 1 sample",
            batch,
            "raise it",
        )
    _check_input(network)
    layers: dict[str, Layer] = {"input": data("input", {"sample": batch, **network.input_shape})}
    edges: list[Edge] = []
    made: dict[tuple[object, ...], Layer] = {}
    # distinct tensors by number: of each, of what a layer writes that is made, and of each layer
    numbers = {layers["input"].output: 0}
    outputs: dict[tuple[object, ...], int] = {}
    written = {"input": 0}
    for spec in _after_inputs(network):
        if spec.kind not in KINDS:
            raise InputError(
                f"network '{network.name}': layer '{spec.name}' has the unknown kind "
                f"'{spec.kind}'; use one of {closest(spec.kind, list(KINDS))}"
            )
        tensors = [layers[source].output for source in spec.inputs]
        # blocks are alike: what reads equal tensors is the same layer by another name
        like = (spec.kind, repr(spec.options), *(written[source] for source in spec.inputs))
        if like in made:
            layer = made[like].renamed(spec.name)
        else:
            layer = made[like] = _make_layer(network.name, spec, tensors)
            outputs[like] = numbers.setdefault(layer.output, len(numbers))
        written[spec.name] = outputs[like]
        # attention reads its one input twice: queries, and keys with values
        sources = spec.inputs if len(layer.inputs) == len(spec.inputs) else spec.inputs * 2
        edges += [Edge(source=s, target=spec.name, slot=i) for i, s in enumerate(sources)]
        layers[spec.name] = layer
    _check_losses(network)
    check_shared_weights(network.name, layers)
    layers = owners_resolved(network.name, layers)
    graph = Graph(name=network.name, layers=layers, edges=tuple(edges))
    kept = {name: without_backward(layers[name]) for name in graph.untrained}
    return replace(graph, layers={**layers, **kept}) if kept else graph


def _check_input(network: Network) -> None:
    """Refuse samples that no layer could read."""
    for axis in network.input_shape:
        if axis not in INPUT_AXES:
            raise InputError(
                f"network '{network.name}': the input has the unknown axis '{axis}'; use one of "
                f"{closest(axis, INPUT_AXES)}"
            )
    spatial = [axis for axis in network.input_shape if axis in SPATIAL_DIMS]
    if spatial and "channel" not in network.input_shape:
        raise InputError(
            f"network '{network.name}': an input with {' and '.join(spatial)} must have a channel, "
            "too, but has none; add channel = 1"
        )


def _check_losses(network: Network) -> None:
    """Refuse a loss that something reads: it ends the forward pass."""
    losses = {spec.name for spec in network.layers if spec.kind == "loss"}
    for spec in network.layers:
        for source in spec.inputs:
            if source in losses:
                raise InputError(
                    f"network '{network.name}': a loss must be the last layer, which none reads, "
                    f"but '{spec.name}' reads '{source}'; correct its inputs, use softmax, "
                    "or end in one loss alone"
                )


def _make_layer(network: str, spec: LayerSpec, tensors: list[Tensor]) -> Layer:
    expected = NUM_INPUTS.get(spec.kind, 1)
    if expected is not None and len(tensors) != expected:
        raise InputError(
            f"network '{network}': layer '{spec.name}' of kind '{spec.kind}' must read {expected} "
            f"tensor(s) but reads {len(tensors)}; correct its inputs"
        )
    try:
        return make_layer(spec.kind, spec.name, tensors, spec.options)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"network '{network}': layer '{spec.name}' of kind '{spec.kind}' cannot be made of "
            f"{len(tensors)} input(s) and options {dict(spec.options)}: {error}; correct them"
        ) from error
