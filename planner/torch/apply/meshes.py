"""Meshes on which every group of ranks is made of whole axes."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from costmodels.errors import InputError
from planner.plan import Plan
from planner.plan.sharding import LayerSharding, Mesh, MeshAxis, Sharding, TensorPlacement


def with_axes_of_shards(plan: Plan) -> Plan:
    """The plan with axes that end where shards of weights do (`shard_size`).

    Raises
    ------
    InputError
        When no axis can: a size of shards that does not divide.
    """
    while (found := _place_to_cut(plan)) is not None:
        mesh, axis, inner = found
        sharding = plan.sharding
        assert sharding is not None, "plans that are applied say where tensors lie"
        name = sharding.meshes[mesh].axes[axis].name
        alike = [n for n, one in enumerate(sharding.meshes) if name in one.names]
        plan = dataclasses.replace(plan, sharding=_cut_sharding(sharding, alike, name, inner))
    return plan


def _place_to_cut(plan: Plan) -> tuple[int, int, int] | None:
    """A mesh, an axis of it, and how many of its members are in one shard."""
    sharding = plan.sharding
    assert sharding is not None, "plans that are applied say where tensors lie"
    for name, layer in plan.layers.items():
        if not layer.sharded or layer.shard_size is None or not sharding.layers[name].weights:
            continue
        placed = sharding.layers[name]
        mesh = sharding.meshes[placed.mesh]
        left = layer.shard_size
        for axis in reversed(range(len(mesh.axes))):
            size = mesh.axes[axis].size
            if mesh.axes[axis].name not in placed.weight.gradient_sums or left == 1:
                continue
            if left % size == 0:
                left //= size
            elif size % left == 0:
                return placed.mesh, axis, left
            else:
                raise InputError(
                    f"shards of {layer.shard_size} ranks must divide the replicas of '{name}', or "
                    f"be a multiple, but an axis has {size}; choose another --shard-size"
                )
    return None


def _cut_sharding(sharding: Sharding, meshes: list[int], name: str, inner: int) -> Sharding:
    """The same with an axis of some meshes cut in two.

    Parameters
    ----------
    sharding
        Where tensors lie.
    meshes, name
        Numbers of the meshes, and the name of the axis.
    inner
        Members of the inner one of the two. [items]
    """
    rows = list(sharding.meshes)
    for number in meshes:
        rows[number] = _cut_mesh(rows[number], name, inner)
    layers = {
        key: _cut_layer(layer, sharding.meshes[layer.mesh], name) if layer.mesh in meshes else layer
        for key, layer in sharding.layers.items()
    }
    return replace(sharding, meshes=tuple(rows), layers=layers)


def _cut_mesh(mesh: Mesh, name: str, inner: int) -> Mesh:
    axes: list[MeshAxis] = []
    for axis in mesh.axes:
        if axis.name != name:
            axes.append(axis)
            continue
        axes.append(MeshAxis(name=name, size=axis.size // inner))
        axes.append(MeshAxis(name=f"{name}_shard", size=inner))
    return replace(mesh, axes=tuple(axes))


def _cut_layer(layer: LayerSharding, mesh: Mesh, name: str) -> LayerSharding:
    at = mesh.names.index(name)

    def tensor(one: TensorPlacement) -> TensorPlacement:
        placements = (*one.placements[: at + 1], one.placements[at], *one.placements[at + 1 :])
        sums = [each for axis in one.gradient_sums for each in _twice(axis, name)]
        return replace(one, placements=placements, gradient_sums=tuple(sums))

    return replace(
        layer,
        inputs=tuple(map(tensor, layer.inputs)),
        weights=tuple(map(tensor, layer.weights)),
        output=tensor(layer.output),
        statistics_sums=tuple(n for axis in layer.statistics_sums for n in _twice(axis, name)),
    )


def _twice(axis: str, name: str) -> list[str]:
    return [axis, f"{name}_shard"] if axis == name else [axis]
