"""Measured tables, from the file to the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from costmodels.compute.table import COLUMNS
from costmodels.errors import InputError

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
