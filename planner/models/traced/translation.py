"""From a traced module to the layers of a network: what all operators share.

Every tensor that depends on the samples is a `Value` of a layer; what does not (weights, masks,
tables of positions) is a `Constant`, which costs nothing but the weights that it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.graph import SPATIAL_DIMS, Layer, LayerSpec, Tensor
from costmodels.graph.kinds import data, make_layer
from costmodels.graph.sharing import shared_dims
from planner.models.traced.nodes import TracedNode, nodes_in
from planner.models.traced.values import Value, reshaped, whole

# What axes of a tensor are called where nothing else says so, by how many there are.
USUAL_AXES: Mapping[int, tuple[str, ...]] = {
    1: ("channel",),
    2: ("sequence", "hidden"),
    3: ("channel", "height", "width"),
    4: ("channel", "depth", "height", "width"),
}


# Operators that make several tensors of one.
SPLITS = (
    *("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split"),
    "unbind",
)


class UnsupportedError(Exception):
    """An operator that is used as no kind of layer describes it."""


class Constant(Struct, frozen=True, kw_only=True):
    """A tensor that does not depend on the samples: the trained numbers that it is made of."""

    weights: frozenset[str] = frozenset()


class Translation(Struct, kw_only=True):
    """The layers found so far, and what every node is.

    Parameters
    ----------
    batch
        Samples of the trace. [items]
    sizes
        Numbers of each weight, by its name, and of parts of it. [items]
    leaves
        Paths of modules that call no others.
    frozen
        Weights that are not trained.
    known
        What each node that was translated is.
    rows, layers, tensors
        The layers, and what they write.
    nodes
        Operators that each layer is; none where it is only added.
    moves
        Of each layer that copies a tensor to other axes: what it reads, and what it writes.
    owners
        The layer that each weight is counted at.
    parts
        Of parts of weights: the weight.
    remarks
        Where layers are costed as others.
    """

    batch: int
    sizes: dict[str, int]
    leaves: frozenset[str]
    frozen: frozenset[str] = frozenset()
    known: dict[object, object] = field(default_factory=dict)
    rows: list[LayerSpec] = field(default_factory=list)
    layers: dict[str, Layer] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: dict[str, tuple[TracedNode, ...]] = field(default_factory=dict)
    moves: dict[str, tuple[Value, Value]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)

    def enter(self, name: str, axes: Mapping[str, int]) -> Value:
        """The samples themselves."""
        self.tensors[name] = data(name, {"sample": self.batch, **axes}).output
        return self.value(name, ("sample", *axes))

    def name(self, node: TracedNode) -> str:
        """What the layer of an operator is called: its module, and itself where that has more."""
        calls = node.calls
        path = calls[-1][1] if calls else ""
        base = path if path in self.leaves else f"{path}.{node.operator or node.name}".lstrip(".")
        found, number = base, 1
        while found in self.tensors or found == "input":
            number += 1
            found = f"{base}_{number}"
        return found

    def add(self, node: TracedNode, kind: str, *sources: str, **options: object) -> str:
        """A layer of an operator; its name.

        Parameters
        ----------
        node
            The operator.
        kind
            The kind of layer.
        sources
            Layers that it reads.
        options
            Of the kind.
        """
        name = self.name(node)
        layer = make_layer(kind, name, [self.tensors[source] for source in sources], options)
        owner = layer.shares_weight_with
        if owner and not _is_alike(self.layers[owner], layer):
            raise UnsupportedError
        self.layers[name] = layer
        self.tensors[name] = layer.output
        self.rows.append(LayerSpec(name=name, kind=kind, inputs=sources, options=options))
        self.nodes[name] = (node,)
        return name

    def axes(self, layer: str) -> dict[str, int]:
        """Axes of what a layer writes. [items]"""
        return {axis.name: axis.extent for axis in self.tensors[layer].axes}

    def value(
        self, layer: str, order: Sequence[str] = (), shape: Sequence[int] | None = None
    ) -> Value:
        """What a layer writes, as a tensor.

        Parameters
        ----------
        layer
            The layer.
        order
            Its axes, from the outside in; as it has them by default.
        shape
            Extents of the tensor; one for each axis by default. [items]
        """
        axes = self.axes(layer)
        dims = tuple(whole(axis, axes[axis]) for axis in order or axes)
        found: Value | None = Value(layer=layer, axes=axes, dims=dims)
        if shape is not None and found is not None:
            found = reshaped(found, shape)
        if found is None:
            raise UnsupportedError
        return found

    def weight(self, node: object, layer: str = "") -> str:
        """The layer that a weight is counted at already, empty where it is a new one.

        Parameters
        ----------
        node
            What stands for the weight.
        layer
            Where it is counted from now on.
        """
        constant = self.known.get(node) if node is not None else None
        names = constant.weights if isinstance(constant, Constant) else frozenset()
        before = next((self.owners[name] for name in sorted(names) if name in self.owners), "")
        if layer:
            self.owners |= {name: layer for name in names if name not in self.owners}
        return before

    def holders(self, weight: str) -> list[TracedNode]:
        """What stands for a parameter, of which layers that share it may each have their own."""
        nodes = (node for node in self.known if isinstance(node, TracedNode))
        return [node for node in nodes if node.weight == weight]

    def constant(self, node: TracedNode) -> Constant:
        """What does not depend on the samples: of a weight that is split, one part."""
        read = [
            one
            for each in node.all_input_nodes
            if isinstance(one := self.known.get(each), Constant)
        ]
        weights = frozenset().union(*(one.weights for one in read))
        if node.operator == "getitem" and len(weights) == 1:
            (name,), (source, index) = weights, node.args
            if source.operator in SPLITS and source.all_input_nodes[0].weight == name:
                # what it is cut into says where, whatever tensors the sizes were read from
                how = [one for one in source.args[1:] if not any(nodes_in(one))]
                part = f"{name}[{index} of {how} {list(source.shapes)}]"
                self.parts[part], self.sizes[part] = name, math.prod(node.shape)
                weights = frozenset({part})
        return Constant(weights=weights)

    def new_weights(self, nodes: Sequence[object], layer: str) -> int:
        """Trained numbers of constants that no layer has counted before one does. [items]"""
        total = 0
        for node in nodes:
            constant = self.known.get(node)
            for name in sorted(constant.weights) if isinstance(constant, Constant) else ():
                if name not in self.owners:
                    self.owners[name] = layer
                    total += self.sizes[name]
        return total

    def trains(self, nodes: Sequence[object]) -> bool:
        """Whether any constant is made of weights that are trained."""
        constants = (one for node in nodes if isinstance(one := self.known.get(node), Constant))
        return any(not self._is_frozen(name) for one in constants for name in one.weights)

    def _is_frozen(self, weight: str) -> bool:
        return self.parts.get(weight, weight) in self.frozen

    def freeze(self) -> None:
        """Say of all layers what of their weights is not trained."""
        held: dict[str, list[str]] = {}
        for weight, layer in self.owners.items():
            held.setdefault(layer, []).append(weight)
        options: dict[str, bool | int] = {}
        for name, weights in held.items():
            fixed = [weight for weight in weights if self._is_frozen(weight)]
            count = self.layers[name].parameters
            if fixed == weights and count:
                options[name] = True
            elif fixed and sum(self.sizes[weight] for weight in weights) == count:
                options[name] = sum(self.sizes[weight] for weight in fixed)
        for number, row in enumerate(self.rows):
            found = options.get(str(row.options.get("share") or row.name))
            if found is not None:
                self.rows[number] = replace(row, options={**row.options, "frozen": found})

    def settled(self, node: TracedNode, value: Value) -> Value:
        """A tensor that holds all that a layer writes: parts of it are copied.

        Parameters
        ----------
        node
            The operator that reads it.
        value
            The tensor.
        """
        if value.is_whole:
            return value
        axes = {n: value.slices.get(n, (0, e))[1] for n, e in value.axes.items() if n != "sample"}
        rest = {**value.axes, **axes}
        if any(not part.axis for part in value.parts) or math.prod(value.shape) != math.prod(
            rest.values()
        ):
            return self.renamed(node, value, _dim_names(value))
        along = {name: name for name in axes if name not in value.slices}
        layer = self.add(node, "rearrange", value.layer, axes=axes, along=along)
        found = Value(layer=layer, axes=self.axes(layer), dims=value.dims)
        self.moves[layer] = (value, found)
        return found

    def renamed(self, node: TracedNode, value: Value, names: Sequence[str]) -> Value:
        """A tensor whose dims are axes of some names, samples first.

        Parameters
        ----------
        node
            The operator that reads it.
        value
            The tensor.
        names
            One for each dim after that of the samples.
        """
        samples = value.dims[0] if value.dims else ()
        if samples != value.whole("sample") or len(names) != len(value.dims) - 1:
            raise UnsupportedError
        shape = dict(zip(names, value.shape[1:], strict=True))
        same = all(
            name in value.axes and dim == value.whole(name)
            for name, dim in zip(names, value.dims[1:], strict=True)
        )
        if same and value.is_whole:
            return value
        along = {}
        for name, dim in zip(names, value.dims[1:], strict=True):
            source = dim[0].axis if len(dim) == 1 else ""
            if source and source not in value.slices and dim == value.whole(source):
                along[name] = source
        layer = self.add(node, "rearrange", value.layer, axes=shape, along=along)
        found = self.value(layer)
        self.moves[layer] = (value, found)
        return found

    def opaque(self, node: TracedNode) -> object:
        """An operator of which nothing is known: it is costed by what it reads and writes."""
        given = [self.known.get(one) for one in node.all_input_nodes]
        values = [one for one in _flat_values(given) if isinstance(one, Value)]
        sources = tuple(dict.fromkeys(value.layer for value in values))
        shape = node.shape
        axes, order = self._opaque_axes(shape)
        name = self.name(node)
        weights = self.new_weights(node.all_input_nodes, name)
        more = {"weights": weights} if weights else {}
        layer = self.add(node, "opaque", *sources, axes=axes, **more)
        if not order:
            return Value(layer=layer, axes=self.axes(layer), dims=())
        return self.value(layer, order, shape)

    def _opaque_axes(self, shape: tuple[int, ...]) -> tuple[dict[str, int], tuple[str, ...]]:
        """Axes of a tensor of a shape; samples are told by their number alone."""
        if 0 in shape or not shape or shape[0] % self.batch:
            return {"channel": max(1, -(-math.prod(shape) // self.batch))}, ()
        rest = shape[1:]
        if shape[0] > self.batch:
            rest = (shape[0] // self.batch, math.prod(rest))
        names = USUAL_AXES.get(len(rest), ())
        if rest and not names:
            rest, names = (math.prod(rest),), ("channel",)
        axes = dict(zip(names, rest, strict=True)) or {"channel": 1}
        return axes, ("sample", *axes)


def _is_alike(owner: Layer, layer: Layer) -> bool:
    """Whether two layers hold one weight in one shape."""
    return owner.held_parameters == layer.held_parameters and shared_dims(owner, layer) is not None


def _flat_values(values: Sequence[object]) -> list[object]:
    found: list[object] = []
    for value in values:
        found += _flat_values(value) if isinstance(value, list | tuple) else [value]
    return found


def _dim_names(value: Value) -> tuple[str, ...]:
    """What the dims of a tensor are called: as the axes that they are, where that is clear."""
    rest = value.dims[1:]
    usual = USUAL_AXES.get(len(rest))
    if usual is None:
        raise UnsupportedError
    own = [dim[0].axis if len(dim) == 1 else "" for dim in rest]
    if all(own) and len(set(own)) == len(own):
        return tuple(own)
    return usual


def spatial_names(count: int) -> tuple[str, ...]:
    """What so many dims of space are called."""
    return SPATIAL_DIMS[-count:] if 0 < count <= len(SPATIAL_DIMS) else ()


def features(value: Value) -> str:
    """The axis of the features of a value."""
    return "hidden" if "hidden" in value.axes else "channel"
