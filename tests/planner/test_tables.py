"""Measured tables, from the file to the plan."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_tables import data_parallel_works, measured_table, shape_cells
from questions import SPLITS_ALONE

import planner
from costmodels.compute import Work
from costmodels.compute.table import COLUMNS
from costmodels.errors import InputError
from planner.planning import answer
from planner.request.request import Request
from planner.request.setting import Setting, resolve

ROW = "conv,forward,fp32,32,3,64,224x224,112x112,7x7,2x2,1,{seconds}"


def table(folder: Path, seconds: str) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([",".join(COLUMNS), ROW.format(seconds=seconds)]) + "\n")
    return path


def evaluate(*tables: Path) -> planner.Plan:
    return planner.evaluate(
        "resnet18", gpus=4, cluster="lassen", global_batch_size=128, tables=tables
    )


def test_a_measured_time_is_used_named_and_hashed(tmp_path: Path) -> None:
    plain, measured = evaluate(), evaluate(table(tmp_path, "0.25"))
    assert measured.layers["conv1"].forward_s == 0.25
    assert measured.compute_sources_s["table"] == pytest.approx(0.25)
    assert "table" not in plain.compute_sources_s
    assert measured.hashes["tables"] != plain.hashes["tables"]


@pytest.mark.parametrize("seconds", ["nan", "0", "-1", "soon"])
def test_a_time_that_is_none_is_refused_with_its_line(tmp_path: Path, seconds: str) -> None:
    with pytest.raises(InputError, match=r"line 2, column seconds of table\.csv") as refusal:
        evaluate(table(tmp_path, seconds))
    assert "\n" not in str(refusal.value)


# Data parallelism is best here, and other splits are hardly slower.
LARGE = {"source": "resnet50", "gpus": 16, "cluster": "dgx-a100", "global_batch_size": 512}
QUESTION = {**LARGE, "source": "resnet18", "global_batch_size": 1024}


def optimised(question: dict[str, Any], **more: Any) -> planner.Plan:
    source, *_ = question.values()
    return planner.optimize(
        source,
        **{k: v for k, v in question.items() if k != "source"},
        launch_time="25 us",
        # what tables say of the splits of one stage
        forbid=SPLITS_ALONE,
        **more,
    )


def moved(before: planner.Plan, after: planner.Plan) -> float:
    """Part of the time that lies in layers which are split otherwise."""
    total = sum(layer.time for layer in after.layers.values())
    changed = (
        layer.time
        for name, layer in after.layers.items()
        if layer.distribution != before.layers[name].distribution
    )
    return sum(changed) / total


@pytest.fixture(scope="module")
def without() -> planner.Plan:
    return optimised(QUESTION)


def measured_plan(
    folder: Path, ratio: Callable[[int, Work], float | None], question: dict[str, Any] = QUESTION
) -> planner.Plan:
    path = measured_table(folder / "measured.csv", Request(**question), ratio)
    return optimised(question, tables=[path])


def said(plan: planner.Plan, words: str) -> str:
    """The one note with these words, empty without."""
    found = [note for note in plan.fallbacks if words in note]
    assert len(found) < 2
    return found[0] if found else ""


# the model alone would split the last layers of the smaller network in the same way
@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "fleeing"), [(LARGE, 99), (QUESTION, 85)], ids=["resnet50", "resnet18"]
)
def test_a_table_of_slow_data_parallelism_does_not_tip_the_plan(
    question: dict[str, Any], fleeing: int, tmp_path: Path
) -> None:
    plan = measured_plan(tmp_path, lambda n, work: 1.15, question)
    assert moved(optimised(question), plan) == 0.0
    sources = plan.compute_sources_s
    share = sources["table"] / sum(sources.values())
    assert share > 0.8
    note = said(plan, "your tables cover")
    assert f"cover {share:.0%} of the time" in note
    assert "run 15.0% slower than modelled (give or take 0.0%)" in note
    # the model alone would flee to what nobody measured, and the plan says so
    model = re.search(
        r"with (\d+)% of the time would be ([\d.]+)% faster",
        said(plan, "without what your tables say"),
    )
    assert model
    assert int(model[1]) >= fleeing
    assert float(model[2]) > 5.0
    assert "spread 0.0%" in plan.provenance["correction conv"]
    assert plan.provenance["correction conv"].startswith("measured over modelled time 1.15,")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("spread", [0.03, 0.1])
def test_nor_does_a_noisy_one(
    spread: float, seed: int, without: planner.Plan, tmp_path: Path
) -> None:
    noise = np.random.default_rng(seed).normal(0.0, spread, 2000)
    plan = measured_plan(tmp_path, lambda n, work: 1.15 * float(np.exp(noise[n])))
    assert moved(without, plan) < 0.02
    given = re.search(r"give or take ([\d.]+)%", said(plan, "your tables cover"))
    assert given
    assert float(given[1]) == pytest.approx(100 * spread, rel=0.5)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("kept", ["one shape", "convolutions", "every third", "small ones"])
def test_nor_does_one_that_covers_little(kept: str, without: planner.Plan, tmp_path: Path) -> None:
    keeps: dict[str, Callable[[int, Work], bool]] = {
        "one shape": lambda n, work: n == 5,
        "convolutions": lambda n, work: work.operation == "conv",
        "every third": lambda n, work: n % 3 == 0,
        "small ones": lambda n, work: float(np.max(work.outputs)) < 1e6,
    }
    plan = measured_plan(tmp_path, lambda n, work: 1.15 if keeps[kept](n, work) else None)
    assert moved(without, plan) < 0.02
    assert "run 15.0% slower" in said(plan, "your tables cover")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_spread_that_could_turn_the_plan_is_said(
    seed: int, without: planner.Plan, tmp_path: Path
) -> None:
    noise = np.random.default_rng(seed).normal(0.0, 0.3, 2000)
    plan = measured_plan(tmp_path, lambda n, work: 1.15 * float(np.exp(noise[n])))
    assert "may be" in said(plan, "within the spread")
    sure = measured_plan(tmp_path, lambda n, work: 1.15)
    assert not said(sure, "within the spread")


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.2, pytest.param(0.3, marks=pytest.mark.slow)])
def test_no_other_splits_are_said_that_are_hardly_faster(spread: float, tmp_path: Path) -> None:
    noise = np.random.default_rng(2).normal(0.0, spread, 2000)
    plan = measured_plan(tmp_path, lambda n, work: 1.15 * float(np.exp(noise[n])), LARGE)
    found = [re.search(r"be (-?[\d.]+)% faster", note) for note in plan.fallbacks]
    gains = [float(one[1]) for one in found if one]
    assert gains
    assert min(gains) >= 1.0


@pytest.mark.slow
def test_a_slip_is_named_and_corrects_nothing_else(tmp_path: Path) -> None:
    plan = measured_plan(tmp_path, lambda n, work: 300.0 if n == 20 else 1.15)
    assert "line 22 of measured.csv (add backward)" in said(plan, "far off")
    assert "run 15.0% slower" in said(plan, "your tables cover")
    # the plan leaves that shape, and says what it rests on
    assert plan.step_time < 2 * measured_plan(tmp_path, lambda n, work: 1.15).step_time
    assert said(plan, "if those times are wrong")


def test_what_is_measured_throughout_is_not_corrected(tmp_path: Path) -> None:
    """A strategy whose every shape was measured takes the times of the table alone."""
    noise = np.random.default_rng(2).normal(0.0, 0.3, 2000)
    request = Request(**QUESTION)
    path = measured_table(tmp_path / "all.csv", request, lambda n, work: float(np.exp(noise[n])))
    rows = list(csv.reader(path.open()))[1:]
    seconds = {tuple(cells): float(last) for *cells, last in rows}
    plan = planner.evaluate(
        "resnet18", gpus=16, cluster="dgx-a100", global_batch_size=1024, tables=[path]
    )
    assert set(plan.compute_sources_s) <= {"table", "launch"}
    setting = resolve(request)
    expected = sum(
        max(seconds[shape_cells(work, "bf16")], plan.training.launch_time)
        for work in data_parallel_works(setting)
        if work.direction == "forward" and work.operation != "sgd_update"
    )
    assert sum(layer.forward_s for layer in plan.layers.values()) == pytest.approx(expected)


def test_a_table_of_another_precision_says_that_it_is_of_no_use(tmp_path: Path) -> None:
    path = table(tmp_path, "0.25")
    plan = planner.evaluate("resnet18", gpus=4, cluster="lassen", precision="fp16", tables=[path])
    assert "no times in fp16" in said(plan, "the table table.csv")
    assert "table" not in plan.compute_sources_s


@pytest.mark.parametrize("cells", ["", ROW.replace("fp32", "fp16").format(seconds=0.001)])
def test_each_table_that_is_of_no_use_is_named(cells: str, tmp_path: Path) -> None:
    """One among others was left out without a word, and so was one without any row."""
    other = tmp_path / "other.csv"
    other.write_text(f"{','.join(COLUMNS)}\n{cells}\n")
    plan = evaluate(table(tmp_path, "0.25"), other)
    assert said(plan, "the table other.csv has no times in fp32")
    assert said(plan, "your tables cover")


def test_tables_that_contradict_each_other_are_said_to(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, again = table(tmp_path, "0.25"), table(tmp_path / "again", "0.05")
    assert "up to 5 times apart" in said(evaluate(first, again), "your tables are")
    assert not said(evaluate(first, first), "your tables are")


def test_a_simulation_says_what_its_tables_cover(tmp_path: Path) -> None:
    step = planner.simulate("resnet18", gpus=4, cluster="lassen", tables=[table(tmp_path, "0.002")])
    assert [note for note in step.notes if "your tables cover" in note]


def test_throughput_says_what_its_tables_cover(tmp_path: Path) -> None:
    """It used, or could not use, tables of any device and precision without a word."""
    given: dict[str, Any] = {
        "workers": [1],
        "models": "coarse",
        "tables": [table(tmp_path, "0.002")],
    }
    found = planner.throughput("resnet18", device="v100", **given)
    assert [note for note in found.notes if note.startswith("your tables cover")]
    found = planner.throughput("resnet18", device="v100", precision="fp16", **given)
    assert [note for note in found.notes if "no times in fp16" in note]


@pytest.mark.slow
def test_the_check_keeps_to_the_time_limit(tmp_path: Path) -> None:
    path = measured_table(tmp_path / "t.csv", Request(**LARGE), lambda n, work: 1.15)
    for limit in (0.3, 1.0):
        begun = time.monotonic()
        optimised(LARGE, tables=[path], time_limit=limit)
        assert time.monotonic() - begun < limit + 1.0


def test_an_interrupt_of_the_check_leaves_the_plan(
    without: planner.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Setting] = []
    prepare = answer.prepare

    def interrupted(setting: Setting, *arguments: Any) -> Any:
        calls.append(setting)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return prepare(setting, *arguments)

    monkeypatch.setattr(answer, "prepare", interrupted)
    plan = measured_plan(tmp_path, lambda n, work: 1.15)
    assert len(calls) == 2
    assert plan.search.stopped_by == "interrupt"
    assert moved(without, plan) == 0.0


@pytest.mark.parametrize(
    ("device", "said_so"),
    [
        ("CPU AMD EPYC", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("Tesla V100-SXM2-32GB", False),
        ("a thing of our own", False),
    ],
)
def test_a_table_of_another_device_is_said(tmp_path: Path, device: str, said_so: bool) -> None:
    path = tmp_path / "t.csv"
    lines = [f"# device = {device}", ",".join(COLUMNS), ROW.format(seconds=0.001)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    plan = planner.evaluate("alexnet", gpus=2, cluster="lassen", tables=[path])
    assert any("was measured on" in note for note in plan.fallbacks) == said_so


def test_times_of_one_shape_that_are_far_apart_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "twice.csv"
    row = "conv,forward,fp32,32,3,64,224x224,112x112,7x7,2x2,1,"
    columns = "operation,direction,precision,samples,channels,filters,in_extents,out_extents"
    path.write_text(f"{columns},kernel,stride,groups,seconds\n{row}0.001\n{row}0.003\n")
    asked = {"gpus": 4, "cluster": "lassen", "global_batch_size": 128, "strategy": "data"}
    said = planner.evaluate("resnet18", **asked, tables=[str(path)]).fallbacks
    assert any("of one shape are up to 3 times apart" in note for note in said)
