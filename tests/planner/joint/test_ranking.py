"""Which ways to train are estimated, and which are left out without loss."""

from __future__ import annotations

import math

import pytest

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.ranking import Ranking
from planner.joint.runtimes import searched_runtime
from planner.joint.ways_inside import insides
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


@pytest.mark.slow
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


def _with_bounds(memory, told):
    question = {"model": "gpt2", "gpus": 4, "cluster": "dgx-a100", "global_batch_size": 16}
    setting = resolve(make_request("optimize", {**question, "memory": memory}))
    rows = [(0.0, one) for one in choices(setting, list(insides(setting)))]
    estimates = Estimates(setting, searched_runtime(setting))
    ranking = Ranking(
        estimates=estimates, deadline=Deadline(None), capacity=setting.cluster.device.memory
    )
    if told:
        floors = PipelineBounds(setting, estimates.plain.reduced, fills_bubbles=True)
        bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
        ranking.refutes, ranking.at_least = bounds.memory.refutes, bounds.with_hosts
    found, left = ranking.of(rows, every=False)
    assert left == math.inf
    return ranking, found


def test_what_is_known_not_to_fit_is_not_estimated_where_nothing_fits(monkeypatch):
    monkeypatch.setattr("planner.joint.ranking.IN_VAIN", 8)
    told, found = _with_bounds("1.2 GiB", told=True)
    alone, others = _with_bounds("1.2 GiB", told=False)
    assert not any(map(told.fits, others))
    hopeless = {one.choice for one in found if one.memory == math.inf}
    assert len(hopeless) > 0.5 * len(found) > 50
    assert not hopeless & told.known.keys()
    # nothing is forgotten, and what was left out holds too much indeed
    assert hopeless | told.known.keys() == alone.known.keys()
    assert min(alone.known[one].memory for one in hopeless) > alone.capacity


def test_what_does_not_fit_is_estimated_where_something_fits(monkeypatch):
    # as few blocks are computed again as fit of what does not with none
    monkeypatch.setattr("planner.joint.ranking.IN_VAIN", 1)
    told, found = _with_bounds("2.4 GiB", told=True)
    alone, others = _with_bounds("2.4 GiB", told=False)
    assert 0 < sum(map(told.fits, found)) < len(found)
    assert all(one.memory < math.inf for one in found)
    assert {*told.unseen, *told.known} == {*alone.unseen, *alone.known}
    best = [min(one.seconds for one in rows if told.fits(one)) for rows in (found, others)]
    assert best[0] == best[1]
