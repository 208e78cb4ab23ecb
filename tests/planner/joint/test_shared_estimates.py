"""Estimates share what is alike between choices, which changes none of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from questions import small_llama

from costmodels.errors import InputError
from costmodels.strategy.blocks import is_transformer
from planner.joint.choices import Choice, choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.hosts import on_gpus
from planner.joint.offload import offloaded
from planner.joint.passes import exchanged
from planner.joint.runtimes import searched_runtime
from planner.joint.variants import with_variants
from planner.joint.ways_inside import insides
from planner.request.request import make_request
from planner.request.setting import Setting, resolve

QUESTIONS = {
    "gpt2": {"gpus": 16, "cluster": "dgx-a100", "global_batch_size": 32},
    "mixtral-8x7b": {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 16},
    "resnet18": {"gpus": 8, "cluster": "lassen", "global_batch_size": 16},
    "vgg16": {"gpus": 4, "cluster": "abci", "global_batch_size": 16, "runtime": "deepspeed"},
}


def _slow(model):
    return pytest.param(model, marks=pytest.mark.slow) if model == "mixtral-8x7b" else model


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("model", [_slow(model) for model in QUESTIONS])
def test_an_estimate_is_the_same_whatever_was_estimated_before(model):
    setting = resolve(make_request("optimize", {"model": model, **QUESTIONS[model]}))
    heads = [one.dims["head"] for one in setting.graph.compute_layers if one.kind == "attention"]
    ways = [one for one in insides(setting) if all(number % one.tp == 0 for number in heads)]
    drawn = random.Random(7)
    every = list(with_variants(setting, choices(setting, ways)))
    runtime = searched_runtime(setting)
    shared = Estimates(setting, runtime)
    rows = {one: shared.of(one) for one in drawn.sample(every, min(len(every), 200))}
    for choice in drawn.sample(list(rows), 12):
        alone = Estimates(setting, runtime).of(choice)
        assert alone == rows[choice]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "resnet18"])
def test_what_more_gpus_share_changes_no_estimate_and_no_floor(model):
    """Fewer than a host has share its links among each other, too."""
    drawn, asked = random.Random(5), {"model": model, **QUESTIONS[model], "gpus": 8}
    setting = resolve(make_request("optimize", asked))
    part, runtime = on_gpus(setting, 2), searched_runtime(setting)
    more = Estimates(setting, runtime)
    floors = PipelineBounds(setting, more.plain.reduced)
    for choice in _sampled(drawn, setting, 40):
        more.of(choice)
        floors.floor(choice)
    shared, known = more.on(part), floors.on(part)
    compared = _sampled(drawn, part, 25)
    assert model == "resnet18" or any(choice.offload for choice in compared)
    for choice in compared:
        alone = Estimates(part, runtime)
        assert alone.of(choice) == shared.of(choice)
        assert PipelineBounds(part, alone.plain.reduced).floor(choice) == known.floor(choice)


def _sampled(drawn: random.Random, setting: Setting, count: int) -> list[Choice]:
    """Some choices, of transformers some that wait in the hosts."""
    ways = [one for one in insides(setting) if 12 % one.tp == 0]
    every = list(with_variants(setting, choices(setting, ways)))
    found = drawn.sample(every, min(len(every), count))
    attends = is_transformer(setting.graph)
    waiting = [one for choice in found[:5] for one in offloaded(choice)] if attends else []
    return [*found, *waiting]


def test_exchanges_of_chunks_follow_each_other():
    rng = np.random.default_rng(3)
    for chunks in (1, 2, 7):
        begin, end = rng.normal(size=(2, chunks, 4))
        seconds = rng.random((chunks, 4))
        at = np.full(4, -np.inf)
        for chunk in reversed(range(chunks)):
            at = np.maximum(np.maximum(at, begin[chunk]) + seconds[chunk], end[chunk])
        assert exchanged(begin, seconds, end) == pytest.approx(at)


def test_what_is_known_of_a_choice_is_not_above_its_estimate():
    setting = resolve(make_request("optimize", {"model": "gpt2", **QUESTIONS["gpt2"]}))
    estimates = Estimates(setting, searched_runtime(setting))
    ways = [one for one in insides(setting) if 12 % one.tp == 0 and one.recompute == "none"]
    every = list(with_variants(setting, choices(setting, ways, (0,))))
    for choice in random.Random(3).sample(every, min(len(every), 30)):
        seconds = estimates.of(choice).seconds
        assert 0.0 < estimates.known_least(choice) <= seconds
    fresh = Estimates(setting, searched_runtime(setting))
    assert fresh.known_least(every[0]) == 0.0
    assert not fresh.plain.known  # nothing is costed for that


@pytest.mark.parametrize("model", ["gpt2", "resnet18"])
def test_larger_micro_batches_tell_what_smaller_ones_take_at_least(model):
    """Kernels are fuller with more samples: what fewer GPUs would try need not be costed."""
    asked = {"model": model, "cluster": "aws-p3.16xlarge", "gpus": 16, "global_batch_size": 64}
    setting = resolve(make_request("optimize", asked))
    fresh = Estimates(setting, searched_runtime(setting))
    ways = [one for one in insides(setting, ("none",)) if not fresh.plain.splits.refuses(one)]
    every = [one for one in choices(setting, ways, (0,)) if one.samples < 64]
    for choice in random.Random(1).sample(every, 20):
        estimates = Estimates(setting, searched_runtime(setting))
        estimates.plain.of(choice.split, 4 * choice.samples)
        least = estimates.known_least(choice)
        assert len(estimates.plain.known) == 3  # by what is computed again of that alone
        assert 0.0 < least <= fresh.least(choice), choice


def test_more_ranks_of_a_sequence_tell_what_fewer_take_at_least(tmp_path):
    path = small_llama(
        tmp_path,
        hidden_size=1024,
        intermediate_size=2816,
        num_attention_heads=16,
        num_hidden_layers=8,
        vocab_size=32000,
        max_position_embeddings=28672,
    )
    asked = {"cluster": "dgx-h100", "gpus": 56, "global_batch_size": 56, "input_size": 28672}
    setting = resolve(make_request("optimize", {"model": path, "precision": "bf16", **asked}))
    ways = [one for one in insides(setting, ("none",)) if one.cp == 7 and one.tp in (1, 8)]
    found = [one for one in choices(setting, ways, (0,)) if one.micro_batches < 8]
    fresh, estimates = (Estimates(setting, searched_runtime(setting)) for _ in range(2))
    count = 0
    for choice in found:
        if estimates.plain.splits.refuses(choice.split):
            with pytest.raises(InputError):
                estimates.of(choice)
            continue
        assert estimates.known_least(choice) == 0.0
        estimates.plain.of(replace(choice.split, cp=8), choice.samples)
        least = estimates.known_least(choice)
        assert 0.0 < least <= fresh.of(choice).seconds, choice
        count += 1
    assert count > 2
