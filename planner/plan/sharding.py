"""Where every tensor of a plan lies: meshes of ranks, placements by axis, and what moves between.

The words are those of PyTorch's DTensor, as text, so that nothing of it is needed to read them:
`Shard(0)` where an axis of the mesh cuts a dim of the tensor into contiguous blocks, `Replicate`
where all members of the axis hold the same, `Partial(sum)` where they hold summands. Where several
axes cut one dim, the first one chooses the largest blocks. `docs/plan-files.md` describes the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from costmodels.errors import InputError, closest

REPLICATE, PARTIAL = "Replicate", "Partial(sum)"
# The axis of a mesh of all ranks along which the stages of a pipeline lie.
PIPELINE_AXIS = "pp"
_SHARD = re.compile(r"Shard\((\d{1,2})\)", re.ASCII)


def shard(dim: int) -> str:
    """The placement of a tensor that is cut along one of its dims."""
    return f"Shard({dim})"


def sharded_dim(placement: str) -> int | None:
    """The dim that a placement cuts, None where it cuts none."""
    found = _SHARD.fullmatch(placement)
    return int(found[1]) if found else None


class MeshAxis(Struct, frozen=True, kw_only=True):
    """One axis of a mesh.

    Parameters
    ----------
    name
        Such as "host", or "host_0" and "host_1" where a level of the cluster makes several axes.
    size
        Members. [items]
    """

    name: str
    size: int


class Mesh(Struct, frozen=True, kw_only=True):
    """Ranks as an array with named axes, the last of which counts neighbours.

    Parameters
    ----------
    first_rank
        The first of its ranks, which are as many from there on as it has members.
    axes
        From the outermost level of the cluster to the innermost.
    """

    first_rank: int
    axes: tuple[MeshAxis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Members of each axis. [items]"""
        return tuple(axis.size for axis in self.axes)

    @property
    def ranks(self) -> range:
        """All ranks of the mesh; reshaped to `shape` they are its array."""
        return range(self.first_rank, self.first_rank + math.prod(self.shape))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank of the mesh lies, along each axis."""
        place, found = rank - self.first_rank, []
        for size in reversed(self.shape):
            place, digit = divmod(place, size)
            found.append(digit)
        return tuple(reversed(found))


class TensorPlacement(Struct, frozen=True, kw_only=True):
    """One weight, input or output of a layer.

    Parameters
    ----------
    name
        "weight", "bias", "input" or "output".
    dims
        What each of its dims is.
    shape, local_shape
        Extents of the whole and of the largest block; block i of n positions that are cut d ways
        starts at floor(i n / d). [items]
    placements
        One for each axis of the mesh of its layer.
    gradient_sums
        Axes over whose members its gradient must be summed.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    placements: tuple[str, ...]
    gradient_sums: tuple[str, ...] = ()


class LayerSharding(Struct, frozen=True, kw_only=True):
    """The tensors of a layer.

    Parameters
    ----------
    mesh
        Number of its mesh, of those of the plan.
    inputs, weights, output
        What it reads, its weight and its bias, and what it writes, with what is a partial sum
        before anything is sent.
    statistics_sums
        Axes over whose members its statistics (of a norm, of a softmax) are summed.
    """

    mesh: int
    inputs: tuple[TensorPlacement, ...]
    weights: tuple[TensorPlacement, ...]
    output: TensorPlacement
    statistics_sums: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[TensorPlacement, ...]:
        """All of them."""
        return (*self.inputs, *self.weights, self.output)

    @property
    def weight(self) -> TensorPlacement:
        """The weight, or whatever else it has to train."""
        return self.weights[0]


class Shuffle(Struct, frozen=True, kw_only=True):
    """The output of one layer on its way to be the input of another.

    Parameters
    ----------
    source, target, slot
        The layers, and which of its inputs the second one reads it as.
    collective
        all_reduce, reduce_scatter, all_gather, all_to_all, or send_recv for all others; slice
        where every rank has what it needs, and more.
    axes
        Axes of their mesh along which the placements differ, none where the meshes do.
    """

    source: str
    target: str
    slot: int
    collective: str
    axes: tuple[str, ...] = ()


