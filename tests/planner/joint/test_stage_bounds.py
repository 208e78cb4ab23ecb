"""Bounds of pipelines of blocks, stage by stage: below every step, and near it."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from msgspec.structs import replace
from questions import small_llama

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.offload import offloaded
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.stretches import Stretches
from planner.joint.variants import forward_first, with_variants
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

SIZES = {
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
}
# How stages of a choice run, and what it is asked to be at least of a step in the median.
KINDS = {
    "interleaved": (lambda one: one.chunks > 1, 0.9),
    "1f1b": (lambda one: one.schedule == "1f1b" and one.pp > 1, 0.85),
    "zero-bubble": (lambda one: one.fills_bubbles, 0.9),
}


def _question(tmp_path, blocks=8, *, tied=False, hidden_size=512, **more):
    """The bounds of a small network, and all ways to train it."""
    sizes = {"tie_word_embeddings": tied, "intermediate_size": 3 * hidden_size}
    sizes |= {"num_hidden_layers": blocks, "hidden_size": hidden_size}
    model = small_llama(tmp_path, **SIZES, **sizes)
    asked = {"model": model, "gpus": 4, "cluster": "abci", "global_batch_size": 8}
    setting = resolve(make_request("optimize", {**asked, "precision": "fp16", **more}))
    estimates = Estimates(setting, searched_runtime(setting))
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(
        setting=setting, estimates=estimates, floors=floors, partly=True, hybrid=True
    )
    return bounds, list(with_variants(setting, choices(setting, list(insides(setting)))))


def _step(bounds, choice):
    """The choice, simulated."""
    runtime = choice_runtime(bounds.estimates.runtime, choice.zero)
    step, reason = tried(bounds.setting, choice.degrees, runtime)
    assert step is not None, reason
    return step


def _any_cut(rng, cuts, choice):
    """The choice with blocks dealt out at random; the last stage may have the head alone."""
    places = sorted(rng.sample(range(1, len(cuts.pieces)), choice.pp - 1))
    blocks = [end - start for start, end in itertools.pairwise([0, *places, len(cuts.pieces)])]
    blocks[-1] -= len(cuts.pieces) - len(cuts.first)
    return replace(choice, blocks=tuple(blocks))


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_takes_less_than_its_stages_wherever_they_are_cut(tmp_path, kind):
    bounds, every = _question(tmp_path)
    wanted, near = KINDS[kind]
    rng, ratios = random.Random(7), []
    for choice in rng.sample([one for one in every if wanted(one)], 40):
        least = bounds.of_stages(replace(choice, inside=choice.split), 0.0)
        choice = replace(choice, inside=choice.split)
        ways = [choice]
        if choice.chunks == 1:
            ways.append(_any_cut(rng, bounds.estimates.cuts, choice))
        if choice.chunks == 1 < choice.micro_batches and not choice.fills_bubbles:
            other = forward_first(bounds.setting, choice)
            assert bounds.of_stages(other, 0.0) <= _step(bounds, other).seconds, other
        steps = [_step(bounds, one).seconds for one in ways]
        assert 0.0 < least <= min(steps) * (1.0 + 1e-9), choice
        ratios.append(max(least, bounds.of(choice, alone=True)) / steps[0])
    assert np.median(ratios) > near


@pytest.mark.slow
def test_gradients_of_a_weight_that_stages_share_travel_beside_others(tmp_path):
    # where nothing travels beside passes, both are left in the end
    more = {"gpus": 8, "global_batch_size": 64, "runtime": "deepspeed", "hidden_size": 1024}
    bounds, every = _question(tmp_path, 16, tied=True, cluster="dgx1-v100", **more)
    some = [one for one in every if one.pp == 2 and one.inside.tp == 1 and one.zero == 0]
    some = [one for one in some if one.inside == one.split and one.samples > 1]
    assert len(some) > 5
    for choice in some:
        step, least = _step(bounds, choice), bounds.of_stages(choice, 0.0)
        assert least <= step.seconds * (1.0 + 1e-9), choice


@pytest.mark.slow
def test_what_is_computed_again_for_stages_to_fit_counts(tmp_path):
    # a few blocks of each stage, fewer of later ones: whatever of them fits takes no less
    bounds, every = _question(tmp_path, memory="1.6 GiB", global_batch_size=64)
    some = (one for one in every if one.pp == 2 and one.inside.recompute == "full")
    rng, raised, fitting = random.Random(3), 0, 0
    for choice in rng.sample([one for one in some if one.samples > 1 and not one.zero], 8):
        least = bounds.of_stages(choice, 0.0)
        for member in bounds.members(choice):
            step = _step(bounds, member)
            assert not step.fits or least <= step.seconds * (1.0 + 1e-9), member
            fitting += step.fits
        kept = replace(choice, inside=choice.split)
        raised += math.isinf(least) or least > bounds.in_stages.of(kept) * 1.01
    assert raised > 2
    assert fitting > 5


def test_stages_of_several_chunks_keep_what_was_passed_before_they_go_back(tmp_path):
    bounds, every = _question(tmp_path)
    rng, near = random.Random(5), 0
    for choice in rng.sample([one for one in every if one.chunks > 1], 30):
        inside = bounds.estimates.insides(choice.zero).of(choice.inside, choice.samples)
        least, peak = bounds.memory.of(choice, inside), _step(bounds, choice).peak_memory
        assert least <= peak, choice
        near += least - bounds.memory.reserved(choice) > 0.6 * (
            peak - bounds.setting.cluster.device.reserved_memory
        )
    assert near > 10


@pytest.mark.slow
def test_copies_to_the_hosts_slow_each_pass_down(tmp_path):
    # each direction of the link is in use in one of the passes alone
    bounds, every = _question(tmp_path, 32, cluster="dgx-a100", gpus=2, global_batch_size=64)
    alone = [one for one in every if (one.pp, one.micro_batches, one.zero) == (1, 1, 0)]
    choice = next(one for one in alone if one.inside == one.split and one.inside.tp == 1)
    (away,) = (one for one in offloaded(choice) if one.offload == ("activations",))
    step, least = _step(bounds, away).seconds, bounds.of(away, fitting=False)
    assert 0.9 * step < least <= step
    rng, some = random.Random(11), [one for one in every if one.pp > 1 and not one.fills_bubbles]
    for one in rng.sample(some, 8):
        way = rng.choice(offloaded(one))
        assert bounds.of(way, fitting=False, alone=True) <= _step(bounds, way).seconds, way


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_all_cuts_is_found(seed):
    rng = random.Random(seed)
    groups, blocks = rng.randint(1, 4), rng.randint(4, 7)
    longest = rng.randint(max(2, -(-blocks // groups)), blocks)
    stretches = Stretches(groups, blocks, longest)
    each = np.array([rng.random() for _ in range(blocks)])
    behind, before = stretches.behind(each), stretches.before(each)
    assert np.allclose(before + stretches.of(each) + behind, each.sum())
    seconds = np.array([rng.random() for _ in range(behind.size)]).reshape(behind.shape)
    least = math.inf
    for places in itertools.combinations(range(1, blocks), groups - 1):
        cut = list(itertools.pairwise([0, *places, blocks]))
        if max(end - start for start, end in cut) <= longest:
            rows = enumerate(cut)
            slowest = max(seconds[g, start - g, end - start - 1] for g, (start, end) in rows)
            least = min(least, slowest)
    assert stretches.slowest(seconds) == least
