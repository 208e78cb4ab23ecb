"""Estimates of interleaved stages: each round of micro-batches waits for all its messages."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from msgspec.structs import replace

from planner.joint.choices import choices
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

NUM_TRIED = 24


def _llama(folder: Path, hidden: int) -> str:
    """A network of eight blocks of that size."""
    path = folder / "config.json"
    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_attention_heads": 16}
    more = {"num_hidden_layers": 8, "vocab_size": 32000, "max_position_embeddings": 1024}
    path.write_text(json.dumps({"model_type": "llama", **sizes, **more}))
    return str(path)


def test_gradients_and_weights_of_the_next_stage_share_links(tmp_path):
    # a stage is one block: its gradients travel beside what is gathered for the next one; estimates
    # were 0.82 to 0.9 of these steps without offload, and with it of one 0.77
    asked = {"gpus": 16, "cluster": "juwels-booster", "global_batch_size": 128}
    setting = resolve(make_request("optimize", {"model": _llama(tmp_path, 2048), **asked}))
    estimates = Estimates(setting, searched_runtime(setting))
    found: dict[bool, list[float]] = {False: [], True: []}
    for choice in choices(setting, list(insides(setting)), (3,)):
        inside = choice.inside
        plain = (choice.pp, choice.chunks, inside.recompute, inside.cp) == (2, 4, "none", 1)
        if not plain or inside.tp > 2 or choice.micro_batches not in (16, 32):
            continue
        for waiting in ((), ("weights",)):
            one = replace(choice, offload=waiting)
            step, _ = tried(setting, one.degrees, choice_runtime(estimates.runtime, one.zero))
            assert step is not None
            found[bool(waiting)].append(estimates.of(one).seconds / step.seconds)
    assert len(found[False]) >= 5
    assert 0.88 < min(found[False]) <= max(found[False]) < 1.01
    assert 0.86 < min(found[True]) <= max(found[True]) < 1.08


def test_messages_between_interleaved_stages_are_waited_for(tmp_path):
    # hosts of one GPU, whose messages take as long as passes do
    asked = {"gpus": 16, "cluster": "aws-p3.2xlarge", "global_batch_size": 32, "precision": "fp16"}
    setting = resolve(make_request("optimize", {"model": _llama(tmp_path, 1024), **asked}))
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
