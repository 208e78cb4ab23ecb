"""What a simulated or costed step rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodels.compute import ComputeModel
from costmodels.compute.coefficients import family_of
from costmodels.notes import Note
from costmodels.simulation.measure import SimulatedStep
from costmodels.step.machine import Machine
from costmodels.units import format_bytes, format_seconds

# Sources of less than this part of the computation are not worth a sentence: they read "0.0%".
LEAST_SHARE = 0.0005
# From here on how much slower is said as a factor.
MANY_TIMES = 2.0
# Times of one shape that are no further apart are as alike as measurements are. [times]
REPEATS_ALIKE = 1.1
# Rows of tables that are named in a sentence. [items]
MOST_NAMED = 3
# What is noted of each source of estimates that is no measurement, in this order.
_KINDS = {
    "derived_surface": "estimated-by-surfaces",
    "roofline": "estimated-by-roofline",
    "interpolated": "interpolated",
    "launch": "waits-for-launches",
    "percent_of_peak": "estimated-by-percent-of-peak",
}


def estimate_notes(sources: Mapping[str, float], machine: Machine) -> tuple[Note, ...]:
    """How much of the computation is no measurement.

    Parameters
    ----------
    sources
        Time of computation by where its estimate comes from. [s]
    machine
        What the step was costed on.
    """
    total = sum(sources.values())
    shares = {kind: sources.get(source, 0.0) / total for source, kind in _KINDS.items()}
    launch_time = format_seconds(machine.training.launch_time)
    estimated = (
        Note.of(kind, share=share, launch_time=launch_time)
        for kind, share in shares.items()
        if share > LEAST_SHARE
    )
    return (*_table_notes(sources.get("table", 0.0) / total, machine.compute), *estimated)


def room_notes(simulated: SimulatedStep) -> tuple[Note, ...]:
    """What the prediction of a step's memory that fits leaves to be known.

    Parameters
    ----------
    simulated
        The step.
    """
    short = simulated.lasting_short
    if simulated.peak.short <= 0.0 < short:
        return (Note.of("gives-memory-back", short=format_bytes(short)),)
    return ()


def _table_notes(share: float, compute: ComputeModel) -> tuple[Note, ...]:
    """What tables say of a step.

    Parameters
    ----------
    share
        Part of its computation that they measured.
    compute
        The model that has them.
    """
    measured = compute.measured
    if measured is None:
        return ()
    collectives = sum(len(table.collectives) for table in compute.tables)
    notes = [Note.of("links-fitted", rows=collectives)] if collectives else []
    notes += [
        Note.of(
            "tables-of-another-device",
            table=table.name,
            device=table.provenance["device"],
            planned=compute.device.name,
        )
        for table in compute.tables
        if table.rows and _is_foreign(table.provenance.get("device", ""), compute.device.name)
    ]
    notes += [
        Note.of("table-unused", table=table.name, precision=compute.precision)
        for table in compute.tables
        if not any(row.precision == compute.precision for row in table.rows)
        # what was measured of links alone has no times of layers
        and (table.rows or not (table.collectives or table.curves))
    ]
    if not len(measured):
        return tuple(notes)
    known = measured.agreement()
    if known is None:
        notes.append(Note.of("tables-cover", share=share))
    else:
        pace, spread = pace_text(known.ratio), math.expm1(known.spread)
        notes.append(Note.of("tables-correct", share=share, pace=pace, spread=spread))
    if measured.widest_repeat > REPEATS_ALIKE:
        notes.append(Note.of("table-repeats", apart=f"{measured.widest_repeat:.2g} times"))
    if measured.tables_apart > REPEATS_ALIKE:
        notes.append(Note.of("tables-apart", apart=f"{measured.tables_apart:.2g} times"))
    if measured.outliers:
        first = ", ".join(measured.outliers[:MOST_NAMED])
        more = len(measured.outliers) - MOST_NAMED
        which = f"{first} and {more} more" if more > 0 else first
        notes.append(Note.of("table-outliers", which=which))
    return tuple(notes)


def _is_foreign(measured: str, planned: str) -> bool:
    """Whether a table is of another kind of device than the one that is planned for.

    Parameters
    ----------
    measured
        What the table says of its device; what is not known is taken to be right.
    planned
        The device of the cluster.
    """
    if measured.startswith("CPU "):
        return family_of(planned) is not None
    known = family_of(measured)
    return known is not None and known != family_of(planned)


def pace_text(ratio: float) -> str:
    """How a time compares to another, of which it is a multiple: "15 % slower than"."""
    if ratio >= MANY_TIMES or ratio <= 1.0 / MANY_TIMES:
        return f"{max(ratio, 1.0 / ratio):,.1f} times {'slower' if ratio > 1.0 else 'faster'} than"
    if round(abs(ratio - 1.0), 3) == 0.0:
        return "as fast as"
    return f"{abs(ratio - 1.0):.1%} {'slower' if ratio > 1.0 else 'faster'} than"
