"""What a layer has of weights, as tensors that frameworks store: a weight, a bias."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from costmodels.graph import SPATIAL_DIMS, Axis, Layer, Tensor

# Of layers whose numbers are vectors of one dim, what those are.
_VECTORS = {
    "batch_norm": ("weight", "bias"),
    "layer_norm": ("weight", "bias"),
    "bias": ("bias",),
}


def weight_tensors(layer: Layer) -> Iterator[tuple[str, Tensor]]:
    """The weight and the bias of a layer, as frameworks store them."""
    if not layer.held_parameters:
        return
    extents = {dim: layer.dims[dim] for dim in layer.weight_dims}
    axes = [Axis(name=dim, extent=extent, dim=dim) for dim, extent in extents.items()]
    if layer.operation == "conv":
        if layer.groups > 1:
            axes[-1] = replace(axes[-1], extent=axes[-1].extent // layer.groups)
        kernels = [(dim, layer.windows[dim].kernel) for dim in SPATIAL_DIMS if dim in layer.windows]
        axes += [Axis(name=f"kernel {dim}", extent=size, dim=None) for dim, size in kernels]
    names = _VECTORS.get(layer.kind, ("weight",))
    size = Tensor(axes=tuple(axes)).size
    if not axes:
        axes = [Axis(name="number", extent=layer.held_parameters, dim=None)]
    elif "table" in extents:
        rows = layer.held_parameters // extents["filter"]
        axes[0] = Axis(name="row", extent=rows, dim="table")
    elif not layer.multiplies_weight and layer.held_parameters > size * len(names):
        axes.insert(0, Axis(name="row", extent=layer.held_parameters // size, dim=None))
    weight = Tensor(axes=tuple(axes))
    yield from ((name, weight) for name in names)
    if layer.multiplies_weight and layer.held_parameters > weight.size:
        biased = [(dim, n) for dim, n in extents.items() if dim in ("expert", "filter")]
        yield "bias", Tensor(axes=tuple(Axis(name=d, extent=n, dim=d) for d, n in biased))
