"""Plans over stages, micro-batches and sharding beside published ways to train the same network.

Each published configuration is simulated as it is, on the same inputs as the plan. Those of
gpt3-175b on 64, 256 and 1024 GPUs are what the exhaustive search of Calculon (Isaev et al. 2023)
picks without offload.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import planner
from costmodels.simulation import load_runtime
from planner.planning.staged import tried
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import DEFAULT_RUNTIME, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A question, and how others train it.

    Parameters
    ----------
    source
        Who does.
    asked
        The question.
    degrees
        What they do.
    """

    source: str
    asked: dict[str, object]
    degrees: Degrees


def _gpt3(gpus: int, batch: int) -> dict[str, object]:
    return {
        "model": "gpt3-175b",
        "cluster": "dgx-a100",
        "gpus": gpus,
        "global_batch_size": batch,
        "precision": "bf16",
        "optimizer": "adam",
    }


def _megatron(pp: int, chunks: int) -> Degrees:
    return Degrees(
        tp=8,
        pp=pp,
        chunks=chunks,
        schedule="interleaved",
        sequence_parallel=True,
        recompute="selective",
        zero=1,
        micro_batch_size=1,
    )


PUBLISHED = (
    Published(source="calculon", asked=_gpt3(64, 64), degrees=_megatron(4, 12)),
    Published(source="calculon", asked=_gpt3(256, 256), degrees=_megatron(2, 16)),
    Published(source="calculon", asked=_gpt3(1024, 1024), degrees=_megatron(4, 12)),
)


def joint_rows(smoke: bool) -> list[dict[str, object]]:
    """A row for each published configuration, only the first where a quick case is enough."""
    return [_published_row(one) for one in PUBLISHED[: 1 if smoke else None]]


def _published_row(one: Published) -> dict[str, object]:
    began = time.process_time()
    plan = planner.optimize(**one.asked)
    took = time.process_time() - began
    setting = resolve(make_request("optimize", one.asked))
    step, reason = tried(setting, one.degrees, load_runtime(DEFAULT_RUNTIME))
    return {
        "model": plan.model,
        "gpus": plan.gpus,
        "batch": plan.global_batch_size,
        "plan [s]": plan.step_time_s,
        "plan [GiB]": plan.peak_memory / 2**30,
        "gap": plan.search.gap,
        "cpu [s]": took,
        "published": one.source,
        "published [s]": reason if step is None else step.seconds,
        "published [GiB]": "" if step is None else step.peak_memory / 2**30,
        "fits": step is not None and step.fits,
    }
