"""What estimates count for communicators, and by how much they are too large, by simulation."""

from __future__ import annotations

import json
import random

import pytest

from costmodels.simulation import load_runtime
from planner.joint.choices import choices
from planner.joint.estimate import Estimates
from planner.joint.ranking import CACHED_MARGIN
from planner.joint.runtimes import searched_runtime
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 4,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
}


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(("cluster", "more"), [("dgx-h100", True), ("dgx-a100", False)])
def test_estimates_count_the_buffers_of_switches_as_the_simulation_does(tmp_path, cluster, more):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    asked = {"model": str(path), "gpus": 16, "cluster": cluster, "global_batch_size": 32}
    setting = resolve(make_request("optimize", {**asked, "precision": "bf16", "optimizer": "adam"}))
    runtimes = [load_runtime("nanotron", switch_buffer=size) for size in (192 * 2.0**20, 0.0)]
    everything = [c for c in choices(setting, list(insides(setting))) if c.zero < 2]
    held = set()
    for choice in random.Random(3).sample(everything, 8):
        estimated, simulated = [], []
        for runtime in runtimes:
            one = Estimates(setting, runtime).of(choice)
            found, reason = tried(setting, one.choice.degrees, runtime)
            assert found is not None, reason
            estimated.append(one.memory)
            simulated.append(found.peak_memory)
        held.add(simulated[0] - simulated[1])
        assert estimated[0] - estimated[1] == pytest.approx(simulated[0] - simulated[1])
    assert (max(held) > 0.0) == more
    assert len(held) > 2 or not more


@pytest.mark.parametrize("pp", [1, 2])
def test_heads_that_some_ranks_share_have_a_communicator_of_their_own(tmp_path, pp):
    """Of 2 heads of keys on 4 ranks, two share the gradient of each."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "num_key_value_heads": 2}))
    asked = {"model": str(path), "gpus": 4 * pp, "cluster": "dgx-a100", "global_batch_size": 8}
    setting = resolve(make_request("optimize", asked))
    runtime = load_runtime("megatron")
    every = choices(setting, list(insides(setting, ("none",))), (0,))
    choice = next(one for one in every if (one.inside.tp, one.pp, one.chunks) == (4, pp, 1))
    found, reason = tried(setting, choice.degrees, runtime)
    assert found is not None, reason
    estimate = Estimates(setting, runtime).of(choice)
    assert estimate.memory == pytest.approx(found.peak_memory, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["nanotron", "megatron-core"])
def test_what_fits_is_rarely_estimated_to_hold_a_tenth_more(runtime):
    asked = {"model": "gpt2", "gpus": 8, "cluster": "dgx-h100", "runtime": runtime}
    setting = resolve(make_request("optimize", {**asked, "global_batch_size": 64}))
    runtime = searched_runtime(setting)
    estimates = Estimates(setting, runtime)
    assert runtime.caching
    every = [one for one in choices(setting, list(insides(setting))) if one.micro_batches < 16]
    above = []
    for choice in random.Random(1).sample(every, 24):
        found, _ = tried(setting, choice.degrees, runtime)
        if found is not None:
            above.append(estimates.of(choice).memory / found.peak_memory - 1.0)
    assert len(above) > 12
    assert sorted(above)[int(0.9 * len(above))] <= CACHED_MARGIN
