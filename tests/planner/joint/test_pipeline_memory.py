"""Estimates of what the stages of a pipeline hold, against what their simulation does."""

from __future__ import annotations

import json
import random

import pytest

from planner import Degrees
from planner.joint.choices import Choice, choices
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.variants import with_variants
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

# The head holds a copy of the embedding, and its logits are larger than what a block keeps.
NETWORK = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
NUM_TRIED = 10


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
def test_memory_of_stages_is_estimated_as_it_is_simulated(tmp_path, schedule):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(NETWORK))
    fields = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 32, "optimizer": "adam"}
    setting = resolve(make_request("optimize", {"model": str(path), **fields}))
    estimates = Estimates(setting, searched_runtime(setting))
    reserved = setting.cluster.device.reserved_memory
    found = with_variants(setting, choices(setting, list(insides(setting)), (0, 1, 2)))
    staged = [one for one in found if one.pp > 1 and one.schedule == schedule]
    errors = []
    for choice in random.Random(11).sample(staged, NUM_TRIED):
        one = estimates.of(choice)
        runtime = choice_runtime(estimates.runtime, choice.zero)
        step, _ = tried(setting, one.choice.degrees, runtime)
        assert step is not None
        errors.append((one.memory - reserved) / (step.peak_memory - reserved) - 1.0)
    # without the copy, with logits of all micro-batches under way, or without what waits for passes
    # of weights beside what others keep, 19, 15 and 26 % off
    assert max(map(abs, errors)) < 0.04


def test_gradients_that_travel_nowhere_are_held_of_few_stages_at_once():
    # all of them were counted twice, and what needs 31 GiB was estimated to need 42
    asked = {"model": "llama3-8b", "cluster": "dgx-h100", "gpus": 2, "runtime": "nanotron"}
    asked |= {"global_batch_size": 16, "input_size": 512, "precision": "bf16"}
    setting = resolve(make_request("optimize", asked))
    runtime, estimates = searched_runtime(setting), Estimates(setting, searched_runtime(setting))
    for chunks, schedule in ((1, "1f1b"), (16, "interleaved")):
        choice = Choice(
            inside=Degrees(recompute="full"),
            samples=1,
            dp=1,
            pp=2,
            chunks=chunks,
            zero=0,
            schedule=schedule,
            micro_batches=16,
        )
        step, _ = tried(setting, choice.degrees, runtime)
        assert step is not None
        assert step.peak_memory <= estimates.of(choice).memory <= 1.07 * step.peak_memory
