"""What is aimed at for measured rows, how far it is met, and why rows are far off.

The causes are data (`data/causes.toml`): words over the label of a row, the first that match. Rows
that no cause is known of are counted as such.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.machines import read_words

# Kinds of rows whose computation a row on one GPU of the same publication calibrates.
OWN = ("calibrated", "calibrated, other batch")
AIM_OWN, AIM_WITHOUT, AIM_NEAR, NEAR = 0.06, 0.10, 0.92, 0.15


def aim_rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """What is aimed at: rows, what is found, and whether it is met."""
    counting = [cell for cell in cells if cell.counts]
    own = [abs(cell.error) for cell in counting if cell.kind in OWN]
    rest = [abs(cell.error) for cell in counting if cell.kind not in OWN]
    near = [abs(cell.error) <= NEAR for cell in counting]
    rows: list[tuple[str, ...]] = []
    for what, errors, aim in (
        ("mean |error|, a row on one GPU of the same publication", own, AIM_OWN),
        ("mean |error|, without one", rest, AIM_WITHOUT),
    ):
        if errors:
            mean = statistics.fmean(errors)
            met = "met" if mean <= aim else "missed"
            rows.append((what, str(len(errors)), f"{mean:.1%}", f"at most {aim:.0%}", met))
    if near:
        part = statistics.fmean(near)
        met = "met" if part >= AIM_NEAR else "missed"
        what = f"rows within {NEAR:.0%}"
        rows.append((what, str(len(near)), f"{part:.1%}", f"at least {AIM_NEAR:.0%}", met))
    return rows


def cause_rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Why rows are more than `NEAR` off: how many, how far on average, and the cause."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        if cell.counts and abs(cell.error) > NEAR:
            found.setdefault(cause_of(cell.label, cell.gpus), []).append(cell.error)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        (str(len(errors)), f"{statistics.fmean(errors):+.1%}", cause) for cause, errors in ordered
    ]


def cause_of(label: str, gpus: int) -> str:
    """Why a row is far off, by what it is."""
    for entry in read_words("causes")["causes"]:
        alone = entry.get("alone")
        if re.search(entry["words"], label.lower()) and alone in (None, gpus == 1):
            return str(entry["cause"])
    return "not known"
