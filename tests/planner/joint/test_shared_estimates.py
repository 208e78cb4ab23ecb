"""Estimates share what is alike between choices, which changes none of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.joint.choices import choices, insides
from planner.joint.estimate import Estimates
from planner.joint.passes import exchanged
from planner.joint.runtimes import searched_runtime
from planner.joint.variants import with_variants
from planner.request.request import make_request
from planner.request.setting import resolve

QUESTIONS = {
    "gpt2": {"gpus": 16, "cluster": "dgx-a100", "global_batch_size": 32},
    "mixtral-8x7b": {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 16},
    "resnet18": {"gpus": 8, "cluster": "lassen", "global_batch_size": 16},
    "vgg16": {"gpus": 4, "cluster": "abci", "global_batch_size": 16, "runtime": "deepspeed"},
}


def _slow(model):
    return pytest.param(model, marks=pytest.mark.slow) if model == "mixtral-8x7b" else model


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


def test_exchanges_of_chunks_follow_each_other():
    rng = np.random.default_rng(3)
    for chunks in (1, 2, 7):
        begin, end = rng.normal(size=(2, chunks, 4))
        seconds = rng.random((chunks, 4))
        at = np.full(4, -np.inf)
        for chunk in reversed(range(chunks)):
            at = np.maximum(np.maximum(at, begin[chunk]) + seconds[chunk], end[chunk])
        assert exchanged(begin, seconds, end) == pytest.approx(at)
