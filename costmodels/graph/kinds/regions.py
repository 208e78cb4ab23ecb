"""Regions of feature maps, which detectors look at one by one."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import relabel
from costmodels.graph.layer import Axis, Layer, Tensor


@layer_kind("roi_align", num_inputs=None)
def roi_align(name: str, inputs: Sequence[Tensor], *, regions: int, extent: int) -> Layer:
    """Regions of each sample, cut out of feature maps by interpolation (He et al. 2017).

    What follows has a sample for each region. Which map a region is from, and where it lies, is
    known while a step runs only, so that samples can be split and maps cannot; a split into more
    ways than there are samples repeats the maps.

    Parameters
    ----------
    name, inputs
        The layer, and the maps that it reads, which have equally many channels.
    regions
        Of a sample. [items]
    extent
        Positions a side of what is cut out. [items]
    """
    for option, value in (("regions", regions), ("extent", extent)):
        if value < 1:
            raise InputError.rule(f"layer '{name}': {option}", "be at least 1", value, "raise it")
    channels = {x.extent("channel") for x in inputs}
    if len(channels) != 1 or any(x.extent("height") * x.extent("width") < 2 for x in inputs):
        raise InputError(
            f"layer '{name}': the feature maps must have height, width and equally many channels "
            f"but have {[[(a.name, a.extent) for a in x.axes] for x in inputs]}; correct the "
            "layers before it"
        )
    samples, width = inputs[0].extent("sample"), channels.pop()
    out = (
        Axis(name="sample", extent=samples * regions, dim="sample"),
        Axis(name="channel", extent=width, dim="channel"),
        Axis(name="height", extent=extent, dim=None),
        Axis(name="width", extent=extent, dim=None),
    )
    return Layer(
        name=name,
        kind="roi_align",
        dims={"sample": samples * regions, "channel": width},
        inputs=tuple(_whole_maps(x) for x in inputs),
        output=Tensor(axes=out),
        # the four sides of each region, and its map
        saved_bytes=20 * samples * regions,
        splittable=frozenset({"sample"}),
    )


def _whole_maps(x: Tensor) -> Tensor:
    """A feature map as it is read: samples are split, space is not."""
    seen = relabel(x, {"channel": "channel"})
    samples = x.extent("sample")
    whole = Axis(name="sample", extent=samples, dim="sample", units=samples)
    return Tensor(axes=tuple(whole if axis.name == "sample" else axis for axis in seen.axes))
