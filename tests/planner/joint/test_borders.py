"""What stages of blocks send each other, in bounds: on slow networks most of a step."""

from __future__ import annotations

import random
import statistics

import pytest

from planner.joint.borders import passed_on, tied_message
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds, pipelined
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve


def bounds_of(model, gpus, batch, zeros=(0, 2)):
    """Bounds of a question on hosts of one device each, and its choices."""
    asked = {"model": model, "gpus": gpus, "cluster": "aws-p3.2xlarge", "global_batch_size": batch}
    setting = resolve(make_request("optimize", asked))
    estimates = Estimates(setting, searched_runtime(setting))
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    return bounds, list(choices(setting, list(insides(setting)), zeros))


def parts_of_steps(bounds, rows):
    """Bounds of some choices, as parts of their steps."""
    parts = []
    for row in random.Random(1).sample(rows, min(16, len(rows))):
        choice, setting = bounds.estimates.of(row).choice, bounds.setting
        runtime = choice_runtime(bounds.estimates.runtime, choice.zero)
        found, _ = tried(setting, choice.degrees, runtime)
        assert found is not None
        parts.append(bounds.of(choice, fitting=False) / found.seconds)
    assert max(parts) <= 1.0
    return parts


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("interleaved", [False, True])
def test_bounds_know_what_stages_send_and_what_the_first_layer_leaves(interleaved):
    bounds, rows = bounds_of("gpt2", 8, 16)
    rows = [one for one in rows if one.pp > 1 and one.inside.cp == 1]
    parts = parts_of_steps(bounds, [one for one in rows if (one.chunks > 1) == interleaved])
    # with messages between stages alone some are below half of the step
    assert min(parts) > 0.58
    assert statistics.median(parts) > 0.65


def test_bounds_know_links_that_gathers_and_reductions_share():
    bounds, rows = bounds_of("gpt2", 8, 16, (3,))
    parts = parts_of_steps(bounds, [one for one in rows if one.pp == 1 and one.inside.cp == 1])
    assert min(parts) > 0.95, "two thirds if they had links of their own"


def test_a_shared_weight_counts_where_the_ends_hold_it():
    bounds, rows = bounds_of("gpt2", 8, 16)
    choice = next(one for one in rows if one.inside.tp == 1 and one.pp > 1)
    kept = bounds.estimates.insides(choice.zero).of(choice.split, choice.samples)
    gradients = 4 * 50257 * 768
    assert tied_message(bounds.estimates, choice, kept) == pytest.approx(
        gradients / 1.25e9, rel=0.3
    )
    untied, others = bounds_of("bert-large", 8, 16)
    choice = next(one for one in others if one.inside.tp == 1 and one.pp > 1)
    kept = untied.estimates.insides(choice.zero).of(choice.split, choice.samples)
    assert untied.estimates.exchanges.shared or not tied_message(untied.estimates, choice, kept)


@pytest.mark.parametrize(("pp", "count"), [(2, 1), (2, 8), (4, 4), (4, 6)])
def test_messages_only_add(pp, count):
    alone = pipelined(1.0, pp, 1, count, chain=True)
    sent = pipelined(1.0, pp, 1, count, chain=True, message=0.1)
    assert sent > alone
    if count == 1:
        assert sent == pytest.approx(1.0 + 2 * (pp - 1) * 0.1)


def test_rounds_of_micro_batches():
    _, rows = bounds_of("gpt2", 8, 16)
    choice = next(o for o in rows if (o.pp, o.chunks, o.micro_batches) == (2, 1, 4))
    # two are under way, and come back twice
    assert passed_on(choice, 1.0, 0.5, chain=True) == pytest.approx(2 * (1.0 + 2 * 0.5))
    assert passed_on(choice, 1.0, 0.5, chain=False) == pytest.approx(4 * 2 * 0.5 / 2)
