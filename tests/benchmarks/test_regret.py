"""What choosing among measured strategies costs."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.llm.measurement import Configuration, Measurement, Sizes
from benchmarks.accuracy.llm.predict import LlmPrediction
from benchmarks.accuracy.llm.regret import (
    WorkloadRegret,
    doubted_regrets,
    regret_facts,
    workload_regrets,
)
from benchmarks.accuracy.llm.summary import LlmCell

SIZES = Sizes(
    name="some",
    hidden=64,
    layers=4,
    heads=4,
    kv_heads=4,
    ffn=256,
    vocabulary=1000,
    sequence=128,
)
CONFIGURATION = Configuration(
    sizes=SIZES,
    framework="any",
    gpu="H100",
    gpus=8,
    per_host=8,
    links="",
    measured_links=None,
    tp=1,
    pp=1,
    dp=8,
    cp=1,
    ep=1,
    chunks=1,
    zero=0,
    fsdp=0,
    micro_batch=1,
    global_batch=16,
    recompute="none",
    precision="bf16",
    sequence_parallel=False,
)


def cell(
    tp: int,
    measured: float | None,
    predicted: float,
    memory: float = 1.0,
    doubt: str = "",
    short: float = -1.0,
) -> LlmCell:
    """A strategy with its measured time, None where it ran out of memory; capacity is 2 bytes."""
    configuration = replace(CONFIGURATION, tp=tp)
    return LlmCell(
        measurement=Measurement(
            source="a laboratory",
            workload=("w",),
            configuration=configuration,
            seconds=measured,
            fits=measured is not None,
            doubt=doubt,
        ),
        prediction=LlmPrediction(
            seconds=predicted,
            memory=memory,
            of_first=memory,
            outside=0.0,
            capacity=2.0,
            lasting_short=short,
            model_flops=1.0,
        ),
    )


FOUR = [cell(1, 4.0, 5.0), cell(2, 3.0, 2.0), cell(4, 2.0, 2.5), cell(8, 9.0, 8.0)]


def only(cells: list[LlmCell]) -> WorkloadRegret:
    [row] = workload_regrets(cells)
    return row


def test_the_regret_is_the_time_of_the_predicted_best_over_the_measured_best():
    row = only(FOUR)
    assert (row.ran, row.out_of_memory, row.chosen_seconds, row.best_seconds) == (4, 0, 3.0, 2.0)
    assert row.regret == pytest.approx(0.5)
    assert "tp 2" in row.chosen


def test_what_ran_out_of_memory_is_chosen_only_if_it_is_predicted_to_fit():
    quick = cell(16, None, 0.1, memory=3.0)
    assert only([*FOUR, quick]).regret == pytest.approx(0.5)
    row = only([*FOUR, cell(16, None, 0.1)])
    assert (row.chosen_ran_out, row.regret, row.out_of_memory) == (True, None, 1)
    facts = regret_facts([row, only(FOUR)])
    assert (facts["chosen_ran_out"], facts["mean"], facts["worst"]) == (1, 0.5, 0.5)


def test_what_gives_memory_back_in_every_step_is_not_chosen():
    row = only([*FOUR, cell(16, None, 0.1, memory=1.9, short=0.5)])
    assert (row.chosen_ran_out, row.regret) == (False, pytest.approx(0.5))


def test_a_workload_that_is_predicted_to_fit_no_way_is_counted():
    row = only([replace(one, prediction=replace(one.prediction, memory=9.0)) for one in FOUR])
    assert (row.chosen, row.regret, row.chosen_ran_out) == ("", None, False)
    assert regret_facts([row])["none_chosen"] == 1


def test_few_strategies_and_rows_in_doubt_do_not_count_and_repetitions_once():
    assert workload_regrets(FOUR[:3]) == []
    assert workload_regrets([*FOUR[:3], cell(8, 9.0, 8.0, doubt="slow")]) == []
    assert workload_regrets([*FOUR[:3], cell(4, 2.0, 2.5)]) == []
    row = only([*FOUR, cell(2, 5.0, 2.0)])
    assert (row.ran, row.chosen_seconds) == (4, 4.0)


def test_workloads_of_rows_in_doubt_stand_apart():
    doubted = [
        replace(row, measurement=replace(row.measurement, doubt="late")) for row in reversed(FOUR)
    ]
    assert workload_regrets([*FOUR, *doubted]) == workload_regrets(FOUR)
    assert doubted_regrets(FOUR) == {}
    [(doubt, [row])] = doubted_regrets([*FOUR, *doubted]).items()
    assert (doubt, row.ran, row.chosen_seconds) == ("late", 4, 3.0)


def test_the_command_prints_every_workload(tmp_path: Path, monkeypatch, capsys):
    base = {
        "source": "A laboratory of ours 2025",
        "model": "Llama 0.1B",
        "hidden": "256",
        "layers": "4",
        "heads": "4",
        "ffn": "1024",
        "vocab": "1000",
        "seq_len": "256",
        "gpu": "H100 SXM",
        "gpus": "4",
        "pp": "1",
        "gpus_per_node": "8",
        "zero_or_fsdp": "none",
        "recompute": "none",
        "cp": "1",
        "micro_batch": "1",
        "global_batch": "16",
        "precision": "bf16",
        "unit": "ms",
        "metric": "iteration_time",
        "table": "1",
        "kv_heads": "4",
        "vpp": "",
        "notes": "",
    }
    rows = [
        {**base, "tp": str(tp), "dp": str(4 // tp), "micro_batch": str(micro), "value": str(value)}
        for tp, micro, value in ((1, 1, 20), (2, 1, 30), (4, 1, 40), (1, 2, 10))
    ]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(base | {"tp": "", "dp": "", "value": ""}))
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr(sys, "argv", ["accuracy", "--measured", str(path), "--regret", "--json"])
    main()
    found = json.loads(capsys.readouterr().out)["regret"]
    [workload] = found["workloads"]
    assert workload["ran"] == 4
    assert workload["best_seconds"] == pytest.approx(0.01)
    assert found["mean"] == found["worst"] == workload["regret"]
    monkeypatch.setattr(sys, "argv", ["accuracy", "--measured", str(path), "--regret"])
    main()
    printed = capsys.readouterr().out
    assert "1 workloads: mean regret" in printed
    assert "chosen strategies that ran out of memory: 0" in printed
