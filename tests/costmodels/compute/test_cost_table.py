"""Measured tables: exact entries, interpolation, and bad cells."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from local_works import V100, conv

from costmodels.compute import ComputeModel, CostTable, TimeSource
from costmodels.compute.measured import REACH
from costmodels.compute.table import COLUMNS
from costmodels.errors import InputError


def row(seconds: object, **changed: object) -> dict[str, object]:
    values: dict[str, object] = {
        "operation": "conv",
        "direction": "forward",
        "precision": "fp32",
        "samples": 16,
        "channels": 64,
        "filters": 128,
        "in_extents": "56x56",
        "out_extents": "56x56",
        "kernel": "3x3",
        "stride": "1x1",
        "groups": 1,
        "seconds": seconds,
    }
    return values | changed


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        file.write("# device = V100\n# software = by hand\n")
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_measured_shape_is_taken_as_it_is(tmp_path: Path) -> None:
    table = CostTable.load(write(tmp_path / "t.csv", [row(1.5e-3), row(9e-3, samples=64)]))
    model = ComputeModel(V100, "fp32", tables=(table,))
    seconds, source = model.time(conv(samples=np.array([16, 64])))
    assert seconds == pytest.approx([1.5e-3, 9e-3])
    assert list(source) == [TimeSource.TABLE, TimeSource.TABLE]
    assert "software by hand" in model.describe()["table 1"]


def test_between_measured_shapes_the_ratio_to_the_model_is_interpolated(tmp_path: Path) -> None:
    plain = ComputeModel(V100, "fp32")
    ends = plain.time(conv(samples=np.array([8, 32])))[0]
    rows = [row(2 * ends[0], samples=8), row(3 * ends[1], samples=32)]
    table = CostTable.load(write(tmp_path / "t.csv", rows))
    model = ComputeModel(V100, "fp32", tables=(table,))
    seconds, source = model.time(conv(samples=np.array([9, 16, 30])))
    ratio = seconds / plain.time(conv(samples=np.array([9, 16, 30])))[0]
    assert (source == TimeSource.INTERPOLATED).all()
    assert ratio == pytest.approx([2, 6**0.5, 3], rel=0.01)
    assert (np.diff(ratio) > 0).all()


def test_a_shape_out_of_reach_is_left_to_the_surface(tmp_path: Path) -> None:
    table = CostTable.load(write(tmp_path / "t.csv", [row(1e-3)]))
    model = ComputeModel(V100, "fp32", tables=(table,))
    samples = np.array([16 * REACH, 16 * REACH + 1, 16 / REACH, 16 / REACH - 1])
    expected = [
        TimeSource.INTERPOLATED,
        TimeSource.SURFACE,
        TimeSource.INTERPOLATED,
        TimeSource.SURFACE,
    ]
    assert list(model.time(conv(samples=samples))[1]) == expected


def test_the_first_table_is_trusted_most(tmp_path: Path) -> None:
    first = CostTable.load(write(tmp_path / "a.csv", [row(1e-3)]))
    second = CostTable.load(write(tmp_path / "b.csv", [row(2e-3), row(7e-3, filters=4096)]))
    model = ComputeModel(V100, "fp32", tables=(first, second))
    seconds, source = model.time(conv(filters=np.array([128, 4096])))
    assert seconds == pytest.approx([1e-3, 7e-3])
    assert list(source) == [TimeSource.TABLE, TimeSource.TABLE]


@pytest.mark.parametrize("bad", ["nan", "-1e-3", "0", "inf", "", "fast"])
@pytest.mark.parametrize("column", ["seconds", "samples", "kernel"])
def test_a_bad_cell_is_named_by_line_and_column(column: str, bad: str, tmp_path: Path) -> None:
    if column == "kernel" and not bad:
        pytest.skip("an empty kernel is a linear layer's")
    path = write(tmp_path / "t.csv", [row(1e-3), row(1e-3) | {column: bad}])
    with pytest.raises(InputError, match=f"line 5, column {column} of t.csv must be") as caught:
        CostTable.load(path)
    assert str(caught.value).count("\n") == 0


def test_cells_may_have_spaces_before_them(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [row(1e-3)])
    spaced = tmp_path / "spaced.csv"
    spaced.write_text(path.read_text().replace(",", ", "))
    (one,), (other,) = (CostTable.load(file).rows for file in (path, spaced))
    assert one == other


def test_a_row_that_is_no_work_is_named_by_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 4 of t\.csv"):
        CostTable.load(write(tmp_path / "t.csv", [row(1e-3, operation="fft")]))
    with pytest.raises(InputError, match="line 4, column precision"):
        CostTable.load(write(tmp_path / "t.csv", [row(1e-3, precision="int4")]))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("operation,direction\nconv,forward\n")
    with pytest.raises(InputError, match=r"lacks precision.*seconds"):
        CostTable.load(path)


@pytest.mark.parametrize("column", ["samples", "channels", "groups"])
def test_extents_are_whole(column: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [row(1e-3) | {column: "1.5"}])
    with pytest.raises(InputError, match=f"line 4, column {column} of t.csv must be a whole"):
        CostTable.load(path)


def test_cells_that_no_reader_takes_are_refused(tmp_path: Path) -> None:
    for cell, words in (("x" * 200_000, "CSV table"), ('"a\nb"', "several|be a whole")):
        path = write(tmp_path / "t.csv", [row(1e-3)])
        path.write_text(path.read_text() + f"{cell}\n{cell}\n")
        with pytest.raises(InputError, match=words):
            CostTable.load(path)


def test_names_of_a_table_lose_their_control_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "t\x1b]0;x\x07\n.csv", [row(1e-3)])
    path.write_text(f"# driver\x9b = a\u202eb\n{path.read_text()}")
    assert "\x1b" not in CostTable.load(path).describe()
    assert "driver ab" in CostTable.load(path).describe()


@pytest.mark.parametrize("text", ['{"a":' * 100_000, '{"format": ' + "9" * 5000 + "}", "{"])
def test_a_table_in_json_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be valid JSON"):
        CostTable.of_text(text, "mine.json")


def test_a_row_with_more_cells_than_columns_is_refused(tmp_path: Path) -> None:
    """A comma too many shifts what follows it; the row was taken, and what was over left out."""
    path = write(tmp_path / "t.csv", [row(1.5e-3)])
    path.write_text(path.read_text().rstrip() + ",7\n")
    with pytest.raises(InputError, match=r"line 4 of t\.csv must have a cell for each"):
        CostTable.load(path)


NO_SHAPES = {
    "at most 96x96": {"in_extents": "32x32", "out_extents": "99x99"},
    "at most 29x29": {"operation": "pool", "stride": "2x2", "out_extents": "56x56"},
    "as many dims": {"out_extents": "56"},
    "divide channels": {"groups": 3},
}


@pytest.mark.parametrize("words", NO_SHAPES)
def test_a_shape_that_no_padding_gives_is_refused(words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [row(1e-3), row(1e-3, **NO_SHAPES[words])])
    with pytest.raises(InputError, match=rf"line 5.* of t\.csv must .*{words}.*correct or remove"):
        CostTable.load(path)


@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 7])
@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("extent", [1, 4, 7, 56])
def test_shapes_that_padding_gives_are_read(
    extent: int, stride: int, kernel: int, padding: int, tmp_path: Path
) -> None:
    """Pools as PyTorch rounds them up, and convolutions of every usual padding and dilation."""
    pool = -(-(extent + 2 * min(padding, kernel // 2) - kernel) // stride) + 1
    reach = (kernel - 1) * min(4, extent) + 1
    conv = (extent + 2 * min(padding, reach - 1 or 1, extent) - reach) // stride + 1
    cells = {"in_extents": extent, "kernel": kernel, "stride": stride}
    rows = [
        row(1e-3, operation=name, out_extents=out, **cells)
        for name, out in (("pool", pool), ("conv", conv))
        if out > 0
    ]
    assert len(CostTable.load(write(tmp_path / "t.csv", rows))) == len(rows)
