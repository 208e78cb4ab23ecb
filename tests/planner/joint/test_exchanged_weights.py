"""Stages that share a weight exchange its gradients: in estimates as in the simulation."""

from __future__ import annotations

import json

import pytest

from planner.joint.choices import choices
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.variants import with_variants
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "vocab_size": 50257,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("pp", "gpus", "cluster", "schedule", "off"),
    [
        (2, 4, "aws-p3.2xlarge", "1f1b", 0.08),
        (4, 4, "aws-p3.2xlarge", "1f1b", 0.08),
        (4, 4, "aws-p3.2xlarge", "zero-bubble", 0.08),
        # passes of weights hide the exchange where nothing else travels
        (2, 2, "dgx-a100", "zero-bubble", 0.005),
    ],
)
def test_estimates_exchange_gradients_of_weights_that_stages_share(
    tmp_path, pp, gpus, cluster, schedule, off
):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    asked = {"model": str(path), "gpus": gpus, "cluster": cluster, "global_batch_size": 8}
    setting = resolve(make_request("optimize", {**asked, "precision": "fp16"}))
    runtime = searched_runtime(setting)
    estimates = Estimates(setting, runtime)
    once = [one for one in insides(setting) if one.tp == 1 and one.recompute == "none"]
    (choice, *_) = (
        one
        for one in with_variants(setting, choices(setting, once, (0,)))
        if (one.pp, one.chunks, one.schedule, one.samples) == (pp, 1, schedule, 1)
    )
    one = estimates.of(choice)
    step, reason = tried(setting, one.choice.degrees, choice_runtime(runtime, 0))
    assert step is not None, reason
    assert one.seconds == pytest.approx(step.seconds, rel=off)
