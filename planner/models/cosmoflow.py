"""CosmoFlow: a 3D network that predicts cosmological parameters from a volume.

Of the published variants this is the one that Kahira et al. analyse (their Table IV): its last
convolution leaves one voxel for every input size, so the parameters do not grow with the input.
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import Builder

SOURCE = (
    'Mathuriya et al. 2018, "CosmoFlow: Using Deep Learning to Learn the Universe at Scale", in '
    "the form of Kahira et al. 2021, files COSMOFLOW.net and COSMOFLOW.net_256 of "
    "TruongThaoNguyen/paraDL-analysis"
)
FILTERS = (16, 32, 64, 128, 256, 256, 128)
KERNELS = (3, 3, 3, 3, 2, 2, 2)
# input size: (which convolution has stride 2, how many are padded, how many are pooled after)
SIZES = {512: (3, 0, 6), 256: (4, 6, 6), 128: (4, 6, 5)}
NOTES = {
    512: "Unpadded convolutions.",
    256: "All convolutions but the last are padded to keep their extents.",
    128: (
        "Inferred: Kahira et al. have no such size; it is their network for 256 voxels without "
        "the pooling after conv6, which Oyama et al. 2020 leave out at this size, too."
    ),
}


def cosmoflow(size: int) -> Network:
    strided, padded, pooled = SIZES[size]
    net = Builder(channel=4, depth=size, height=size, width=size)
    for i, (filters, kernel) in enumerate(zip(FILTERS, KERNELS, strict=True), start=1):
        net.add(
            f"conv{i}",
            "conv",
            filters=filters,
            kernel=kernel,
            stride=2 if i == strided else 1,
            padding="same" if i <= padded else 0,
        )
        net.add(f"relu{i}", "activation", function="leaky_relu")
        if i <= pooled:
            net.add(f"pool{i}", "pool", kernel=2, mode="average")
    for i, filters in enumerate((2048, 256), start=1):
        net.add(f"fc{i}", "linear", filters=filters)
        net.add(f"fc{i}.relu", "activation", function="leaky_relu")
    net.add("fc3", "linear", filters=4)
    net.add("loss", "loss")
    return net.network(f"cosmoflow-{size}", source=SOURCE, notes=NOTES[size])
