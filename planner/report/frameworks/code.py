"""Plans as meshes and placements in Python: exactly what they say, weight by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pprint import pformat

from costmodels.graph import SPATIAL_DIMS
from planner.plan import Mesh, Plan, TensorPlacement
from planner.plan.sharding import known_sharding, sharded_dim
from planner.report.frameworks.uniform import recompute_of, zero_of
from planner.request.frameworks import FRAMEWORKS, WayToTrain

Written = tuple[Mapping[str, str], tuple[str, ...]]

_FSDP2 = '''"""The meshes and placements of a plan for {model}, made by 'planner export'."""

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

MESH_SHAPE = {shape}
MESH_NAMES = {names}
# Of each layer the placements of its weights and bias, one for each axis of the mesh.
WEIGHTS = {weights}
# Of each layer the placements of what it reads and writes.
ACTIVATIONS = {activations}


def device_mesh(device_type="cuda"):
    return init_device_mesh(device_type, MESH_SHAPE, mesh_dim_names=MESH_NAMES)


def placements(words):
    named = {{"Replicate": Replicate(), **{{f"Shard({{dim}})": Shard(dim) for dim in range(6)}}}}
    return [named[word] for word in words]


def shard(model, mesh):
    """Make DTensors of the weights of a module whose submodules are called as the layers are."""
    for layer, weights in WEIGHTS.items():
        module = model.get_submodule(layer)
        for name, words in weights.items():
            weight = getattr(module, name)
            placed = distribute_tensor(weight.data, mesh, placements(words))
            setattr(module, name, nn.Parameter(placed, requires_grad=weight.requires_grad))
        # the statistics of a batch norm are cut as its weight is
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and "weight" in weights:
                placed = distribute_tensor(buffer, mesh, placements(weights["weight"]))
                module.register_buffer(name, placed)
    return model
'''
_JAX = '''"""The mesh and partition specs of a plan for {model}, made by 'planner export'."""

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

MESH_SHAPE = {shape}
MESH_NAMES = {names}
# Of each layer the axes of the mesh that cut each dim of its weights and bias.
WEIGHTS = {weights}
# Of each layer those that cut what it reads and writes.
ACTIVATIONS = {activations}


def device_mesh(devices=None):
    # XLA divides the work, and sends what a layer reads of other ranks
    automatic = (AxisType.Auto,) * len(MESH_NAMES)
    return jax.make_mesh(MESH_SHAPE, MESH_NAMES, axis_types=automatic, devices=devices)


def sharding(mesh, spec):
    return NamedSharding(mesh, PartitionSpec(*spec))
'''
# Tried with PyTorch 2.13 on two ranks (2026-11-29).
_OF_BATCH_NORMS = (
    "how batch norms are split: DTensor gathers the samples that they read on every rank, which "
    "takes longer and holds more than the plan says, and has no backward pass of group norms, "
    "which plans have as batch norms"
)


def _not_said(plan: Plan, framework: str) -> Iterator[str]:
    """What of a plan neither meshes and placements nor the framework say."""
    zero = max((zero_of(layer) for layer in plan.layers.values()), default=0)
    way = WayToTrain(
        zero=zero,
        recompute=recompute_of(plan),
        micro_batches=plan.schedule.micro_batches,
        optimizer=plan.training.optimizer,
        offload=tuple(plan.offload),
    )
    yield from FRAMEWORKS[framework].lacks(way)
    by_space = any(dim in layer.degrees for layer in plan.layers.values() for dim in SPATIAL_DIMS)
    if by_space and not FRAMEWORKS[framework].exchanges_halos:
        yield "halos of convolutions that are split by space: exchange them in the layers"
    if plan.ring_attention:
        yield "keys and values that come around a ring: by placements they are gathered at once"
    if plan.gather_again:
        yield (
            "inputs that are gathered again for the backward pass: what is gathered may be kept "
            "until then, in more memory"
        )


def _filled_in(plan: Plan, words: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    mesh = plan.mesh
    return {
        "model": plan.model.replace("\\", "").replace('"', ""),
        "shape": repr(mesh.shape),
        "names": repr(mesh.names),
        **{name: pformat(dict(rows), width=100, sort_dicts=False) for name, rows in words.items()},
    }


def fsdp2(plan: Plan) -> Written:
    """A module that makes DTensors of the weights of a model."""
    layers = known_sharding(plan.sharding).layers
    weights = {
        name: {one.name: one.placements for one in layer.weights}
        for name, layer in layers.items()
        if layer.weights
    }
    activations = {
        name: {
            "inputs": tuple(one.placements for one in layer.inputs),
            "output": layer.output.placements,
        }
        for name, layer in layers.items()
    }
    tables = _filled_in(plan, {"weights": weights, "activations": activations})
    cannot = tuple(_not_said(plan, "fsdp2"))
    if any(layer.kind == "batch_norm" for layer in plan.layers.values()):
        cannot = (*cannot, _OF_BATCH_NORMS)
    return {"sharded.py": _FSDP2.format(**tables)}, cannot


def partition_spec(tensor: TensorPlacement, mesh: Mesh) -> tuple[tuple[str, ...] | None, ...]:
    """The axes that cut each dim of a tensor."""
    cut: list[list[str]] = [[] for _ in tensor.dims]
    for name, placement in zip(mesh.names, tensor.placements, strict=True):
        dim = sharded_dim(placement)
        if dim is not None:
            cut[dim].append(name)
    return tuple(tuple(names) or None for names in cut)


def jax(plan: Plan) -> Written:
    """A module with a mesh and partition specs."""
    sharding = known_sharding(plan.sharding)
    weights: dict[str, dict[str, object]] = {}
    activations: dict[str, dict[str, object]] = {}
    for name, layer in sharding.layers.items():
        mesh = sharding.meshes[layer.mesh]
        if layer.weights:
            weights[name] = {one.name: partition_spec(one, mesh) for one in layer.weights}
        activations[name] = {
            "inputs": tuple(partition_spec(one, mesh) for one in layer.inputs),
            "output": partition_spec(layer.output, mesh),
        }
    tables = _filled_in(plan, {"weights": weights, "activations": activations})
    cannot = tuple(_not_said(plan, "jax"))
    uneven = [
        name
        for name, layer in sharding.layers.items()
        if any(_is_uneven(one, sharding.meshes[layer.mesh]) for one in layer.tensors)
    ]
    if uneven:
        cannot = (*cannot, f"blocks that are not equal, which JAX has not: {', '.join(uneven)}")
    return {"sharded.py": _JAX.format(**tables)}, cannot


def _is_uneven(tensor: TensorPlacement, mesh: Mesh) -> bool:
    sizes = dict(zip(mesh.names, mesh.shape, strict=True))
    for extent, names in zip(tensor.shape, partition_spec(tensor, mesh), strict=True):
        ways = 1
        for name in names or ():
            ways *= sizes[name]
        if extent % ways:
            return True
    return False
