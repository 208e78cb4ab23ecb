"""Measured training rows: read, simulated and summed up, on files made for the test."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from benchmarks.accuracy import raw_runs
from benchmarks.accuracy.__main__ import training_main
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.doubts import HOST, REPEATED, doubts
from benchmarks.accuracy.factors import Setup, StepTimes
from benchmarks.accuracy.machines import UnknownMachine, device_named, row_cluster
from benchmarks.accuracy.measured import RowQuestion, compare_rows
from benchmarks.accuracy.row_report import (
    RowTable,
    ablation_rows,
    print_tables,
    rank_correlation,
    summary_rows,
)
from benchmarks.accuracy.rows import MeasuredRow, Skip, described_row, runtime_of
from costmodels.cluster import load_cluster
from costmodels.simulation import load_runtime

ROW = {
    "source": "HKBU-HPML/ddl-benchmarks results 2020-05-29",
    "url": "",
    "model": "AlexNet",
    "gpu": "RTX 2080 Ti 11GB",
    "gpus": "8",
    "gpus_per_node": "4",
    "interconnect": "PCIe3 in the node + 10GbE with TCP/IP",
    "framework": "PyTorch 1.4 + Horovod 0.19 / BytePS 0.2",
    "strategy": "dp allreduce, no overlap (BSP)",
    "precision": "fp32 (not printed)",
    "batch_per_gpu": "64",
    "global_batch": "512",
    "metric": "throughput",
    "value": "1000",
    "unit": "samples/s",
    "notes": "",
}
SINGLE = {
    "gpus": "1",
    "gpus_per_node": "1",
    "interconnect": "single GPU",
    "strategy": "single",
    "global_batch": "64",
    "value": "600",
}


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_a_row_becomes_a_run_of_its_machine_and_schedule() -> None:
    row = described_row(ROW)
    assert (row.run.model, row.gpus, row.batch) == ("alexnet", 8, 512)
    hkbu = load_cluster("hkbu-10gbe")
    for mine, built_in in zip(row.cluster.levels, hkbu.levels, strict=True):
        assert (mine.bandwidth, mine.latency) == (built_in.bandwidth, built_in.latency)
    assert row.runtime.name == "horovod-fused"
    assert not row.runtime.overlap
    assert row.seconds == pytest.approx(0.512)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "GPUNet-2"}, "no built-in network"),
        ({"gpu": "GeForce GTX 1070"}, "no built-in device"),
        ({"gpus": ""}, "not stated"),
        ({"notes": "SUSPICIOUS: a factor of two"}, "suspicious"),
        ({"notes": "DATA-LOADER BOUND"}, "data loader"),
        ({"strategy": "filter"}, "not by data parallelism"),
        ({"strategy": "by pigeons"}, "schedule not known"),
        ({"metric": "scaling_efficiency"}, "no time of a step"),
        ({"precision": ""}, "precision"),
    ],
)
def test_rows_that_say_too_little_are_left_out_with_the_reason(
    change: dict[str, str], reason: str
) -> None:
    with pytest.raises(Skip, match=reason):
        described_row({**ROW, **change})


def test_servers_stand_apart_but_only_where_there_are_several_hosts() -> None:
    words = ("parameter server (BytePS), overlapped", ROW["framework"])
    apart, alone = (runtime_of(*words, hosts)[0] for hosts in (4, 1))
    assert (apart.gradient, apart.servers, apart.overlap) == ("push_pull", 4, True)
    assert alone.gradient == "all_reduce"
    assert not runtime_of("parameter server, no overlap", ROW["framework"], 4)[0].overlap


def test_machines_follow_the_words_on_links() -> None:
    assert device_named("A100-SXM4-40GB") == "a100-40gb"
    bridged = row_cluster("GeForce RTX 2080 Ti", "NVLink bridge", 4, 4)
    assert [level.size for level in bridged.levels] == [2, 2]
    switched = row_cluster("V100 SXM 32GB", "NVSwitch/NVLink2 (DGX-2)", 16, 16)
    assert switched.levels[0].peer_links is None
    with pytest.raises(UnknownMachine, match="between hosts"):
        row_cluster("GeForce RTX 2080 Ti", "PCIe", 16, 8)


def test_one_process_that_sends_and_receives_slows_servers_down() -> None:
    row = described_row({**ROW, "strategy": "parameter server, no overlap"})
    free = replace(row, runtime=structs.replace(row.runtime, stack_bandwidth=float("inf")))
    known = StepTimes()
    assert row.runtime.stack_bandwidth == load_runtime("byteps").stack_bandwidth
    assert known.seconds(row) > 1.2 * known.seconds(free)


def test_gradients_on_their_way_need_at_least_the_bandwidth_of_the_machine() -> None:
    known = StepTimes()
    row = described_row(ROW)
    alone = known.seconds(described_row({**ROW, **SINGLE}))
    sent = 61.1e6 * 4 * 2 * 7 / 8 / load_cluster("hkbu-10gbe").levels[1].bandwidth
    assert known.seconds(row) - alone > 0.95 * sent
    assert known.seconds(
        described_row({**ROW, "strategy": "dp allreduce, merged gradients (MG-WFBP)"})
    ) < (known.seconds(row))


def test_a_row_on_one_gpu_calibrates_what_shares_its_machine(tmp_path: Path) -> None:
    single = described_row({**ROW, **SINGLE})
    known = StepTimes()
    scale = known.scale(single)
    assert known.seconds(single, Setup(scale=scale)) == pytest.approx(single.seconds, rel=0.01)
    write(
        tmp_path / "cnn_training.csv",
        [ROW, {**ROW, **SINGLE}, {**ROW, "source": "other"}, {**ROW, "gpus": ""}],
    )
    training = compare_rows(
        [tmp_path / "cnn_training.csv"], RowQuestion(others=("paleo", "timeline"))
    )
    kinds = {t.name: [cell.kind for cell in t.cells] for t in training.tables}
    assert kinds == {
        "HKBU-HPML/ddl-benchmarks": ["calibrated"],
        "other": ["calibrated, other publication"],
    }
    assert all(
        {"paleo", "timeline"} <= set(cell.parts) for t in training.tables for cell in t.cells
    )
    assert sum(training.left_out.values()) == 1


def test_schedules_whose_cost_nobody_states_are_shown_but_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "cnn_training.csv"
    write(path, [{**ROW, "strategy": "dp allreduce, ByteScheduler"}])
    (cell,) = compare_rows([path]).tables[0].cells
    assert not cell.counts


def test_rows_that_measured_the_host_are_told_by_other_rows() -> None:
    def row(gpus: int, precision: str, rate: float) -> MeasuredRow:
        links = {"interconnect": "PCIe", "gpus_per_node": str(gpus), "gpus": str(gpus)}
        batch = {"global_batch": str(64 * gpus), "value": str(rate * gpus)}
        return described_row(
            {**ROW, **links, **batch, "precision": precision, "strategy": "dp replicated"}
        )

    one = [row(1, "fp32", 100), row(1, "fp16", 200)]
    assert doubts([*one, row(8, "fp32", 95), row(8, "fp16", 190)]) == ["", "", "", ""]
    assert doubts([*one, row(8, "fp32", 95), row(8, "fp16", 100)]) == ["", "", "", HOST]
    assert doubts([row(8, "fp32", 95), row(8, "fp32", 60)]) == ["", REPEATED]


def cell(measured: float, predicted: float, kind: str = "calibrated", **more: object) -> Cell:
    return Cell(
        group="g",
        label="a run",
        kind=kind,
        gpus=4,
        measured=measured,
        predicted=predicted,
        **more,  # type: ignore[arg-type]
    )


def test_summaries_count_errors_ranks_and_other_models() -> None:
    cells = (
        cell(1.0, 1.1, parts={"paleo": 1.0}),
        cell(2.0, 1.8, parts={"paleo": 4.0}),
        cell(4.0, 4.0, parts={"paleo": 4.0}),
        cell(1.0, 9.0, excluded="why"),
    )
    table = RowTable(name="t", cells=cells)
    assert rank_correlation(cells) == pytest.approx(1.0)
    first = summary_rows([table])[0]
    assert first[:6] == ("t", "calibrated", "3", "6.7%", "+10.0%", "+0.0%")
    assert first[7] == "3, 0, 0"
    assert [row[:3] for row in ablation_rows([table])] == [
        ("simulate", "3", "6.7%"),
        ("paleo", "3", "33.3%"),
    ]


def test_tables_print_every_row_and_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    table = RowTable(name="t", cells=(cell(1.0, 1.1), cell(1.0, 9.0, excluded="no source")))
    print_tables([table], {"unknown": 3}, Console(), markdown=True)
    text = capsys.readouterr().out
    assert text.count("| a run |") == 2
    assert "| 3 | unknown |" in text
    assert "| 1 | shown, not counted: no source |" in text


RAW = {
    "model": "ResNet-50",
    "strategy": "data",
    "gpus": "1",
    "global_batch": "64",
    "iter_ms_min": "183",
    "era": "Jan 2020",
    "notes": "",
}


def test_raw_runs_are_held_up_by_their_loader(tmp_path: Path) -> None:
    path = tmp_path / "abci_raw_runs.csv"
    staged = {"strategy": "spatial4+data, larger batch per group", "iter_ms_min": "875"}
    write(
        path,
        [
            RAW,
            {**RAW, **staged, "gpus": "16", "global_batch": "1024"},
            {**RAW, "gpus": "8", "global_batch": "512", "iter_ms_min": "208"},
            {**RAW, "gpus": "8", "global_batch": "512", "era": "early code (experiments.old)"},
            {**RAW, "gpus": "3", "global_batch": "192"},
        ],
    )
    table, left = raw_runs.compare_simulated(path)
    alone, spatial, data, early = table.cells
    assert alone.calibrating
    assert alone.predicted == pytest.approx(alone.measured, rel=0.01)
    assert "loading" in spatial.label
    assert spatial.predicted == pytest.approx(256 * 0.75 * 602112 / 126e6, rel=0.01)
    assert "computing" in data.label
    assert early.excluded
    # three GPUs do not fill a host of four: left out and counted, never shown as measured
    ((reason, count),) = left.items()
    assert reason.startswith("cannot be run: the number of GPUs must divide")
    assert count == 1


def test_the_command_predicts_a_folder_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "cnn_training.csv", [ROW, {**ROW, **SINGLE}, {**ROW, "model": "nobody's"}])
    monkeypatch.setattr(sys, "argv", ["accuracy_training", str(tmp_path), "--markdown"])
    training_main()
    text = capsys.readouterr().out
    assert "| AlexNet, 8 x RTX 2080 Ti 11GB, 512 samples" in text
    assert "| 1 | no built-in network nobody's |" in text
