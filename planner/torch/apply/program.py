"""From the operators of a module to what one rank runs: operators on blocks, and moves between.

Each tensor lies as the plan says of the layer that writes it; where another layer reads it
otherwise it is moved, once for all that read it alike. What does not depend on samples (masks,
tables of positions) every rank makes whole, and takes its part of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from costmodels.errors import InputError
from planner.plan import Plan
from planner.plan.sharding import LayerSharding, TensorPlacement
from planner.torch.apply import products  # noqa: F401 - its rules are registered
from planner.torch.apply.redistribution import Move
from planner.torch.apply.rules import Block, Call, Held, Place, find_rule, tensors_of
from planner.torch.apply.tracing import Traced
from planner.torch.apply.views import (
    LayoutError,
    ViewLayout,
    layout_of_tensor,
    layout_of_view,
    whole,
)
from planner.torch.nodes import arguments, operator_of, shape_of
from planner.torch.values import Value

if TYPE_CHECKING:
    from torch.fx import Node

# An axis of a tensor that no axis of a layer stands for.
_SKIPPED = frozenset({"_assert_tensor_metadata", "_assert_scalar"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A use of a weight: a leaf of its own, whose gradient is summed as its layer says.

    Parameters
    ----------
    name
        The weight.
    layout
        How it lies where it is used.
    sums
        Axes over whose members its gradient is summed.
    """

    name: str
    layout: ViewLayout
    sums: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that a rank does.

    Parameters
    ----------
    key
        What its result is called.
    run, given
        What is called, and with what: `Ref` stands for results.
    layer
        The layer that it is of, empty for what does not depend on samples.
    move
        The move that it is.
    """

    key: object
    run: Callable[..., Any] | None
    given: Mapping[str, Any]
    layer: str = ""
    move: Move | None = None

    @property
    def reads(self) -> list[object]:
        """Results that it reads."""
        return [one.key for one in refs_of(self.given)]


@dataclass(frozen=True, slots=True)
class Ref:
    """A result of before, by its key."""

    key: object


def refs_of(given: object) -> list[Ref]:
    """All results among arguments."""
    if isinstance(given, Ref):
        return [given]
    if isinstance(given, Mapping):
        return [one for each in given.values() for one in refs_of(each)]
    if isinstance(given, list | tuple):
        return [one for each in given for one in refs_of(each)]
    return []


@dataclass(slots=True, kw_only=True)
class Program:
    """What all ranks of a plan run.

    Parameters
    ----------
    plan, traced
        The plan, and the operators of the module.
    place
        The ranks of a stage.
    weights
        How each weight lies, before what ZeRO cuts besides.
    steps
        In order.
    held
        What each node is.
    moved
        Moves that were made already, by what moves and how.
    of_layers
        Uses of weights that are made where their layer is.
    """

    plan: Plan
    traced: Traced
    place: Place
    weights: Mapping[str, ViewLayout]
    steps: list[Step] = field(default_factory=list)
    held: dict[Any, Any] = field(default_factory=dict)
    moved: dict[object, Held] = field(default_factory=dict)
    of_layers: set[object] = field(default_factory=set)

    @property
    def layouts(self) -> dict[object, ViewLayout]:
        """How every result lies, by its key."""
        rows = [*self.held.values(), *self.moved.values()]
        each = [one for row in rows for one in (row if isinstance(row, tuple) else (row,))]
        return {one.key: one.layout for one in each if isinstance(one, Held)}

    @property
    def input_layouts(self) -> tuple[ViewLayout, ...]:
        """How the inputs lie that a rank is called with."""
        return tuple(self.held[node].layout for node in self.traced.inputs)


def make_program(
    plan: Plan, traced: Traced, place: Place, weights: Mapping[str, ViewLayout]
) -> Program:
    """What all ranks run.

    Parameters
    ----------
    plan, traced, place, weights
        As of `Program`.

    Raises
    ------
    InputError
        When a layer is split in a way that its operators cannot be run in.
    """
    program = Program(plan=plan, traced=traced, place=place, weights=weights)
    for node in traced.nodes:
        if node.op == "placeholder":
            _enter(program, node)
        elif node.op == "get_attr":
            value = getattr(node.graph.owning_module, str(node.target))
            program.held[node] = value
        elif operator_of(node) not in _SKIPPED:
            try:
                _add(program, node)
            except LayoutError as error:
                layer = traced.layer_of(node) or "a constant"
                raise InputError(
                    f"the operator '{operator_of(node)}' of {layer} must run on the blocks of the "
                    f"plan but {error}; split that layer otherwise, by samples for example"
                ) from None
    return program


def _enter(program: Program, node: Node) -> None:
    """An input, a weight or a buffer."""
    traced = program.traced
    if node in traced.inputs:
        layout = _input_layout(program, node)
        program.held[node] = Held(key=node, layout=layout)
    elif node.name in traced.parameters:
        program.held[node] = traced.parameters[node.name]  # its layer says how it is used
    elif node.name in traced.buffers or node.name in traced.constants:
        layout = whole(node.meta["val"].shape)
        program.held[node] = Held(key=node, layout=layout, is_constant=True)
    else:
        program.held[node] = traced.others.get(node)


def _input_layout(program: Program, node: Node) -> ViewLayout:
    """How an input lies: as the first layer reads it that reads one of its axes."""
    shape = shape_of(node)
    value = program.traced.net.known.get(node)
    for row in program.traced.net.rows:
        sharding = program.plan.placements(row.name)
        for source, placed in zip(row.inputs, sharding.inputs, strict=False):
            if source != "input" or not isinstance(value, Value):
                continue
            try:
                layout = layout_of_view(placed, value, program.place.sizes)
            except LayoutError:
                continue
            if layout.shape == shape:
                return layout
    return whole(shape)


def _add(program: Program, node: Node) -> None:
    """One operator."""
    traced = program.traced
    name = operator_of(node)
    layer = traced.layer_of(node)
    if name == "getitem":
        source, place = node.args
        found = program.held[source]
        program.held[node] = found[place] if isinstance(found, tuple | list) else found
        return
    has_schema = getattr(node.target, "_schema", None) is not None
    given: Any = arguments(node) if has_schema else {"args": node.args}
    reading = layer if _is_own(traced, node, layer) else ""
    given = _resolved(program, given, node, reading, layer)
    tensors = tensors_of(given)
    constant = all(one.is_constant for one in tensors)
    rule = find_rule(node, name)
    call = rule(program.place, node, given)
    if not has_schema:
        target: Any = node.target
        call = Call(run=lambda args: target(*args), given=call.given, layout=call.layout)
    given = {
        key: _reference(program, one, layer)
        for key, one in call.given.items()
        if key != "pin_memory"
    }
    step = Step(key=node, run=call.run, given=given, layer="" if constant else layer)
    program.steps.append(step)
    if isinstance(call.layout, tuple):
        held = []
        for number, layout in enumerate(call.layout):
            key = (node, number)
            program.steps.append(
                Step(
                    key=key,
                    run=_pick,
                    given={"of": Ref(node), "number": number},
                    layer=step.layer,
                )
            )
            held.append(Held(key=key, layout=layout, is_constant=constant))
        program.held[node] = tuple(held)
        return
    program.held[node] = Held(key=node, layout=call.layout, is_constant=constant)
    if not constant:
        _check_layout(program, node, layer, call.layout)


def _pick(of: Any, number: int) -> Any:
    return of[number]


def _is_own(traced: Traced, node: Node, layer: str) -> bool:
    """Whether an operator is of the layer, and no view of what that writes."""
    if not layer:
        return False
    return all(traced.layer_of(one) != layer for one in node.all_input_nodes) or any(
        traced.layer_of(one) not in ("", layer) for one in node.all_input_nodes
    )


def _resolved(program: Program, given: Any, node: Node, reading: str, layer: str) -> Any:
    """Arguments with what was held for nodes, moved to where the layer reads them.

    Parameters
    ----------
    program, given, node
        The arguments of a node.
    reading
        The layer, where the node reads what others have written.
    layer
        The layer of the node.
    """
    if isinstance(given, Mapping):
        rows = given.items()
        return {key: _resolved(program, one, node, reading, layer) for key, one in rows}
    if isinstance(given, list | tuple):
        return [_resolved(program, one, node, reading, layer) for one in given]
    if not isinstance(given, torch.fx.Node):
        return given
    found = program.held[given]
    if isinstance(found, str) and given.name in program.traced.parameters:
        return _weight(program, found, given, node, layer)
    if isinstance(found, Held) and reading and not found.is_constant:
        return read(program, given, found, reading)
    return found


def read(program: Program, node: Node, held: Held, reader: str) -> Held:
    """A tensor as a layer reads it.

    Parameters
    ----------
    program
        What is made.
    node, held
        The tensor.
    reader
        The layer that reads it.
    """
    source = program.traced.layer_of(node)
    if source == reader:
        return held
    value = program.traced.net.known.get(node)
    placed = _reads_as(program, source, reader, value)
    if placed is None or not isinstance(value, Value):
        raise LayoutError(f"the plan does not say how it reads '{source}'")
    target = _as_read(program, placed, value).without_sums()
    names = _mesh_names(program, reader)
    sums = frozenset(names.index(one) for one in placed.gradient_sums)
    if target.shape != held.layout.shape:
        raise LayoutError("it reads what no layer writes")
    move = Move(held.layout, target, sums, f"{source} -> {reader}")
    if move.is_nothing:
        return held
    key = (held.key, target, sums)
    if key not in program.moved:
        program.steps.append(
            Step(key=key, run=None, given={"x": Ref(held.key)}, layer=reader, move=move)
        )
        program.moved[key] = Held(key=key, layout=target)
    return program.moved[key]


def _as_read(program: Program, placed: TensorPlacement, value: Value) -> ViewLayout:
    """The layout in which a layer reads a tensor that others have written."""
    names = set(placed.dims)
    if names == set(value.axes) or set(value.axes) <= names:
        return layout_of_view(placed, value, program.place.sizes)
    # what a copy calls otherwise has the dims of the tensor, in their order
    layout = layout_of_tensor(placed)
    if layout.shape != value.shape:
        raise LayoutError("it reads a tensor of other dims")
    return layout


def _reads_as(program: Program, source: str, reader: str, value: object) -> TensorPlacement | None:
    """What of its inputs a layer reads a tensor as; copies in between count for nothing.

    Parameters
    ----------
    program, source, reader
        What is made, the layer that wrote the tensor, and the one that reads it.
    value
        Which part of what was written the tensor is.
    """
    rows = {row.name: row for row in program.traced.net.rows}
    row = rows.get(reader)
    if row is None:
        return None
    inputs = program.plan.placements(reader).inputs
    for slot, name in enumerate(row.inputs):
        behind = name
        while behind in rows and behind != source and rows[behind].kind == "rearrange":
            behind = rows[behind].inputs[0]
        if behind == source:
            first, _ = value.slices.get("hidden", (0, 0)) if isinstance(value, Value) else (0, 0)
            if len(inputs) > len(row.inputs) and first >= inputs[slot].shape[-1]:
                slot += 1  # keys and values, which lie behind the queries
            return inputs[min(slot, len(inputs) - 1)]
        if behind in rows and behind not in program.traced.layers:
            # one operator is both layers: a product and its bias
            found = _reads_as(program, source, behind, value)
            if found is not None:
                return found
    return None


def _mesh_names(program: Program, layer: str) -> tuple[str, ...]:
    sharding = program.plan.sharding
    assert sharding is not None, "plans that are applied say where tensors lie"
    return sharding.meshes[sharding.layers[layer].mesh].names


def _weight(program: Program, name: str, node: Node, reader: Node, layer: str) -> Held:
    """A use of a weight by a layer."""
    owner = program.traced.owners.get(name, "")
    layout = program.weights[name]
    sums = gradient_sums(program.plan, name, owner, layer or owner)
    leaf = Leaf(name=name, layout=layout, sums=sums)
    # what every stage makes for itself is made first
    key = (node, leaf, bool(layer))
    if key not in program.moved:
        program.steps.append(Step(key=key, run=None, given={"leaf": leaf}, layer=layer))
        if layer:
            program.of_layers.add(key)
        program.moved[key] = Held(key=key, layout=layout, is_constant=True)
    return program.moved[key]


def gradient_sums(plan: Plan, name: str, owner: str, layer: str) -> frozenset[int]:
    """Axes over whose members the gradient of a weight is summed that a layer uses.

    Parameters
    ----------
    plan
        The plan.
    name
        The weight.
    owner, layer
        The layer that it is counted at, and the one that uses it.
    """
    sharding = plan.sharding
    assert sharding is not None, "plans that are applied say where tensors lie"
    found: LayerSharding = sharding.layers[layer]
    names = sharding.meshes[found.mesh].names
    kind = name.rpartition(".")[2]
    if layer == owner and found.weights:
        own = [one for one in found.weights if one.name == kind] or [found.weights[0]]
        return frozenset(names.index(one) for one in own[0].gradient_sums)
    # a shared weight: over what tells blocks of samples and tokens apart
    output = layout_of_tensor(found.output)
    dims = zip(found.output.dims, output.dims, strict=True)
    return frozenset(
        axis
        for dim, parts in dims
        if dim not in ("hidden", "channel")
        for part in parts
        for axis in part.axes
    )


def _reference(program: Program, one: Any, layer: str) -> Any:
    """An argument as a step has it.

    Parameters
    ----------
    program, one
        What is made, and the argument.
    layer
        The layer that reads it.
    """
    if isinstance(one, Held):
        return Ref(one.key)
    if isinstance(one, Block):
        key = (one.of.key, "block", one.layout)
        if key not in program.moved:
            place, layout = program.place, one.layout
            program.steps.append(
                Step(
                    key=key,
                    run=lambda x: place.block(x, layout),
                    given={"x": Ref(one.of.key)},
                    layer=layer if one.of.key in program.of_layers else "",
                )
            )
            program.moved[key] = Held(key=key, layout=layout, is_constant=True)
        return Ref(key)
    if isinstance(one, Mapping):
        return {key: _reference(program, each, layer) for key, each in one.items()}
    if isinstance(one, list | tuple):
        return [_reference(program, each, layer) for each in one]
    return one


def _check_layout(program: Program, node: Node, layer: str, layout: ViewLayout) -> None:
    """Refuse a layer whose output does not lie as the plan says."""
    value = program.traced.net.known.get(node)
    if not isinstance(value, Value) or not layer or value.shape != shape_of(node):
        return
    if any(traced_layer(program, one) == layer for one in node.users):
        return  # there is more of it
    placed = program.plan.placements(layer).output if layer != "input" else None
    if placed is None or set(placed.dims) != set(value.axes):
        return
    expected = layout_of_view(placed, value, program.place.sizes)
    if expected != layout and expected.shape == layout.shape:
        raise LayoutError(f"its output lies as {_written(layout)} and not as {_written(expected)}")


def traced_layer(program: Program, node: Node) -> str:
    """The layer of a node."""
    return program.traced.layer_of(node)


def _written(layout: ViewLayout) -> str:
    cuts = [
        f"dim {n} cut by axes {', '.join(map(str, part.axes))}"
        for n, dim in enumerate(layout.dims)
        for part in dim
        if part.axes
    ]
    sums = [f"sums over axes {', '.join(map(str, sorted(layout.partial)))}"]
    return " and ".join([*cuts, *(sums if layout.partial else [])]) or "a whole"
