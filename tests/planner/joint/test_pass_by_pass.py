"""When groups are through with their passes, one pass after the other."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec.structs import replace
from questions import small_llama

from planner.joint.choices import choices
from planner.joint.estimate import Estimates
from planner.joint.pass_by_pass import MOST_PASSES, ends_of_passes
from planner.joint.passes import staged_time
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.variants import with_variants
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

QUESTION = {"model": "gpt2", "gpus": 16, "global_batch_size": 16}


def _choice(pp, count, *, chunks=1, schedule="1f1b"):
    setting = resolve(make_request("optimize", QUESTION))
    one = next(iter(choices(setting, list(insides(setting, ("none",))), (0,))))
    return replace(one, pp=pp, micro_batches=count, chunks=chunks, schedule=schedule)


@pytest.mark.parametrize(("pp", "count"), [(2, 1), (4, 3), (4, 16), (8, 8)])
def test_equal_stages_wait_as_long_as_it_takes_to_reach_the_others(pp, count):
    rows = np.full((1, pp), 2.0), np.full((1, pp), 3.0), np.full((1, pp), 1.0)
    ends = ends_of_passes(_choice(pp, count), *rows, np.zeros(pp - 1))
    # Narayanan et al. 2021, section 2.1
    assert ends.max() == pytest.approx((count + pp - 1) * 5.0)
    assert ends.tolist() == [pytest.approx(ends[0] - 3.0 * group) for group in range(pp)]
    if count % pp == 0:
        halves = [np.repeat(row / 2.0, 2, axis=0) for row in rows]
        choice = _choice(pp, count, chunks=2, schedule="interleaved")
        ends = ends_of_passes(choice, *halves, np.zeros(2 * pp - 1))
        assert ends.max() == pytest.approx((count + (pp - 1) / 2) * 5.0)


def test_passes_of_weights_fill_bubbles():
    pp, count = 4, 8
    rows = np.full((1, pp), 1.0), np.full((1, pp), 2.0), np.full((1, pp), 1.0)
    plain = ends_of_passes(_choice(pp, count), *rows, np.zeros(pp - 1))
    filled = ends_of_passes(_choice(pp, count, schedule="zero-bubble"), *rows, np.zeros(pp - 1))
    # Qi et al. 2023, table 2: ZB-H1 leaves a third of the bubbles of 1F1B
    assert plain.max() - 3.0 * count == pytest.approx(9.0)
    assert filled.max() - 3.0 * count == pytest.approx(3.0)


@pytest.mark.parametrize("count", [1, 4])
def test_backward_passes_do_not_wait_for_what_passes_of_weights_read(count):
    # sequence parallelism gathers inputs again for the weights alone
    setting = resolve(make_request("optimize", {**QUESTION, "gpus": 4, "cluster": "dgx-a100"}))
    runtime = searched_runtime(setting)
    choice = next(
        one
        for one in with_variants(setting, choices(setting, list(insides(setting, ("none",))), (0,)))
        if one.inside.sequence_parallel and (one.pp, one.inside.tp) == (2, 2)
        if one.fills_bubbles and one.micro_batches == count
    )
    estimate = Estimates(setting, runtime).of(choice)
    step, reason = tried(setting, estimate.choice.degrees, runtime)
    assert step is not None, reason
    assert estimate.seconds == pytest.approx(step.seconds, rel=0.015)


def test_many_passes_are_not_looked_at_one_by_one():
    pp, rng = 4, np.random.default_rng(5)
    forward = rng.uniform(1.0, 1.2, (1, pp))
    rows = forward, 2.0 * forward, forward
    sends = np.full(pp - 1, 0.1)
    few, many = (_choice(pp, MOST_PASSES // (2 * pp) + more) for more in (0, 1))
    one_by_one, about = (ends_of_passes(one, *rows, sends) for one in (few, many))
    assert about.max() == staged_time(many, *rows[:2], sends)
    assert one_by_one.max() == pytest.approx(
        about.max() * few.micro_batches / many.micro_batches, rel=0.01
    )


def test_a_group_that_computes_nothing_while_it_sends_is_later():
    pp, count = 4, 4
    rows = np.full((1, pp), 1.0), np.full((1, pp), 2.0), np.full((1, pp), 1.0)
    choice, sends = _choice(pp, count), np.full(pp - 1, 0.5)
    beside, in_turn = (ends_of_passes(choice, *rows, sends, in_turn=wait) for wait in (False, True))
    assert (beside <= in_turn).all()
    assert beside.max() < in_turn.max()
    # links that take longer than passes set the pace
    slow = ends_of_passes(_choice(pp, 16), *rows, np.full(pp - 1, 4.0))
    assert slow.max() > 16 * 4.0


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("runtime", ["nanotron", "ddp"])
def test_pipelines_with_few_micro_batches_are_estimated_as_they_are_simulated(runtime, tmp_path):
    """A stage that is heavier than the others, and passes that wait for launches."""
    path = small_llama(
        tmp_path,
        hidden_size=512,
        intermediate_size=1536,
        num_attention_heads=8,
        num_hidden_layers=6,
        vocab_size=64000,
        max_position_embeddings=512,
    )
    asked = {"model": path, "cluster": "dgx-h100", "gpus": 8, "global_batch_size": 12}
    asked |= {"precision": "bf16", "optimizer": "sgd", "runtime": runtime}
    setting = resolve(make_request("optimize", asked))
    under = searched_runtime(setting)
    estimates = Estimates(setting, under)
    found = [
        one
        for one in choices(setting, list(insides(setting, ("none",))), (0,))
        if one.pp > 1 == one.chunks and one.inside.tp == 1 and one.micro_batches <= 6
    ]
    drawn = random.Random(2).sample(found, min(len(found), 6))
    for one in map(estimates.of, drawn):
        step, reason = tried(setting, one.choice.degrees, choice_runtime(under, 0))
        assert step is not None, reason
        assert one.seconds == pytest.approx(step.seconds, rel=0.06), one.choice
