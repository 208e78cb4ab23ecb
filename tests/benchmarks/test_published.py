"""Plans beside published ways to train."""

from __future__ import annotations

import json

import pytest

from benchmarks.planning import joint
from benchmarks.planning.joint import rows_beside, slower_than_published
from benchmarks.planning.published import CALCULON, PUBLISHED
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

CHEAP = ("megatron-1.7b", "llama3-8b on 8,")


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("name", CHEAP)
def test_a_plan_is_no_slower_than_what_is_published(name, tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.jsonl"
    rows = rows_beside(PUBLISHED, only=name, resume=file)
    assert len(rows) == 1
    assert rows[0]["plan [s]"] <= rows[0]["published [s]"]
    assert not slower_than_published(rows)
    assert name in capsys.readouterr().err
    assert rows[0]["plan"]
    # a rerun asks nothing again
    monkeypatch.setattr(joint, "row_beside", None)
    assert rows_beside(PUBLISHED, only=name, resume=file) == rows
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows


def test_published_ways_have_names_of_their_own():
    names = [one.name for one in (*CALCULON, *PUBLISHED)]
    assert len(set(names)) == len(names)


def test_slower_plans_are_named():
    row = {"configuration": "x", "plan [s]": 2.0, "published [s]": 1.0, "fits": True}
    assert slower_than_published([row]) == ["x (2.0 and 1.0 s)"]
    assert slower_than_published([{**row, "plan [s]": "none"}])
    assert not slower_than_published([{**row, "fits": False}])
    assert not slower_than_published([{**row, "plan [s]": 0.5}])


@pytest.mark.slow
@pytest.mark.parametrize("one", [*CALCULON, *PUBLISHED], ids=lambda one: one.name)
def test_every_published_way_can_be_simulated(one):
    setting = resolve(make_request("optimize", one.asked))
    step, reason = tried(setting, one.degrees, joint.runtime_beside(one))
    assert step is not None, reason
