"""Fits what devices sustain under their limit on power: `python -m benchmarks.fitting.sustained`.

One number a device, the share of the rates of products that a transformer holds, so that steps of
the rows that `benchmarks/accuracy/data/llm.toml` names under `fits` are right on average. They are
those of one half of the workloads of a source; the other half is what the fit is judged by.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.llm.halves import fit_entry, was_fitted_on
from benchmarks.accuracy.llm.measurement import Measurement
from benchmarks.accuracy.llm.predict import predicted
from benchmarks.accuracy.llm.rows import read_llm_rows
from benchmarks.accuracy.llm.summary import LlmCell
from benchmarks.accuracy.words import Skip
from costmodels.errors import InputError

# Halvings of the range of the figure.
_HALVINGS = 6


def bias_of(rows: Sequence[Measurement], sustained: float) -> float:
    """Mean of the logarithm of predicted over measured time.

    Parameters
    ----------
    rows
        Measurements with a time.
    sustained
        What their devices hold.
    """
    ratios = []
    for row in rows:
        try:
            found = predicted(row.configuration, sustained=sustained)
        except (Skip, InputError):
            continue
        measured = LlmCell(measurement=row, prediction=found).measured_seconds
        if measured:
            ratios.append(math.log(found.seconds / measured))
    return statistics.fmean(ratios)


def fitted(rows: Sequence[Measurement]) -> float:
    """The share that makes steps of rows right on average, at most one."""
    least, most = 0.5, 1.0
    if bias_of(rows, most) > 0.0:
        return most
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        if bias_of(rows, middle) > 0.0:
            least = middle
        else:
            most = middle
    return (least + most) / 2


def main() -> None:
    """Read the files, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="files of measured transformers")
    by_device: dict[str, list[Measurement]] = {}
    for row in read_llm_rows(parser.parse_args().files).measurements:
        entry = fit_entry(row)
        if entry is not None and was_fitted_on(row):
            by_device.setdefault(str(entry["device"]), []).append(row)
    for device, rows in by_device.items():
        print(f"{device}: sustained = {fitted(rows):.2f}, {len(rows)} rows")


if __name__ == "__main__":
    main()
