"""The grid that looks for plans that get slower with more: its questions, and what is a fault."""

from __future__ import annotations

import math

import pytest

from benchmarks.planning import monotonic
from benchmarks.planning.gaps import NETWORKS
from benchmarks.planning.monotonic import Answer, Question, Series, all_series, order_faults
from costmodels.cluster import load_cluster
from planner.planning.bounds import additive_search
from search.solvers.registry import SOLVERS

BASE = Question(model="alexnet", cluster="abci", gpus=4, batch=64)


def found(*answers: Answer) -> list[tuple[str, float]]:
    rows = [(BASE, one) for one in answers]
    return [(fault, round(part, 6)) for fault, _, part in order_faults(rows)]


def test_the_grid_has_every_network_on_every_cluster():
    series = all_series()
    assert len(series) == len(set(series))
    asked = [len(one.questions(lambda _: Answer())) for one in series if one.kind == "gpus"]
    # numbers of GPUs of three clusters, of juwels-booster and lassen, and of aws-p3.2xlarge
    assert sum(asked) == len(NETWORKS) * (3 * 13 + 2 * 12 + 7)


def test_a_plan_that_is_slower_with_more_is_a_fault():
    assert found(Answer(seconds=1.0), Answer(seconds=1.0009)) == []
    assert found(Answer(seconds=1.0), Answer(seconds=1.1)) == [("slower_with_more", 0.1)]
    assert found(Answer(seconds=1.0), Answer()) == [("slower_with_more", math.inf)]
    assert found(Answer(), Answer(seconds=1.0), Answer(seconds=0.9)) == []


def test_a_plan_slower_than_a_usual_strategy_is_a_fault():
    assert found(Answer(seconds=1.2, usual=1.0)) == [("slower_than_usual", 0.2)]


def test_a_bound_above_a_plan_is_a_fault():
    assert found(Answer(seconds=2.0, bound=1.5, usual=1.0)) == [
        ("slower_than_usual", 1.0),
        ("bound_refuted", 0.5),
    ]
    less, more = Answer(seconds=1.0), Answer(seconds=2.0, bound=1.5)
    assert ("bound_refuted", 0.5) in found(less, more)


@pytest.mark.parametrize("kind", monotonic.KINDS)
def test_a_series_asks_for_more_and_more(kind):
    asked = Series(kind=kind, base=BASE).questions(lambda _: Answer(seconds=1.0, memory=2.0**30))
    assert len(asked) == len(set(asked)) > 3
    values = [getattr(question, kind) for question in asked]
    assert values == sorted(values)
    assert [question.machine for question in asked], "no limit is below what is reserved"


def test_bandwidth_is_that_of_the_links_within_hosts_or_between_them():
    plain = load_cluster("abci")
    cluster = Question(
        model="alexnet", cluster="abci", gpus=4, batch=64, host=2.0, network=0.5
    ).machine
    for level, before in zip(cluster.levels, plain.levels, strict=True):
        factor = 2.0 if level.name == "host" else 0.5
        assert level.bandwidth == factor * before.bandwidth


@pytest.mark.slow
def test_questions_are_answered_and_counted(monkeypatch):
    monkeypatch.setattr(monotonic, "all_series", lambda: [Series(kind="network", base=BASE)])
    rows = {row["more"]: row for row in monotonic.monotonic_rows(1, 0, rungs=2)}
    assert rows["network"] == {
        "more": "network",
        "series": 1,
        "questions": 2,
        "pairs": 1,
        "slower_with_more": 0,
        "slower_than_usual": 0,
        "bound_refuted": 0,
        "worst": 0.0,
    }
    assert rows["gpus"]["questions"] == 0


def test_what_an_interrupt_cut_short_is_no_answer(monkeypatch):
    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(additive_search, "SOLVERS", {**SOLVERS, "auto": interrupted})
    with pytest.raises(KeyboardInterrupt):
        monotonic.answer(BASE)


def test_a_rerun_goes_on_with_the_answers_so_far(monkeypatch, tmp_path):
    asked: list[Question] = []

    def answered(question: Question) -> Answer:
        asked.append(question)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Answer(seconds=1.0 + question.gpus, bound=0.5)

    series = [Series(kind="gpus", base=BASE), Series(kind="host", base=BASE)]
    monkeypatch.setattr(monotonic, "all_series", lambda: series)
    monkeypatch.setattr(monotonic, "answer", answered)
    file = tmp_path / "answers.jsonl"
    with pytest.raises(KeyboardInterrupt):
        monotonic.monotonic_rows(None, 0, most=8, resume=file)
    rows = {row["more"]: row for row in monotonic.monotonic_rows(None, 0, most=8, resume=file)}
    assert rows["gpus"]["questions"] == 4
    # of 1, 2, 4 and 8 GPUs each one is slower than all before
    assert rows["gpus"]["slower_with_more"] == 6
    assert rows["gpus"]["worst"] == 3.5
    # one question is in both series, and the one that was interrupted is asked again
    assert len(asked) == 4 + 4 - 1 + 1
    assert len(file.read_text().splitlines()) == 7
    assert [question.gpus for question in asked] == sorted(question.gpus for question in asked)
    monotonic.monotonic_rows(None, 0, most=8, kinds=("gpus",), resume=file)
    assert len(asked) == 8
