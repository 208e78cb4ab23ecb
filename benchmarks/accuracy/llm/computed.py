"""Rows whose steps a program made up of parts, instead of a clock.

Steps of one strategy that differ in the number of their micro-batches lie near a line, but no clock
puts them on it to the seventh digit: jobs of the same configuration differ by a per cent and more.
Where all of a source do, its rows are sums that somebody computed. They are shown, and count
nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.accuracy.llm.measurement import Configuration, Measurement

COMPUTED = "computed: every step is a sum of equal passes, to the last digit"
# How far from a line, as a share, steps may lie that are on it but for the digits that are printed.
_EXACT = 1e-7
# Of fewer strategies with three batches and more nothing follows. [items]
_FEWEST = 10


def with_computed_marked(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Rows with a doubt where no step of their source was measured."""
    computed = computed_sources(rows)
    return tuple(
        replace(row, doubt=COMPUTED) if row.source in computed and not row.doubt else row
        for row in rows
    )


def computed_sources(rows: Sequence[Measurement]) -> frozenset[str]:
    """Sources whose steps all lie on lines over their micro-batches."""
    steps: dict[tuple[str, Configuration], dict[int, float]] = {}
    for row in rows:
        if row.seconds is not None:
            strategy = replace(row.configuration, global_batch=0)
            times = steps.setdefault((row.source, strategy), {})
            times[row.configuration.global_batch] = row.seconds
    bends: dict[str, list[float]] = {}
    for (source, _), times in steps.items():
        if len(times) > 2:
            bends.setdefault(source, []).append(_bend(times))
    return frozenset(
        source for source, of in bends.items() if len(of) >= _FEWEST and max(of) < _EXACT
    )


def _bend(times: dict[int, float]) -> float:
    """How far steps are from the line through that of the smallest and the largest batch."""
    (few, first), *between, (many, last) = sorted(times.items())
    slope = (last - first) / (many - few)
    return max(abs(seconds / (first + (n - few) * slope) - 1.0) for n, seconds in between)
