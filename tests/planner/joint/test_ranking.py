"""Which ways to train are estimated, and which are left out without loss."""

from __future__ import annotations

import math

from planner.joint.choices import choices, insides
from planner.joint.estimate import Estimates
from planner.joint.ranking import Ranking
from planner.joint.runtimes import searched_runtime
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

QUESTION = {"model": "gpt2", "gpus": 8, "cluster": "dgx-a100", "global_batch_size": 16}


def _ranked(every, refuted=frozenset()):
    setting = resolve(make_request("optimize", {**QUESTION, "memory": "4 GiB"}))
    ways = [one for one in insides(setting) if one.tp < 8 and one.ep == 1]
    rows = [(0.0, one) for one in choices(setting, ways)]
    ranking = Ranking(
        estimates=Estimates(setting, searched_runtime(setting)),
        deadline=Deadline(None),
        capacity=setting.cluster.device.memory,
        refuted=set(refuted),
    )
    found, left = ranking.of(rows, every)
    assert left == math.inf
    return ranking, found, rows


def test_what_computes_more_again_than_it_has_to_is_not_estimated():
    _, everything, rows = _ranked(every=True)
    ranking, found, _ = _ranked(every=False)
    assert len(everything) == len(rows)
    fitting = [one for one in everything if one.memory <= ranking.capacity]
    assert 0 < len(fitting) < len(rows)
    assert found[0].seconds <= fitting[0].seconds
    assert min(one.seconds for one in found if ranking.fits(one)) == fitting[0].seconds
    assert len(found) < 0.6 * len(rows)
    # nothing is forgotten, and what was left out is slower, or has a faster one that fits
    asked = {choice for _, choice in rows}
    assert {*ranking.unseen, *ranking.known} == asked
    assert len(ranking.needless) > 10
    of = {choice: ranking.estimates.of(choice) for choice in ranking.unseen}
    for seconds, choice in (*ranking.passed, *ranking.needless):
        assert seconds <= of[choice].seconds * (1 + 1e-9), choice
    for _, choice in ranking.needless:
        less = [ranking.known[one] for one in choice.less_again() if one in ranking.known]
        assert any(ranking.fits(one) and one.seconds <= of[choice].seconds for one in less)


def test_what_turns_out_not_to_fit_is_looked_at_with_more_computed_again():
    ranking, _, _ = _ranked(every=False)
    best = min(ranking.needless, key=lambda row: row[0])[1]
    less = [ranking.known[one] for one in best.less_again() if one in ranking.known]
    missed = {one.choice for one in less if ranking.fits(one)}
    without = ranking.left_without(missed)
    assert without < ranking.left_without(set())
    other, _, _ = _ranked(every=False, refuted=missed)
    assert best in other.known
    assert best not in ranking.known


def test_what_cannot_be_cut_into_so_many_stages_may_be_cut_into_fewer():
    # shares of the linear layers fill 10 stages with the 12 blocks, and the embedding and the head
    setting = resolve(make_request("optimize", {**QUESTION, "runtime": "nanotron"}))
    ways = [one for one in choices(setting, list(insides(setting))) if one.pp == 2]
    many = next(one for one in ways if one.chunks == 6)
    fewer = next(one for one in ways if one.inside == many.inside and one.chunks == 1)
    ranking = Ranking(
        estimates=Estimates(setting, searched_runtime(setting)),
        deadline=Deadline(None),
        capacity=setting.cluster.device.memory,
    )
    found, _ = ranking.of([(0.0, many), (0.0, fewer)], every=True)
    assert ["10 stages" in said for said in ranking.left_out] == [True]
    assert [one.choice for one in found] == [fewer]