class Sharding(Struct, frozen=True, kw_only=True):
    """All that a launcher needs to shard by.

    Parameters
    ----------
    meshes
        One for each group of ranks that runs stages; more where no axes fit all of its layers.
    layers
        Every layer by name.
    shuffles
        In the order of the layers that read; what stays where it is needs none.
    """

    meshes: tuple[Mesh, ...]
    layers: Mapping[str, LayerSharding]
    shuffles: tuple[Shuffle, ...] = ()

    @property
    def mesh(self) -> Mesh:
        """One mesh of all ranks: that of a pipeline has an axis in front.

        Raises
        ------
        InputError
            When no axes fit all layers.
        """
        first = self.meshes[0]
        size = len(first.ranks)
        starts = [mesh.first_rank for mesh in self.meshes]
        alike = all(mesh.axes == first.axes for mesh in self.meshes)
        if not alike or starts != list(range(0, size * len(starts), size)):
            raise InputError(
                f"the plan must have one mesh of ranks but has {len(starts)}, since its layers are "
                "split by degrees that do not divide each other, or its stages have unlike groups; "
                "use those of plan.sharding.meshes"
            )
        if len(starts) == 1:
            return first
        stages = MeshAxis(name=PIPELINE_AXIS, size=len(starts))
        return Mesh(first_rank=0, axes=(stages, *first.axes))

    def layer(self, name: str) -> LayerSharding:
        """The tensors of a layer.

        Raises
        ------
        InputError
            When there is no such layer.
        """
        if name not in self.layers:
            known = closest(name, list(self.layers))
            raise InputError(f"the plan has no layer '{name}'; use one of {known}")
        return self.layers[name]


def known_sharding(sharding: Sharding | None) -> Sharding:
    """What a plan says to shard by.

    Raises
    ------
    InputError
        When it is of a version that says nothing.
    """
    if sharding is None:
        raise InputError(
            "the plan must say where tensors lie but is of an older version; make it again with "
            "'planner optimize -o'"
        )
    return sharding


def sharding_faults(sharding: Sharding, gpus: int) -> Iterator[tuple[str, str]]:
    """What of a sharding cannot be: a rule that is broken, and by what.

    Parameters
    ----------
    sharding
        What a file says.
    gpus
        Ranks of the plan. [items]
    """
    if not sharding.meshes:
        yield "sharding.meshes must have a mesh", "has none"
    for number, mesh in enumerate(sharding.meshes):
        most = max(mesh.shape, default=0)
        within = most <= gpus and mesh.first_rank >= 0 and mesh.ranks.stop <= gpus
        if not mesh.axes or min(mesh.shape) < 1 or not within:
            yield f"sharding.meshes[{number}] must be on ranks 0 to {gpus - 1}", "is not"
        if len(set(mesh.names)) < len(mesh.axes):
            yield f"the axes of sharding.meshes[{number}] must have names of their own", "do not"
    for name, layer in sharding.layers.items():
        if not 0 <= layer.mesh < len(sharding.meshes):
            yield f"the mesh of layer '{name}' must be one of sharding.meshes", f"is {layer.mesh}"
            return
        for tensor in layer.tensors:
            if fault := _tensor_fault(tensor, sharding.meshes[layer.mesh]):
                yield f"the {tensor.name} of layer '{name}' in sharding {fault[0]}", fault[1]
    for one in sharding.shuffles:
        if not {one.source, one.target} <= set(sharding.layers):
            yield "sharding.shuffles must be between layers", f"name {one.source}, {one.target}"


def _tensor_fault(tensor: TensorPlacement, mesh: Mesh) -> tuple[str, str] | None:
    """A rule that a tensor breaks, and what it says instead."""
    if len(tensor.placements) != len(mesh.axes):
        return f"must have {len(mesh.axes)} placements", f"has {len(tensor.placements)}"
    if not len(tensor.dims) == len(tensor.shape) == len(tensor.local_shape):
        return "must say of each dim what it is and its extents", "does not"
    if not set(tensor.gradient_sums) <= set(mesh.names):
        return f"must name axes of {', '.join(mesh.names)}", f"names {list(tensor.gradient_sums)}"
    ways = [1] * len(tensor.shape)
    for placement, axis in zip(tensor.placements, mesh.axes, strict=True):
        dim = sharded_dim(placement)
        if dim is None and placement not in (REPLICATE, PARTIAL):
            return f"must be placed by Shard(n), {REPLICATE} or {PARTIAL}", f"is '{placement}'"
        if dim is not None and dim >= len(ways):
            return f"must be cut along one of its {len(ways)} dims", f"is '{placement}'"
        if dim is not None:
            ways[dim] *= axis.size
    local = tuple(-(-extent // cut) for extent, cut in zip(tensor.shape, ways, strict=True))
    if local != tensor.local_shape:
        return f"must have blocks of {list(local)}", f"has {list(tensor.local_shape)}"
    return None
