"""The usual strategies that a plan is compared with take as many samples at a time as fit."""

from __future__ import annotations

import pytest

import planner
from costmodels.simulation import load_runtime
from planner.planning import staged
from planner.planning.staged import UsualTrial, tried, usual_trials
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

    monkeypatch.setattr(staged, "tried", counted)
    found = trials(global_batch_size=4, memory="1.3 GiB")
    assert not found["zero1"].baseline.fits
    assert not found["fsdp"].baseline.fits
    assert len(asked) == len(found)


def test_one_sample_at_a_time_where_more_do_not_fit():
    memory = "3 GiB"
    chosen = planner.evaluate("gpt2", strategy="zero1", memory=memory, **QUESTION)
    assert not chosen.fits
    trial = trials(memory=memory)["zero1"]
    assert trial.name == "zero1:micro_batch_size=1"
    assert trial.baseline.fits
    assert trial.baseline.step_time_s > chosen.step_time_s
