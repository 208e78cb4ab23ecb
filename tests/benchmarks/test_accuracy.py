"""The accuracy benchmark: what it counts, what it leaves out, and that its figures are right."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from benchmarks.accuracy import __main__ as accuracy
from benchmarks.accuracy.cells import Cell, Comparison, Summary, rank_agreement
from benchmarks.accuracy.rows import COLUMNS
from benchmarks.accuracy.steps import MeasuredRun, calibrate, timeline_step
from benchmarks.published import dryden as accuracy_dryden
from benchmarks.published import kahira as accuracy_kahira
from benchmarks.published import kahira_raw as accuracy_raw
from benchmarks.published.tables import PUBLISHED, published_rows


def cell(label: str, measured: float, predicted: float, **options: object) -> Cell:
    return Cell(
        group="g", label=label, kind="k", gpus=4, measured=measured, predicted=predicted, **options
    )


def row(**values: str) -> dict[str, str]:
    usual = {
        "source": "a source",
        "model": "ResNet-50",
        "gpu": "V100 SXM2 16GB",
        "gpus": "1",
        "gpus_per_node": "1",
        "framework": "MXNet",
        "strategy": "single",
        "precision": "fp32",
        "batch_per_gpu": "8",
        "global_batch": "8",
        "metric": "throughput",
        "value": "160",
    }
    return {name: {**usual, **values}.get(name, "") for name in COLUMNS}


def raw(**values: object) -> accuracy_raw.RawRun:
    usual = {
        "model": "resnet50",
        "strategy": "data",
        "gpus": 8,
        "batch": 512,
        "seconds": 0.2,
        "era": "Jan 2020",
        "notes": "",
    }
    return accuracy_raw.RawRun(**{**usual, **values})


class TestCells:
    def test_calibrating_and_excluded_cells_enter_no_error(self) -> None:
        table = Comparison(
            name="t",
            source="s",
            unit="s",
            calibration={},
            cells=(
                cell("a", 1.0, 5.0, calibrating=True),
                cell("b", 1.0, 5.0, excluded="why", ranked=False),
                cell("c", 1.0, 1.1),
                cell("d", 2.0, 1.6),
            ),
        )
        summary = table.summary
        assert summary is not None
        assert summary.count == 2
        assert summary.mean == pytest.approx(0.15)
        assert summary.worst == pytest.approx(-0.2)
        assert summary.bias == pytest.approx(-0.05)
        assert table.excluded is not None
        assert table.excluded.mean == pytest.approx(4.0)
        assert json.loads(json.dumps(table.as_dict()))["cells"][2]["error"] == pytest.approx(0.1)

    def test_no_cells_have_no_summary(self) -> None:
        assert Summary.of([]) is None

    def test_ranks_count_swaps_and_ties(self) -> None:
        ranks = rank_agreement(
            [
                cell("a", 1.0, 1.0),
                cell("b", 2.0, 1.01),  # predicted as a tie with a
                cell("c", 2.01, 9.0),  # measured as a tie with b
                cell("d", 4.0, 3.0),  # swapped with c
            ]
        )
        assert (ranks.pairs, ranks.agreeing, ranks.tied) == (5, 3, 1)
        assert ranks.swapped == ("g: c and d",)
        assert (ranks.groups, ranks.groups_agreeing) == (1, 0)


class TestPublished:
    @pytest.mark.parametrize(
        ("table", "count"), [("Table I", 39), ("Table II", 33), ("Table III", 26)]
    )
    def test_dryden_speedups_are_those_of_the_times(self, table: str, count: int) -> None:
        rows = [r for r in published_rows(accuracy_dryden.TABLES[table][0]) if r["seconds"]]
        assert len(rows) == count
        first = {r["global_batch"]: float(r["seconds"]) for r in rows if not r["speedup_printed"]}
        for r in rows:
            if r["speedup_printed"]:
                speedup = first[r["global_batch"]] / float(r["seconds"])
                assert float(r["speedup_printed"]) == pytest.approx(speedup, abs=0.06)

    def test_kahira_parts_add_up_where_not_suspicious(self) -> None:
        rows = published_rows("kahira_table8.csv")
        assert len(rows) == 24
        for r in rows:
            parts = float(r["comp_s_per_epoch"]) + float(r["comm_s_per_epoch"])
            if not r["notes"].startswith("SUSPICIOUS"):
                assert parts == pytest.approx(float(r["total_s_per_epoch"]), abs=12)
            assert int(r["rank"]) in (1, 2, 3, 4)
            assert (r["model"], r["strategy"]) in accuracy_kahira.TABLE8_BATCH

    def test_every_row_has_a_source(self) -> None:
        for path in PUBLISHED.glob("*.csv"):
            assert all(r["source"] for r in published_rows(path.name)), path.name


class TestPredictions:
    def test_calibration_makes_the_mean_prediction_the_mean_measurement(self) -> None:
        runs = [accuracy_dryden.lassen_run("resnet50", gpus, 8 * gpus, 1) for gpus in (1, 4)]
        factor = calibrate([(runs[0], 0.1), (runs[1], 0.12)])
        mean = sum(timeline_step(run, factor).total for run in runs) / 2
        assert mean == pytest.approx(0.11, rel=1e-3)
        # what launches bound is no slower on a slower device
        once, twice = timeline_step(runs[0]).compute, timeline_step(runs[0], 2.0).compute
        assert 1.5 * once < twice <= 2 * once

    def test_dryden_ranks_more_gpus_a_group_as_faster(self) -> None:
        times = [
            timeline_step(accuracy_dryden.lassen_run("resnet50", 4 * ways, 128, ways)).total
            for ways in (1, 2, 4)
        ]
        assert times == sorted(times, reverse=True)

    def test_spatial_on_abci_splits_height_and_leaves_linear_layers_whole(self) -> None:
        spatial = timeline_step(accuracy_kahira.abci_run("resnet50", "data+spatial", 8, 32))
        data = timeline_step(accuracy_kahira.abci_run("resnet50", "data", 8, 32))
        assert spatial.communication > data.communication
        assert spatial.compute < 1.5 * data.compute

    def test_filter_on_abci_is_for_convolutions_only(self) -> None:
        run = accuracy_kahira.abci_run("vgg16", "data+filter", 8, 64)
        whole = timeline_step(
            MeasuredRun(**{**{f: getattr(run, f) for f in MeasuredRun.__slots__}, "rule": None})
        )
        assert timeline_step(run).communication > 2 * whole.communication


class TestRawRuns:
    def test_rules_look_at_measurements_only(self) -> None:
        runs = [
            raw(),
            raw(seconds=0.3),
            raw(gpus=16, batch=1024, seconds=0.5),
            raw(gpus=32, batch=2048, seconds=0.25),
            raw(notes="DATA-LOADER BOUND (17 img/s)"),
            raw(era="early code (experiments.old, 2019)"),
            raw(strategy="data+spatial", batch=128, seconds=0.24),
            raw(strategy="data+spatial", model="alexnet", batch=1024, seconds=1.9),
            raw(strategy="data+filter", batch=128, seconds=2.8),
        ]
        reasons = accuracy_raw.exclusions(runs)
        for reason, part in zip(
            reasons,
            (
                "",
                "repetition",
                "more GPUs",
                "",
                "loader",
                "early",
                "loads the samples",
                "loads the samples",
                "Table VIII",
            ),
            strict=True,
        ):
            assert part in reason
            assert bool(part) == bool(reason)

    def test_finds_the_file_in_a_folder(self, tmp_path: Path) -> None:
        assert accuracy_raw.find_raw_runs(tmp_path) is None
        path = tmp_path / "measured" / accuracy_raw.FILE
        path.parent.mkdir()
        path.touch()
        assert accuracy_raw.find_raw_runs(tmp_path) == path
        assert accuracy_raw.find_raw_runs(path) == path


class TestMeasured:
    def test_the_command_calibrates_by_kin(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / "rows.csv"
        several = {
            "gpus": "4",
            "gpus_per_node": "4",
            "global_batch": "32",
            "strategy": "dp replicated",
            "interconnect": "NVLink2 cube mesh",
        }
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows([row(), row(**several, value="640"), row(model="nobody's")])
        monkeypatch.setattr(sys, "argv", ["accuracy", "--measured", str(path), "--json"])
        accuracy.main()
        report = json.loads(capsys.readouterr().out)["measured"]
        assert sum(report["skipped"].values()) == 1
        one, four = sorted(report["rows"], key=lambda found: found["gpus"])
        assert one["calibrated"] is None
        assert four["calibrated"] / one["measured"] == pytest.approx(
            four["predicted"] / one["predicted"], rel=0.1
        )
        assert report["all"]["several GPUs, calibrated"]["count"] == 1
