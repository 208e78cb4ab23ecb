"""What does not fit is told before it is simulated, by what it holds at least."""

from __future__ import annotations

import random

import pytest
from questions import small_llama

import planner
from costmodels.simulation import load_runtime
from planner.errors import InfeasibleError
from planner.joint.activations import LeastOfStages
from planner.joint.choices import choices
from planner.joint.misfits import Misfits
from planner.joint.runtimes import choice_runtime
from planner.joint.variants import with_variants
from planner.joint.ways_inside import insides
from planner.planning import staged
from planner.planning.staged import tried
from planner.planning.usual import usual_trials
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline


def asked_for(model, gpus=8, batch=32, **more):
    asked = {"model": model, "gpus": gpus, "cluster": "dgx-a100", "global_batch_size": batch}
    return resolve(make_request("optimize", {**asked, **more}))


def sampled(setting, seed, count):
    """Some choices of a question, all kinds of them."""
    every = list(with_variants(setting, choices(setting, list(insides(setting)))))
    few = [one for one in every if one.micro_batches <= 16]
    return random.Random(seed).sample(few, count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "runtime", "seed"),
    [("resnet18", "ddp", 1), ("gpt2", "ddp", 2), ("gpt2", "nanotron", 3)],
)
def test_nothing_holds_less_than_is_told_before(model, runtime, seed):
    setting, runtime = asked_for(model), load_runtime(runtime)
    near, known, told = [], {}, []

    def holds_more(short):
        told.append(short)
        return False

    for choice in sampled(setting, seed, 24):
        ways = choice_runtime(runtime, choice.zero)
        found, _ = tried(setting, choice.degrees, ways, known, None, holds_more)
        if found is not None:
            held = found.capacity + told.pop()
            assert held <= (found.capacity + found.short) * (1.0 + 1e-12)
            near.append(held > (found.capacity + found.short) * 0.995)
    assert sum(near) >= 0.9 * len(near) > 10.0


@pytest.mark.parametrize("degrees", [{"offload": ("activations",)}, {"zero": 3, "recompute": 2}])
def test_what_comes_and_goes_in_a_pass_is_told_as_well(degrees):
    setting, told = asked_for("gpt2", precision="bf16", optimizer="adam"), []
    degrees = Degrees(pp=2, micro_batches=4, **degrees)
    ways = choice_runtime(load_runtime("ddp"), degrees.zero or 0)
    found, reason = tried(setting, degrees, ways, None, None, told.append)
    assert found is not None, reason
    activations = found.step.peak.memory.holders["activations"]
    assert found.short - 0.5 * activations < told[0] <= found.short + 1.0


def test_a_stage_of_the_loss_alone_has_no_weights_to_update_in_its_host(tmp_path):
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4}
    config = small_llama(tmp_path, **sizes, num_hidden_layers=4, vocab_size=50257)
    setting, told = asked_for(config, gpus=4, precision="bf16", optimizer="adam"), []
    # shares of computation, of which the head has most
    degrees = Degrees(pp=4, micro_batches=4, offload=("weights",))
    found, reason = tried(setting, degrees, load_runtime("nanotron"), None, None, told.append)
    assert found is not None, reason
    last = found.placed.strategy.stages[-1].layers
    assert list(last) == ["loss"]
    assert told[0] <= found.short + 1.0


def test_pipelines_that_do_not_fit_are_not_laid_out(monkeypatch):
    setting, told = asked_for("resnet18", memory="1.1 GiB", batch=512), []

    def refused(*_):
        raise AssertionError("what does not fit is told before")

    monkeypatch.setattr(staged, "run_job", refused)
    misfits = Misfits(setting=setting, least=LeastOfStages(setting))
    choice = next(
        one
        for one in choices(setting, list(insides(setting)))
        if (one.pp, one.micro_batches, one.inside.recompute) == (8, 64, "none")
    )
    found, reason = tried(
        setting,
        choice.degrees,
        load_runtime("ddp"),
        None,
        None,
        lambda short: told.append(short) or misfits.holds_more(choice, short),
    )
    assert (found, reason) == (None, "")
    assert misfits.short == {choice: told[0]}
    assert list(misfits.smallest_first()) == [choice]


@pytest.mark.slow
def test_a_refusal_says_what_the_smallest_holds():
    asked = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 64, "keep": "tp=1,pp=2"}
    with pytest.raises(InfeasibleError, match="smallest of") as told:
        planner.optimize("resnet18", memory="1.05 GiB", **asked)
    limit = 1.05 * 2**30
    more = limit + told.value.missing_bytes
    plan = planner.optimize("resnet18", memory=more * 1.001, **asked)
    assert limit < plan.peak_memory <= more * 1.001


def test_usual_ways_that_take_fewer_samples_are_laid_out_with_these_alone(monkeypatch):
    setting, laid_out = asked_for("resnet18", memory="1.3 GiB", batch=256), []
    run_job = staged.run_job
    monkeypatch.setattr(
        staged, "run_job", lambda work, *how: laid_out.append(work) or run_job(work, *how)
    )
    rows = usual_trials(setting, load_runtime("ddp"), Deadline(None))
    fewer = [one for one in rows if "micro_batch_size=1" in one.name]
    assert fewer
    assert len(laid_out) == sum(one.step is not None for one in rows)
