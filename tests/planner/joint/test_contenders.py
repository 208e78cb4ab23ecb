"""Choices by what they take at least, each bound as sharp as it has to be."""

from __future__ import annotations

import math
import random

import pytest

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.contenders import TURNS, Contenders, least_of_passes
from planner.joint.estimate import Estimates
from planner.joint.runtimes import searched_runtime
from planner.joint.variants import turn_of, with_variants
from planner.joint.ways_inside import insides
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

QUESTIONS = {
    "gpt2": {"gpus": 16, "cluster": "dgx-a100", "global_batch_size": 32},
    "bert-base": {"gpus": 8, "cluster": "lassen", "global_batch_size": 8},
    "mixtral-8x7b": {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 8},
    "resnet18": {"gpus": 4, "cluster": "dgx-a100", "global_batch_size": 16},
}


def _bounds(model, **more):
    setting = resolve(make_request("optimize", {"model": model, **QUESTIONS[model], **more}))
    estimates = Estimates(setting, searched_runtime(setting))
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(
        setting=setting, estimates=estimates, floors=floors, partly=True, hybrid=True
    )
    return setting, bounds


def _some(setting, count):
    """Ways to train that the network can have, as many as that."""
    heads = [one.dims["head"] for one in setting.graph.compute_layers if one.kind == "attention"]
    ways = [one for one in insides(setting) if all(number % one.tp == 0 for number in heads)]
    every = list(with_variants(setting, choices(setting, ways)))
    return random.Random(5).sample(every, min(count, len(every)))


@pytest.mark.parametrize("model", QUESTIONS)
def test_passes_take_no_longer_than_all_that_a_choice_does(model):
    setting, bounds = _bounds(model)
    unknown = {one: least_of_passes(bounds, one) for one in _some(setting, 60)}
    near = 0
    for choice, least in unknown.items():
        sharp = bounds.of(choice, fitting=False)
        # by any split first, and by that of the choice where its weights are not cut
        assert 0.0 < least <= sharp, choice
        estimates = bounds.estimates
        estimates.plain.of(choice.split, choice.samples)
        if choice.zero > 2:
            known, estimates.insides(3).known = estimates.insides(3).known, {}
            assert least_of_passes(bounds, choice) <= sharp, choice
            estimates.insides(3).known = known
        passes = least_of_passes(bounds, choice)
        assert passes <= sharp, choice
        near += passes > 0.8 * sharp
    assert near > 5


@pytest.mark.parametrize("offloads", [False, True])
def test_contenders_come_by_their_bounds_and_most_have_none_of_their_own(offloads, monkeypatch):
    setting, bounds = _bounds("gpt2", memory="6 GiB")
    some = [one for one in _some(setting, 200) if not one.offload]
    ranked = [bounds.estimates.of(one) for one in some[::2]]
    passed = some[1::2]
    may_offload = (lambda one: turn_of(one.choice) == 0) if offloads else None
    rows = {turn: set() for turn in range(TURNS)}

    def add(turn, some):
        # with what is known stage by stage
        rows[turn].update((bounds.of_stages(one, least), one) for least, one in some)

    for one in [*ranked, *map(bounds.estimates.of, passed)]:
        add(turn_of(one.choice), bounds.by_shards(bounds.of(one.choice), one.choice))
        if may_offload is not None and may_offload(one):
            add(TURNS - 1, bounds.offloaded(one.choice, math.inf))
    every = sorted(least for turn in rows.values() for least, _ in turn)
    best = every[len(every) // 10]
    asked = []
    of = ChoiceBounds.of
    monkeypatch.setattr(
        ChoiceBounds, "of", lambda *some, **more: (asked.append(some[1]), of(*some, **more))[1]
    )
    contenders = Contenders(bounds, ranked, passed, may_offload, Deadline(None))
    for turn in range(TURNS):
        found = []
        while (row := contenders.pop(turn, best)) is not None:
            assert row.sharp
            found.append((row.least, row.choice))
        assert set(found) == {row for row in rows[turn] if row[0] < best}
        assert found == sorted(found, key=lambda row: row[0])
    assert any(least < best for least, _ in rows[0])
    assert len(asked) < len(every) / 2


def test_once_the_time_is_up_what_is_known_of_contenders_still_holds():
    setting, bounds = _bounds("gpt2")
    ranked = [bounds.estimates.of(one) for one in _some(setting, 50)]
    late = Contenders(bounds, ranked, [], None, Deadline(0.0))
    for turn in range(2):
        assert late.pop(turn, math.inf) is None
        least = min(bounds.of(one.choice) for one in ranked if turn_of(one.choice) == turn)
        assert 0.3 * least < late.least(turn) <= least
    assert late.least(TURNS - 1) == math.inf
