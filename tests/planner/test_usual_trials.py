"""The usual strategies that a plan is compared with take as many samples at a time as fit."""

from __future__ import annotations

import json

import pytest

import planner
from costmodels.simulation import load_runtime
from planner.planning import usual
from planner.planning.staged import tried
from planner.planning.usual import UsualTrial, usual_trials
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

QUESTION = {"gpus": 4, "global_batch_size": 128}


def trials(**more) -> dict[str, UsualTrial]:
    setting = resolve(make_request("optimize", {"model": "gpt2"} | QUESTION | more))
    rows = usual_trials(setting, load_runtime("ddp"), Deadline(None))
    return {one.name.partition(":")[0]: one for one in rows}


@pytest.mark.parametrize("name", ["zero1", "fsdp"])
def test_as_many_samples_at_a_time_as_evaluate_chooses(name):
    trial = trials()[name]
    alone = planner.evaluate("gpt2", strategy=name, **QUESTION)
    assert trial.name == name
    assert trial.baseline.step_time_s == pytest.approx(alone.step_time_s, rel=1e-9)


def test_nothing_is_simulated_twice(monkeypatch):
    asked = []

    def counted(setting, degrees, *others):
        asked.append(degrees)
        return tried(setting, degrees, *others)

    monkeypatch.setattr(usual, "tried", counted)
    found = trials(global_batch_size=4, memory="1.3 GiB")
    assert not found["zero1"].baseline.fits
    assert not found["fsdp"].baseline.fits
    assert len(asked) == len(found)


@pytest.mark.slow
def test_half_as_many_samples_at_a_time_where_more_do_not_fit(tmp_path):
    path = tmp_path / "config.json"
    rows = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 768}
    rows |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    rows |= {"vocab_size": 50257, "max_position_embeddings": 1024, "tie_word_embeddings": False}
    path.write_text(json.dumps(rows))
    steps = []
    # the gradient of the loss takes more than all that is kept for it
    for memory, size in (("3 GiB", 4), ("4 GiB", 8), ("5.2 GiB", 8)):
        question = {"gpus": 4, "global_batch_size": 64, "precision": "fp16", "memory": memory}
        trial = trials(model=str(path), **question)["zero1"]
        alone = planner.evaluate(str(path), strategy=trial.name, **question)
        assert alone.fits
        assert trial.name == f"zero1:micro_batch_size={size}"
        assert trial.baseline.step_time_s == pytest.approx(alone.step_time_s, rel=1e-9)
        more = planner.evaluate(
            str(path), strategy=f"zero1:micro_batch_size={2 * size}", **question
        )
        assert not more.fits
        steps.append(trial.baseline.step_time_s)
    assert steps == sorted(steps, reverse=True)
