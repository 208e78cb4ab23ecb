"""Convolutions in three dims on one GPU: nnU-Net, as NVIDIA DeepLearningExamples published it.

Nothing is calibrated: the rows say how well the surfaces, fitted to two dims, stand for three. The
network is that of the repository's default for patches of 128^3 (six levels of two convolutions, 32
to 320 filters), without the heads of its deep supervision.
"""

from __future__ import annotations

from benchmarks.accuracy.cells import Cell, Comparison
from benchmarks.accuracy.steps import MeasuredRun
from benchmarks.published.simulated import simulated_prediction
from benchmarks.published.tables import published_rows
from costmodels.graph import LayerSpec, Network
from costmodels.simulation import load_runtime

PATCH, MODALITIES, CLASSES = 128, 4, 4
FILTERS = (32, 64, 128, 256, 320, 320)
CLUSTERS = {"v100": "proteus-hc2", "a100": "dgx-a100"}
SOURCE = "NVIDIA DeepLearningExamples, nnU-Net"


def nnunet() -> Network:
    """Down through six levels, and up again beside what was made on the way."""
    layers: list[LayerSpec] = []

    def add(name: str, kind: str, inputs: tuple[str, ...], **options: object) -> str:
        layers.append(LayerSpec(name=name, kind=kind, inputs=inputs, options=options))
        return name

    def block(prefix: str, source: str, filters: int, stride: int) -> str:
        for number in (1, 2):
            source = add(
                f"{prefix}.conv{number}",
                "conv",
                (source,),
                filters=filters,
                kernel=3,
                padding=1,
                stride=stride if number == 1 else 1,
                bias=False,
            )
            source = add(f"{prefix}.norm{number}", "batch_norm", (source,))
            source = add(f"{prefix}.relu{number}", "activation", (source,))
        return source

    levels = []
    now = "input"
    for level, filters in enumerate(FILTERS):
        now = block(f"down{level}", now, filters, 2 if level else 1)
        levels.append(now)
    for level in reversed(range(len(FILTERS) - 1)):
        up = {"filters": FILTERS[level], "kernel": 2, "stride": 2}
        now = add(f"up{level}.scale", "conv", (now,), **up, transposed=True, bias=False)
        now = add(f"up{level}.concat", "concat", (now, levels[level]))
        now = block(f"up{level}", now, FILTERS[level], 1)
    add("loss", "loss", (add("out", "conv", (now,), filters=CLASSES, kernel=1),))
    return Network(
        name="nnunet-3d",
        input_shape={"channel": MODALITIES, "depth": PATCH, "height": PATCH, "width": PATCH},
        layers=tuple(layers),
        source=SOURCE,
        notes="",
    )


def compare_volumes() -> Comparison:
    """Steps of nnU-Net on one GPU."""
    model = nnunet()
    cells = []
    for row in published_rows("nnunet_3d.csv"):
        batch = int(row["batch"])
        run = MeasuredRun(
            model=model,
            cluster=CLUSTERS[row["gpu"]],
            gpus=1,
            batch=batch,
            options={"precision": row["precision"]},
            runtime=load_runtime("horovod"),
        )
        cells.append(
            Cell(
                group=f"{row['gpu']}, {row['precision']}",
                label=f"batch {batch}",
                kind=f"{row['gpu']}, {row['precision']}",
                gpus=1,
                measured=batch / float(row["images_per_second"]),
                predicted=simulated_prediction(run).total,
            )
        )
    return Comparison(
        name="nnU-Net in three dims, one GPU",
        source=SOURCE,
        unit="s",
        calibration={},
        cells=tuple(cells),
        notes=(
            "The surfaces of convolutions are fitted to two dims, and stand for three: too fast, "
            "but by nothing near the factor of 2.8 that the profile of CosmoFlow asks for.",
        ),
    )
