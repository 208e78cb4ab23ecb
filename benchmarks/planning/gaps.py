"""How far every plan may be from the best there is, and what it took to know that."""

from __future__ import annotations

import time
from collections.abc import Iterable

from benchmarks.planning.speed import cold
from benchmarks.planning.wide import WIDE

# Networks of every family whose training state fits a device without stages.
NETWORKS = (
    *("alexnet", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("googlenet", "inception_v3", "densenet121", "densenet161", "mobilenet_v2"),
    *("efficientnet_b0", "unet", "cosmoflow", "cosmoflow-256", "cosmoflow-128"),
    *("mesh-1k", "mesh-2k", "gpt2"),
)
# Networks that are asked about on 1024 GPUs, besides 64 and 256: those that split samples.
LARGE = ("cosmoflow", "cosmoflow-256", "cosmoflow-128", "mesh-1k", "mesh-2k", "unet")
AIM, AIM_ALL_REDUCE = 0.02, 0.08
# All-reduces of gradients dominate where they last at least this part of the step, hidden or not.
DOMINANT = 0.5


def gap_cases(models: Iterable[str]) -> list[tuple[str, int]]:
    """The networks on 64 and on 256 GPUs, and those that split samples on 1024, too."""
    return [(m, n) for m in models for n in (64, 256, 1024) if n < 1024 or m in LARGE]


def gap_rows(cases: Iterable[tuple[str, int]]) -> list[dict[str, object]]:
    """Time, memory and gap of each question, over every distribution of the network.

    Parameters
    ----------
    cases
        Networks and numbers of GPUs.
    """
    rows = []
    for model, gpus in cases:
        wall, memory, answer = cold(model, gpus)
        step, exposed, hidden = (
            answer[name] for name in ("step_time_s", "breakdown_s", "hidden_s")
        )
        assert isinstance(step, float)
        assert isinstance(exposed, dict)
        assert isinstance(hidden, dict)
        reduced = (exposed["gradient"] + hidden["gradient"]) / step
        aim = AIM_ALL_REDUCE if reduced >= DOMINANT else AIM
        gap = float(str(answer["gap"]))
        rows.append(
            {
                "model": model,
                "gpus": gpus,
                "wall_s": wall,
                "peak_memory_bytes": memory,
                "step_time_s": step,
                "all_reduce_share": reduced,
                "gap": gap,
                "aim": aim,
                "kept": gap <= aim,
            }
        )
    return rows


def wide_rows(names: Iterable[str], gpus: int) -> list[dict[str, object]]:
    """Networks that are too wide for elimination: time, step and gap.

    Parameters
    ----------
    names
        Of `WIDE`.
    gpus
        Number of GPUs.
    """
    import planner

    rows = []
    for name in names:
        network = WIDE[name]()
        start = time.perf_counter()
        plan = planner.optimize(network, gpus=gpus)
        rows.append(
            {
                "network": name,
                "layers": len(plan.layers),
                "gpus": gpus,
                "wall_s": time.perf_counter() - start,
                "step_time_s": plan.step_time_s,
                "gap": plan.search.gap,
            }
        )
    return rows
