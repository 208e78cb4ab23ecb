"""Whether a plan is ever slower than a usual strategy that fits, both as simulated.

Every network of the table on every cluster, at 32 samples a GPU or the largest batch that such a
network trains with; the usual strategies are simulated by themselves.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from benchmarks.planning.monotonic import BATCHES, EQUAL, Answer, Asked, Question

MODELS = (
    *("alexnet", "vgg16", "resnet50", "resnet152", "googlenet", "inception_v3"),
    *("densenet121", "mobilenet_v2", "unet", "cosmoflow-128", "mesh-1k", "gpt2"),
)
CLUSTERS = (
    *("abci", "aws-p3.2xlarge", "dgx-a100", "dgx-h100"),
    *("hkbu-10gbe", "juwels-booster", "lassen"),
)
GPUS, SAMPLES = 32, 32


def usual_questions(smoke: bool) -> list[Question]:
    """What is asked; one question where a quick case is enough."""
    found = [
        Question(
            model=model,
            cluster=cluster,
            gpus=GPUS,
            batch=GPUS * min(SAMPLES, BATCHES.get(model.split("-")[0], SAMPLES)),
        )
        for model, cluster in itertools.product(MODELS, CLUSTERS)
    ]
    return found[:1] if smoke else found


def usual_rows(questions: list[Question], resume: Path | None = None) -> list[dict[str, object]]:
    """A row for each cluster: how many plans are slower than a usual strategy that fits.

    Parameters
    ----------
    questions
        What is asked.
    resume
        File of the answers so far, which are not asked for again.
    """
    ask = Asked(resume)
    answers: dict[str, list[Answer]] = {}
    for question in questions:
        answers.setdefault(question.cluster, []).append(ask(question))
    return [_cluster_row(cluster, found) for cluster, found in answers.items()]


def _cluster_row(cluster: str, answers: list[Answer]) -> dict[str, object]:
    lost = [one.seconds / one.usual - 1.0 for one in answers if one.usual < math.inf]
    return {
        "cluster": cluster,
        "questions": len(answers),
        "no usual fits": sum(one.usual == math.inf for one in answers),
        "faster": sum(part < -EQUAL for part in lost),
        "as fast": sum(abs(part) <= EQUAL for part in lost),
        "slower": sum(part > EQUAL for part in lost),
        "worst": max(lost, default=0.0),
    }
