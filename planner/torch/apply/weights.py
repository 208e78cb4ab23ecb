"""How the weights of a module lie on the ranks of a plan: as their layers say, and what ZeRO cuts.

A weight is kept as a DTensor in dims that its blocks are blocks of: where queries, keys and values
lie side by side, those three are a dim of their own, whatever the plan, so that what was saved
under one plan is loaded under another.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from costmodels.errors import InputError
from planner.models.traced.operators.views import TURNS
from planner.models.traced.values import Value
from planner.plan import Plan
from planner.plan.sharding import Sharding, TensorPlacement
from planner.torch.apply.tracing import Traced
from planner.torch.apply.views import (
    DimPart,
    LayoutError,
    Parts,
    ViewLayout,
    in_blocks,
    layout_of_tensor,
    normal,
    split_part,
    uncut,
    ways,
)
from planner.torch.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.fx import Node


class Weight(Struct, frozen=True, kw_only=True):
    """One weight of a module.

    Parameters
    ----------
    name, owner
        The weight, and the layer that it is counted at.
    used
        How it lies where its layer uses it.
    stored
        How it lies between steps.
    blocks, blocked_dim
        Equal parts of a dim that are cut each by itself, and which dim that is. [items]
    sharded
        What of it is cut besides (ZeRO): "weights", "gradients", "state".
    """

    name: str
    owner: str
    used: ViewLayout
    stored: ViewLayout
    blocks: int
    blocked_dim: int
    sharded: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents that it is kept with. [items]"""
        shape = self.stored.shape
        if self.blocks <= 1:
            return shape
        dim = self.blocked_dim
        return (*shape[:dim], self.blocks, shape[dim] // self.blocks, *shape[dim + 1 :])


def find_weights(plan: Plan, traced: Traced, sizes: tuple[int, ...]) -> dict[str, Weight]:
    """All weights of a module, by name.

    Parameters
    ----------
    plan, traced
        The plan, and the operators of the module.
    sizes
        Members of the axes of the mesh of a stage. [items]

    Raises
    ------
    InputError
        When a weight cannot lie as the plan says.
    """
    found = {}
    by_node = {name: node for node in traced.nodes if (name := traced.parameters.get(node.name))}
    for name, node in by_node.items():
        owner = traced.owners.get(name, "")
        try:
            found[name] = _found_weight(plan, traced, node, name, owner, sizes)
        except LayoutError as error:
            raise InputError(
                f"the weight {name} must lie in equal blocks but has {error}; split "
                f"'{owner}' otherwise"
            ) from None
    return found


def _found_weight(
    plan: Plan, traced: Traced, node: Node, name: str, owner: str, sizes: tuple[int, ...]
) -> Weight:
    """One weight.

    Parameters
    ----------
    plan, traced, sizes
        As of `find_weights`.
    node, name, owner
        What stands for it, its name and the layer that it is counted at.
    """
    shape = tuple(node.meta["val"].shape)
    sharding = plan.sharding
    assert sharding is not None, "plans that are applied say where tensors lie"
    placed = placement(sharding, owner, name)
    used = uncut(shape)
    blocks, dim = 1, 0
    if placed is not None and any(p.startswith("Shard") for p in placed.placements):
        known = layout_of_tensor(placed)
        turned = _is_turned(node)
        dims = known.dims[::-1] if turned else known.dims
        # a product is a convolution with a kernel of one position, and the other way round
        while len(dims) > len(shape) and dims[-1] == ():
            dims = dims[:-1]
        dims += ((),) * (len(shape) - len(dims))
        used = ViewLayout(dims)
        if used.shape != shape:
            raise LayoutError(f"{list(shape)} numbers where the plan has {list(used.shape)}")
    if placed is not None and "filter" in placed.dims:
        blocks = equal_blocks(traced, owner)
        dim = placed.dims.index("filter")
        dim = len(shape) - 1 - dim if _is_turned(node) else dim
    if blocks < 0 and used.cutting:
        raise LayoutError("parts side by side that are unlike")
    if blocks > 1:
        used = in_blocks(used, dim, blocks)
    for parts in used.dims:
        for part in parts:
            if part.extent % ways(part.axes, sizes):
                raise LayoutError(f"{part.extent} positions for {ways(part.axes, sizes)} ranks")
    layer = plan.layers.get(owner)
    sharded = layer.sharded if layer is not None else ()
    if name in traced.frozen and "weights" not in sharded:
        sharded = ()  # what else is cut of weights, it has not
    stored = used
    if layer is not None and sharded and placed is not None:
        mesh = sharding.meshes[sharding.layers[owner].mesh]
        axes = [mesh.names.index(one) for one in placed.gradient_sums]
        stored = _cut_more(used, _inner(axes, sizes, layer.shard_size), sizes, (dim, blocks))
    return Weight(
        name=name,
        owner=owner,
        used=used,
        stored=stored,
        blocks=blocks,
        blocked_dim=dim,
        sharded=sharded,
    )


def placement(sharding: Sharding, owner: str, name: str) -> TensorPlacement | None:
    """What a plan says of a weight.

    Parameters
    ----------
    sharding
        Where the tensors of the plan lie.
    owner, name
        The layer that it is counted at, and the weight.
    """
    if owner not in sharding.layers or not sharding.layers[owner].weights:
        return None
    weights = sharding.layers[owner].weights
    kind = name.rpartition(".")[2]
    bias = [one for one in weights if one.name == "bias"]
    if kind.endswith("bias") and bias:
        return bias[0]
    return next((one for one in weights if one.name == kind), weights[0])


def _is_turned(node: Node) -> bool:
    """Whether a product has the inputs of a weight first."""
    for user in node.users:
        if operator_of(user) in ("addmm", "mm", "matmul") and node in user.args[1:]:
            return True
        if operator_of(user) in TURNS and len(shape_of(user)) == 2:
            return not _is_turned(user)
    return False


def equal_blocks(traced: Traced, layer: str) -> int:
    """Parts of the features of a layer that others read one by one, where these are alike.

    Less than one where they are unlike.
    """
    if layer in traced.halved:
        return 2
    found = set()
    extent = 0
    for value in traced.known.values():
        each = value if isinstance(value, tuple) else (value,)
        for one in each:
            if isinstance(one, Value) and one.layer == layer and "hidden" in one.slices:
                found.add(one.slices["hidden"])
                extent = one.axes["hidden"]
    if not found:
        return 1
    _, size = min(found, key=lambda pair: pair[1])
    alike = all(start % size == 0 and count % size == 0 for start, count in found)
    return extent // size if alike and extent % size == 0 else -1


def _inner(axes: list[int], sizes: tuple[int, ...], size: int | None) -> tuple[int, ...]:
    """The inner ones of some axes, that together have so many members."""
    found: list[int] = []
    left = math.prod(sizes[axis] for axis in axes) if size is None else size
    for axis in reversed(axes):
        if left > 1:
            found.insert(0, axis)
            left //= sizes[axis]
    return tuple(found)


def _cut_more(
    layout: ViewLayout, axes: tuple[int, ...], sizes: tuple[int, ...], blocked: tuple[int, int]
) -> ViewLayout:
    """A layout of which each block is cut over the ranks that have it, where that goes.

    Parameters
    ----------
    layout, axes, sizes
        The layout, the axes of those ranks, and the members of all axes. [items]
    blocked
        A dim that has equal parts, and how many.
    """
    count = ways(axes, sizes)
    for dim, parts in enumerate(layout.dims):
        if blocked[0] == dim and blocked[1] > 1 and len(parts) == 1 and not parts[0].axes:
            parts = (DimPart(blocked[1]), DimPart(parts[0].extent // blocked[1]))
        # the first part that no axis cuts: blocks stay blocks of the tensor as it is kept
        free = [number for number, part in enumerate(parts) if not part.axes]
        for number in free[-1:]:
            part = parts[number]
            if count > 1 and part.extent % count == 0 and number == len(parts) - 1:
                new = (*parts[:number], DimPart(part.extent, axes))
                return replace(layout, dims=(*layout.dims[:dim], new, *layout.dims[dim + 1 :]))
    return layout


def as_kept(weight: Weight, layout: ViewLayout, sizes: tuple[int, ...]) -> tuple[Parts, ...]:
    """A layout of a weight in the dims that it is kept with.

    Parameters
    ----------
    weight, layout
        The weight, and a layout of it in its own dims.
    sizes
        Members of the axes of the mesh. [items]
    """
    if weight.blocks <= 1:
        return layout.dims
    dims: list[Parts] = []
    for dim, parts in enumerate(layout.dims):
        if dim != weight.blocked_dim:
            dims.append(parts)
            continue
        outer, *rest = parts
        if outer.extent != weight.blocks:
            outer, inner = split_part(outer, weight.blocks, sizes)
            rest = [inner, *rest]
        dims += [normal([outer]), normal(rest)]
    return tuple(dims)


def kept_parameter(weight: Weight, whole_tensor: Tensor, mesh: DeviceMesh) -> nn.Parameter:
    """What a rank keeps of a weight.

    Parameters
    ----------
    weight
        The weight.
    whole_tensor
        All of it, alike on all ranks.
    mesh
        The mesh of a stage.
    """
    sizes = tuple(int(n) for n in mesh.shape)
    dims = as_kept(weight, weight.stored, sizes)
    placements: list[Placement] = [Replicate() for _ in sizes]
    for number, parts in enumerate(dims):
        for part in parts:
            for axis in part.axes:
                placements[axis] = Shard(number)
    kept = whole_tensor.detach().reshape(weight.shape)
    place = mesh.get_coordinate()
    assert place is not None, "the rank is of this mesh"
    local = kept
    for number, parts in enumerate(dims):
        axes = tuple(axis for part in parts for axis in part.axes)
        index = 0
        for axis in axes:
            index = index * sizes[axis] + place[axis]
        size = kept.shape[number] // ways(axes, sizes)
        local = local.narrow(number, index * size, size)
    spread = DTensor.from_local(
        local.clone().contiguous(),
        mesh,
        placements,
        run_check=False,
        shape=kept.shape,
        stride=kept.stride(),
    )
    return nn.Parameter(spread)


def full_tensor(kept: Tensor, traced: Traced, name: str) -> Tensor:
    """All of a weight, or of its gradient, in the extents of the module.

    Parameters
    ----------
    kept
        The rank's block of it, as a DTensor.
    traced, name
        The operators of the module, and the weight.
    """
    assert isinstance(kept, DTensor), "weights are kept as such"
    node = next(n for n in traced.nodes if traced.parameters.get(n.name) == name)
    return kept.full_tensor().reshape(node.meta["val"].shape).detach()
