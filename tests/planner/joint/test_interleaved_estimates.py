"""Estimates of interleaved stages: each round of micro-batches waits for all its messages."""

from __future__ import annotations

import json
import statistics

from planner.joint.choices import choices
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

NUM_TRIED = 24


def test_messages_between_interleaved_stages_are_waited_for(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 8,
                "vocab_size": 32000,
                "max_position_embeddings": 1024,
            }
        )
    )
    # hosts of one GPU, whose messages take as long as passes do
    asked = {"gpus": 16, "cluster": "aws-p3.2xlarge", "global_batch_size": 32, "precision": "fp16"}
    setting = resolve(make_request("optimize", {"model": str(path), **asked}))
    estimates = Estimates(setting, searched_runtime(setting))
    rows = [one for one in choices(setting, list(insides(setting)), (0,)) if one.chunks > 1]
    errors = []
    for choice in rows[:: max(len(rows) // NUM_TRIED, 1)]:
        found, _ = tried(setting, choice.degrees, choice_runtime(estimates.runtime, choice.zero))
        assert found is not None
        errors.append(abs(estimates.of(choice).seconds / found.seconds - 1.0))
    assert statistics.median(errors) < 0.025


def test_stages_that_compute_nothing_while_they_send_take_longer():
    asked = {"gpus": 16, "cluster": "dgx1-v100", "global_batch_size": 32, "input_size": 512}
    request = make_request("optimize", {"model": "gpt2-large", "runtime": "deepspeed", **asked})
    setting = resolve(request)
    estimates, errors = Estimates(setting, searched_runtime(setting)), []
    for choice in choices(setting, list(insides(setting)), (0,)):
        inside = choice.inside
        plain = (inside.tp, inside.cp, inside.recompute) == (1, 1, "none")
        if plain and choice.pp == 4 and choice.samples == 1:
            found, _ = tried(setting, choice.degrees, estimates.runtime)
            assert found is not None
            errors.append(abs(estimates.of(choice).seconds / found.seconds - 1.0))
    assert len(errors) >= 3
    assert max(errors) < 0.04
