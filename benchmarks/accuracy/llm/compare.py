"""Every row of files of measured transformer training beside its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.llm.measurement import Measurement
from benchmarks.accuracy.llm.predict import Predictions
from benchmarks.accuracy.llm.report import LlmTable
from benchmarks.accuracy.llm.rows import read_llm_rows
from benchmarks.accuracy.llm.summary import LlmCell, summarised
from benchmarks.accuracy.words import Skip


def compare_llm_files(
    paths: Sequence[Path], *, source: str = "", sample: int = 0
) -> list[LlmTable]:
    """Predict the rows of files, a table a source.

    Parameters
    ----------
    paths
        The files.
    source
        Only sources with this in their name.
    sample
        At most so many rows of each source, evenly spread over the file; 0 for all. [items]
    """
    rows = read_llm_rows(paths)
    by_source: dict[str, list[Measurement]] = {}
    for measured in rows.measurements:
        by_source.setdefault(measured.source, []).append(measured)
    predictions = Predictions()
    tables = []
    for name in dict.fromkeys((*by_source, *rows.left_out, *rows.unmeasured)):
        if source.lower() not in name.lower():
            continue
        cells = []
        left = dict(rows.left_out.get(name, {}))
        for measured in _spread(by_source.get(name, []), sample):
            try:
                cells.append(LlmCell(measurement=measured, prediction=predictions.of(measured)))
            except Skip as error:
                left[str(error)] = left.get(str(error), 0) + 1
        summary = summarised(name, cells, left, rows.unmeasured.get(name, 0))
        tables.append(LlmTable(cells=tuple(cells), summary=summary))
    return tables


def _spread(rows: Sequence[Measurement], count: int) -> Sequence[Measurement]:
    """So many of the rows, evenly spread."""
    if not 0 < count < len(rows):
        return rows
    return [rows[i * len(rows) // count] for i in range(count)]
