"""The grid that looks for plans that are slower than a usual strategy: its questions and counts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.planning import monotonic, usual
from benchmarks.planning.monotonic import Answer
from planner.models import list_models


def test_there_are_twelve_networks_on_seven_clusters():
    questions = usual.usual_questions(smoke=False)
    assert len(questions) == len(set(questions)) == 84
    assert {question.model for question in questions} <= set(list_models())
    assert {question.gpus for question in questions} == {32}
    assert len(usual.usual_questions(smoke=True)) == 1


def test_plans_are_counted_by_how_they_compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    answers = iter(
        [
            Answer(seconds=1.0, usual=2.0),
            Answer(seconds=1.0, usual=1.0),
            Answer(seconds=1.1, usual=1.0),
            Answer(seconds=1.0, usual=math.inf),
        ]
    )
    monkeypatch.setattr(monotonic, "answer", lambda question: next(answers))
    questions = [one for one in usual.usual_questions(smoke=False) if one.cluster == "abci"][:4]
    file = tmp_path / "answers.jsonl"
    usual.usual_rows(questions[:2], file)
    [row] = usual.usual_rows(questions, file)  # the first two are not asked for again
    counted = {"questions": 4, "no usual fits": 1, "faster": 1, "as fast": 1, "slower": 1}
    assert {name: row[name] for name in counted} == counted
    assert row["worst"] == pytest.approx(0.1)
