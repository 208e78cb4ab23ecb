"""What layers read: tensors that others wrote, moved to where they are read, and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from planner.models.traced.values import Value
from planner.plan import Plan
from planner.plan.sharding import LayerSharding, TensorPlacement, sharded_dim
from planner.torch.apply import products  # noqa: F401 - its rules are registered
from planner.torch.apply.redistribution import Move
from planner.torch.apply.rules import Held
from planner.torch.apply.steps import Leaf, Program, RankStep, Ref
from planner.torch.apply.views import (
    LayoutError,
    ViewLayout,
    in_blocks,
    layout_of_tensor,
    layout_of_view,
)
from planner.torch.apply.weights import equal_blocks

if TYPE_CHECKING:
    from torch.fx import Node

# An axis of a tensor that no axis of a layer stands for.
_SKIPPED = frozenset({"_assert_tensor_metadata", "_assert_scalar"})


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
    value = program.traced.known.get(node)
    path = _path(program, source, reader, value)
    if not path or not isinstance(value, Value):
        raise LayoutError(f"the plan does not say how it reads '{source}'")
    names: dict[str, str] = {}
    gates = {row.name for row in program.traced.rows if row.kind == "glu"}
    for before, layer, placed in path:
        if before != source:
            names = {"sample": "sample", **_names_behind(program, before, names)}
        try:
            target = _as_read(program, placed, value, names).without_sums()
        except LayoutError:
            if layer == path[-1][1]:
                raise
            continue  # a copy of other dims, whose reader says where it must lie
        if layer in gates and before in program.traced.halved:
            target = in_blocks(target, len(target.dims) - 1, 2)
        if target.shape != held.layout.shape:
            raise LayoutError("it reads what no layer writes")
        axes = _mesh_names(program, layer)
        sums = frozenset(axes.index(one) for one in placed.gradient_sums)
        move = Move(held.layout, target, sums, f"{before} -> {layer}")
        if move.is_nothing:
            continue
        key = (held.key, target, sums)
        if key not in program.moved:
            program.steps.append(
                RankStep(key=key, run=None, given={"x": Ref(held.key)}, layer=reader, move=move)
            )
            program.moved[key] = Held(key=key, layout=target)
        held = program.moved[key]
    return held


def _as_read(
    program: Program, placed: TensorPlacement, value: Value, names: Mapping[str, str]
) -> ViewLayout:
    """The layout in which a layer reads a tensor that others have written.

    Parameters
    ----------
    program, placed, value
        What is made, where the layer reads the tensor, and what of its source that is.
    names
        Axes of the source that copies in between call otherwise, by what they call them.
    """
    own = set(placed.dims)
    if not names and (own == set(value.axes) or set(value.axes) <= own):
        return layout_of_view(placed, value, program.place.sizes)
    cuts = [dim for one in placed.placements if (dim := sharded_dim(one)) is not None]
    known = {"sample": "sample", **names}
    if all(placed.dims[n] in known for n in cuts):
        dims = tuple(known.get(name, f"another {name}") for name in placed.dims)
        if all(placed.shape[n] == value.axes.get(dims[n]) for n in cuts):
            return layout_of_view(replace(placed, dims=dims), value, program.place.sizes)
    # what a copy calls otherwise has the dims of the tensor, in their order
    layout = layout_of_tensor(placed)
    if layout.shape != value.shape:
        raise LayoutError("it reads a tensor of other dims")
    return layout


def _names_behind(program: Program, copy: str, names: Mapping[str, str]) -> dict[str, str]:
    """Axes of the source of a copy, by what that calls them.

    Parameters
    ----------
    program, copy
        What is made, and the copy.
    names
        The same of the copy before it, none where it reads the source.
    """
    row = next(row for row in program.traced.rows if row.name == copy)
    along = dict(row.options.get("along", {}))
    return {one: names.get(other, other) for one, other in along.items()}


def _path(
    program: Program, source: str, reader: str, value: object
) -> list[tuple[str, str, TensorPlacement]]:
    """The layers of the plan by which a layer reads a tensor: copies, and itself at last.

    Each has the one before it, and where it reads that. One operator may be two layers, a product
    and its bias.

    Parameters
    ----------
    program, source, reader
        What is made, the layer that wrote the tensor, and the one that reads it.
    value
        Which part of what was written the tensor is.
    """
    rows = {row.name: row for row in program.traced.rows}
    row = rows.get(reader)
    if row is None:
        return []
    inputs = program.plan.placements(reader).inputs
    for slot, name in enumerate(row.inputs):
        copies, behind = [], name
        while behind in rows and behind != source and rows[behind].kind == "rearrange":
            copies.append(behind)
            behind = rows[behind].inputs[0]
        if behind == source:
            first, _ = value.slices.get("hidden", (0, 0)) if isinstance(value, Value) else (0, 0)
            if len(inputs) > len(row.inputs) and first >= inputs[slot].shape[-1]:
                slot += 1  # keys and values, which lie behind the queries
            read_by = [(one, program.plan.placements(one).inputs[0]) for one in reversed(copies)]
            read_by.append((reader, inputs[min(slot, len(inputs) - 1)]))
            before = (source, *(one for one, _ in read_by))
            return [(one, *each) for one, each in zip(before, read_by, strict=False)]
        if behind in rows and behind not in program.traced.layers:
            found = _path(program, source, behind, value)
            if found:
                return found
    return []


def _mesh_names(program: Program, layer: str) -> tuple[str, ...]:
    sharding = program.plan.sharding
    assert sharding is not None, "plans that are applied say where tensors lie"
    return sharding.meshes[sharding.layers[layer].mesh].names


def weight_use(program: Program, name: str, node: Node, layer: str) -> Held:
    """A use of a weight by a layer.

    Parameters
    ----------
    program
        What is made.
    name, node
        The weight, and what stands for it.
    layer
        The layer that uses it, empty for what does not depend on samples.
    """
    owner = program.traced.owners.get(name, "")
    layout = program.weights[name]
    sums = gradient_sums(program.plan, name, owner, layer or owner)
    wanted = _as_shared(program, node, layer) if layer != owner else None
    if wanted is not None and wanted != layout:
        return _shared_block(program, node, layer, Move(layout, wanted, sums, layer, "weight"))
    leaf = Leaf(name=name, layout=layout, sums=sums)
    # what every stage makes for itself is made first
    key = (node, leaf, bool(layer))
    if key not in program.moved:
        program.steps.append(RankStep(key=key, run=None, given={"leaf": leaf}, layer=layer))
        if layer:
            program.of_layers.add(key)
        program.moved[key] = Held(key=key, layout=layout, is_constant=True)
    return program.moved[key]


def _as_shared(program: Program, node: Node, layer: str) -> ViewLayout | None:
    """How a layer wants the weight of another one, None where the plan does not say.

    Parameters
    ----------
    program, node, layer
        As of `weight_use`.
    """
    rows = {row.name: row for row in program.traced.rows}
    row = rows.get(layer)
    if row is not None and row.kind == "bias":
        row = rows.get(row.inputs[0])  # the product, of whose operator the bias is a part
    if row is None or not row.options.get("share"):
        return None
    shape = tuple(node.meta["val"].shape)
    for placed in program.plan.placements(row.name).weights:
        layout = layout_of_tensor(placed)
        blocks = equal_blocks(program.traced, row.name)
        if "filter" in placed.dims and blocks > 1:
            layout = in_blocks(layout, placed.dims.index("filter"), blocks)
        for dims in (layout.dims, layout.dims[::-1]):
            if ViewLayout(dims).shape == shape:
                return ViewLayout(dims)
    return None


def _shared_block(program: Program, node: Node, layer: str, move: Move) -> Held:
    """A weight in other blocks than those of the layer that it is counted at.

    Parameters
    ----------
    program, node, layer
        As of `weight_use`.
    move
        From the one layout to the other; back, gradients are summed, and then lie as the weight.
    """
    name = program.traced.parameters[node.name]
    key = (node, move)
    if key not in program.moved:
        leaf = Leaf(name=name, layout=move.source, sums=frozenset())
        whole = (node, leaf, layer)
        program.steps.append(RankStep(key=whole, run=None, given={"leaf": leaf}, layer=layer))
        step = RankStep(key=key, run=None, given={"x": Ref(whole)}, layer=layer, move=move)
        program.steps.append(step)
        program.of_layers.add(key)
        program.moved[key] = Held(key=key, layout=move.target, is_constant=True)
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
