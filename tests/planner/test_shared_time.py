"""A time limit over several numbers of GPUs is that of all of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from planner.errors import InfeasibleError
from planner.joint import requests
from planner.joint.fronts import gpus_front
from planner.planning.infeasible import stopped_error
from planner.request.request import make_request


@pytest.fixture
def asked(monkeypatch):
    """Time limits of the searches, which take 0.4 s and then 4 s of a clock of their own."""
    limits, now, took = [], [0.0], [0.4, 4.0, 1.0]

    def answer(request, watch=None, *, known=None):
        now[0] += took[len(limits)]
        limits.append(request.time_limit)
        raise stopped_error("no plan in a test")

    monkeypatch.setattr(requests, "optimize_request", answer)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return limits


def request(limit, command="scale", **more):
    values = {"model": "resnet18", "gpus": "1,2,4", "time_limit": limit, **more}
    return make_request(command, values)


def test_each_gets_its_part_of_what_is_left(asked):
    answers = list(requests.scale_request(request(3.0)))
    assert asked == pytest.approx([1.0, 1.3])
    assert [one.stopped_by for one in answers][-1] == "time limit"
    assert all(isinstance(one, InfeasibleError) for one in answers)


def test_what_was_spent_before_counts(asked):
    list(requests.scale_request(request(3.0), spent=1.5))
    assert asked == pytest.approx([0.5, 0.55])


def test_without_a_limit_all_are_searched(asked):
    assert len(list(requests.scale_request(request(None)))) == 3
    assert asked == [None] * 3


def test_a_front_of_numbers_of_gpus_shares_it_alike(asked):
    with pytest.raises(InfeasibleError, match="time limit"):
        gpus_front(request(3.0, "pareto", against="gpus"))
    assert asked == pytest.approx([1.0, 1.3])
