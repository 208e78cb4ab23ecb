"""Measured rows that do not tell how fast computing and communicating is, by measurements only.

- A repetition of the same configuration that is slower by more than `SLOWER`.
- Half precision that gains much less over single precision on several GPUs than on one of the same
  machine: something of the host (loading, or a process that drives all GPUs) is what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy.rows import MeasuredRow

SLOWER = 1.1
LOST_GAIN = 0.8
REPEATED = "a repetition is more than a tenth faster"
HOST = "half precision gains far less than on one GPU: a process of the host was measured"


def _machine_of(row: MeasuredRow) -> tuple[str, ...]:
    """Publication, network, GPU, framework, system and kind of data."""
    return (*row.kin[:3], *row.kin[4:-1])


def _rates(rows: Sequence[MeasuredRow]) -> dict[tuple[object, ...], float]:
    """The fastest rate a GPU of each machine, number of GPUs and precision. [samples/s]"""
    rates: dict[tuple[object, ...], float] = {}
    for row in rows:
        key = (*_machine_of(row), row.gpus, row.precision == "fp16")
        rates[key] = max(row.batch / row.seconds / row.gpus, rates.get(key, 0.0))
    return rates


def doubts(rows: Sequence[MeasuredRow]) -> list[str]:
    """For each row, why it tells too little, or nothing; rows on one GPU are never in doubt."""
    fastest: dict[tuple[object, ...], float] = {}
    for row in rows:
        key = (row.kin, row.gpus, row.cluster.name, row.runtime)
        fastest[key] = min(row.seconds, fastest.get(key, row.seconds))
    rates = _rates(rows)
    found = ["" for _ in rows]
    for place, row in enumerate(rows):
        if row.gpus == 1:
            continue
        if row.seconds > SLOWER * fastest[row.kin, row.gpus, row.cluster.name, row.runtime]:
            found[place] = REPEATED
        elif row.precision == "fp16" and _gain_lost(row, rates):
            found[place] = HOST
    return found


def _gain_lost(row: MeasuredRow, rates: dict[tuple[object, ...], float]) -> bool:
    """Whether half precision gains much less than on one GPU; false where that is not known."""
    machine = _machine_of(row)
    try:
        alone = rates[(*machine, 1, True)] / rates[(*machine, 1, False)]
        single = rates[(*machine, row.gpus, False)]
    except KeyError:
        return False
    return row.batch / row.seconds / row.gpus / single < LOST_GAIN * alone
