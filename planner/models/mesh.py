"""The mesh-tangling networks of Dryden et al.: convolutions that segment a simulation's state.

The text of the paper fixes everything but the filter counts, which are inferred (see `NOTES`).
"""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import image_builder

SOURCE = (
    'Dryden et al. 2019, "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained '
    'Parallelism", section VI'
)
CHANNELS, CLASSES = 18, 2
# input size: (convolutions in a block, filters in blocks 1 to 4)
SIZES = {1024: (3, 320), 2048: (5, 128)}
LAST_FILTERS = (384, 128)
NOTES = (
    "The filter counts are an inference, as they stand only in figures: W filters in blocks 1 to "
    "4, then 384, then 128. For the 2K network W = 128, and conv1_1 (C=18, H=W=2048, F=128, K=5, "
    "P=2, S=2) and conv6_1 (C=384, H=W=64, F=128, K=3, P=1, S=2) are as in the headers of Figure "
    "3. It has 0.957e12 multiply-adds a sample, so 2 x 0.247 s (Table II) mean 11.6 TFLOP/s with "
    "backward at twice forward. For the 1K network W = 320 is the multiple of 64 that comes "
    "nearest to that rate: 0.763e12 multiply-adds in 0.403 s (Table I) mean 11.4 TFLOP/s, where "
    "256 would mean 7.3 and 384 16.3, above the peak of a V100. With outputs and gradients of "
    "every layer held in fp32, as in LBANN, a sample takes 8.1 GB (1K) and 21.9 GB (2K): a GPU of "
    "16 GB holds one of 1K but not two, and two GPUs hold one of 2K. A framework that keeps the "
    "outputs of convolutions and ReLUs only needs 2.8 and 7.5 GB. The prediction layer is taken "
    "to be 1x1 with 2 classes."
)


def mesh(published_size: int, size: int) -> Network:
    """The network made for samples of `published_size` pixels, at an input size. [items]"""
    convs, width = SIZES[published_size]
    net = image_builder(size, CHANNELS)
    for block, filters in enumerate((width,) * 4 + LAST_FILTERS, start=1):
        for conv in range(1, convs + 1):
            name, kernel = f"{block}_{conv}", 5 if block == conv == 1 else 3
            net.add(
                f"conv{name}",
                "conv",
                filters=filters,
                kernel=kernel,
                stride=2 if conv == 1 else 1,
                padding=kernel // 2,
            )
            net.add(f"bn{name}", "batch_norm")
            net.add(f"relu{name}", "activation")
    net.add("prediction", "conv", filters=CLASSES, kernel=1, bias=True)
    net.add("loss", "loss")
    return net.network(f"mesh-{published_size // 1024}k", source=SOURCE, notes=NOTES)
