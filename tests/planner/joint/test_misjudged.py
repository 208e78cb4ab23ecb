"""What simulations tell of estimates that are alike."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from planner.joint.choices import Choice
from planner.joint.estimate import Estimate
from planner.joint.misjudged import Misjudged
from planner.joint.ways_inside import insides
from planner.request.request import make_request
from planner.request.setting import resolve


@pytest.fixture(scope="module")
def interleaved() -> Estimate:
    request = {"model": "gpt2", "gpus": 8, "cluster": "dgx-a100", "global_batch_size": 8}
    inside = next(iter(insides(resolve(make_request("optimize", request)))))
    stages = {"pp": 2, "chunks": 6, "schedule": "interleaved", "micro_batches": 8}
    choice = Choice(inside=inside, samples=1, dp=1, zero=0, **stages)
    return Estimate(choice=choice, seconds=1.0, memory=1.0)


def learnt(one: Estimate, seconds: float, memory: float) -> Misjudged:
    found = Misjudged(misfits=SimpleNamespace(short={}))
    found.learn(one, SimpleNamespace(seconds=seconds, peak_memory=memory))
    return found


def with_chunks(one: Estimate, chunks: int) -> Estimate:
    return replace(one, choice=replace(one.choice, chunks=chunks))


def test_what_many_stages_take_longer_others_may_not_take_by_as_much(interleaved):
    misjudged = learnt(interleaved, seconds=1.21, memory=1.1)
    assert misjudged.expected(interleaved) == pytest.approx(1.21)
    assert misjudged.memory(interleaved) == pytest.approx(1.1)
    fewer = with_chunks(interleaved, 3)
    assert misjudged.expected(fewer) == pytest.approx(1.1)
    assert misjudged.memory(fewer) == 1.0


def test_what_many_stages_take_less_others_may_take_less(interleaved):
    misjudged = learnt(interleaved, seconds=0.9, memory=0.8)
    assert misjudged.expected(with_chunks(interleaved, 3)) == pytest.approx(0.9)
    # an estimate that was too high for one is not taken to be so for another
    assert misjudged.memory(interleaved) == 1.0
