"""The file of a profile, which is a table at any time: a killed run loses nothing that it wrote.

Every time is written at once, under a temporary name that is renamed. A rerun reads what is there
and measures the rest. What could not be measured stands in the file, too, so that it is not tried
again and again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from costmodels.cluster.curve import CollectiveCurve
from costmodels.communication.curves import fitted_curve
from costmodels.compute.table import COLLECTIVE_COLUMNS, COLUMNS, FORMAT, CostTable
from costmodels.errors import InputError, plain, printable
from costmodels.units.tables import parse_json, read_text
from planner.output import write_text
from planner.tables.profile.place import SAME
from planner.tables.profile.shape import SHAPE_COLUMNS, Shape
from planner.tables.profile.timing import Timing

# A collective, hosts and GPUs.
Sweep = tuple[str, int, int]
TIME_COLUMNS = (*COLUMNS, "visible", "spread")


class MeasuredProfile(Struct):
    """Times that were measured, and the file that they are kept in.

    Parameters
    ----------
    path
        Of the file.
    provenance
        Device, host, software and date.
    times
        Seconds and spread by shape, precision and direction.
    left_out
        Why shapes could not be measured, by shape and precision.
    sweeps
        Seconds of collectives, by what they are between: rows of (bytes, seconds, spread).
    overlap
        How much longer computation takes beside an all-reduce, None where that was not measured.
    """

    path: str
    provenance: Mapping[str, str]
    times: dict[tuple[Shape, str, str], Timing] = field(default_factory=dict)
    left_out: dict[tuple[Shape, str], str] = field(default_factory=dict)
    sweeps: dict[Sweep, list[tuple[float, float, float]]] = field(default_factory=dict)
    overlap: float | None = None

    def text(self) -> str:
        """The file."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "provenance": dict(self.provenance),
            "columns": list(TIME_COLUMNS),
            "rows": [self._row(*key, timing) for key, timing in self.times.items()],
        }
        if self.left_out:
            rows = [[*s.cells().values(), p, why] for (s, p), why in self.left_out.items()]
            columns = [*SHAPE_COLUMNS, "precision", "reason"]
            document["left_out"] = {"columns": columns, "rows": rows}
        if self.sweeps:
            rows = [[*sweep, *row] for sweep, found in self.sweeps.items() for row in found]
            columns = [*COLLECTIVE_COLUMNS, "spread"]
            # exchanges of two devices fit no level of links: they have curves alone
            for name, exchanged in (("collectives", False), ("exchanges", True)):
                some = [row for row in rows if (row[0] == "send_recv") == exchanged]
                document[name] = {"columns": columns, "rows": some}
            document["curves"] = [msgspec.to_builtins(curve) for curve in self.curves()]
        if self.overlap is not None:
            document["overlap"] = self.overlap
        return (
            json.dumps(document, separators=(",", ":")).replace('"rows":[[', '"rows":[\n[') + "\n"
        )

    def curves(self) -> list[CollectiveCurve]:
        """What the sweeps are fitted to."""
        return [
            fitted_curve(*sweep, [row[0] for row in rows], [row[1] for row in rows])
            for sweep, rows in self.sweeps.items()
        ]

    @staticmethod
    def _row(shape: Shape, precision: str, direction: str, timing: Timing) -> list[object]:
        cells = {
            **shape.cells(),
            "precision": precision,
            "direction": direction,
            # four digits are more than what repeats
            "seconds": float(f"{timing.seconds:.4e}"),
            "spread": round(timing.spread, 3),
        }
        return [cells[column] for column in TIME_COLUMNS]

    def save(self) -> None:
        """Write the file."""
        write_text(self.path, self.text())


def open_profile(path: str, provenance: Mapping[str, str]) -> MeasuredProfile:
    """The profile of a file, to go on with, or a new one where there is none.

    Parameters
    ----------
    path
        The file.
    provenance
        Of the device that is to be measured.

    Raises
    ------
    InputError
        When it is no table, or one of another device, host or software.
    """
    if not os.path.exists(path):
        return MeasuredProfile(path, provenance)
    text = printable(read_text(path, f"the file {path}"))
    name = plain(os.path.basename(path))
    parsed = parse_json(text, name, "remove it, or choose another file")
    document: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    known = document.get("provenance")
    if not isinstance(known, dict) or document.get("format") != FORMAT:
        raise InputError(
            f"{plain(path)} is there already and must be a profile to go on with but is none; "
            "remove it, or choose another file"
        )
    for key in SAME:
        if str(known.get(key, "")) != provenance.get(key, ""):
            raise InputError(
                f"{plain(path)} is of {_called(key, known)} and must be of "
                f"{_called(key, provenance)} to go on with; choose another file"
            )
    table = CostTable.of_text(text, name)
    profile = MeasuredProfile(path, {**provenance, "date": _dates(known, provenance)})
    spreads = _spread_column(document)
    for number, row in enumerate(table.rows):
        try:
            shape = _shape_of(row.work)
        except ValueError as error:
            raise InputError(
                f"row {number + 1} of {plain(path)} is of {error}, which nothing computes; "
                "remove it, or choose another file"
            ) from None
        timing = Timing(seconds=row.seconds, spread=spreads[number])
        profile.times[shape, row.precision, row.work.direction] = timing
    profile.left_out = dict(_left_out_rows(document.get("left_out")))
    for name in ("collectives", "exchanges"):
        for sweep, point in _sweep_rows(document.get(name)):
            profile.sweeps.setdefault(sweep, []).append(point)
    overlap = document.get("overlap")
    profile.overlap = float(overlap) if isinstance(overlap, int | float) else None
    return profile


def _sweep_rows(part: object) -> list[tuple[Sweep, tuple[float, float, float]]]:
    """Rows of sweeps; those that are not understood are measured again."""
    found = []
    rows = part.get("rows", []) if isinstance(part, dict) else []
    for row in rows if isinstance(rows, list) else []:
        try:
            collective, hosts, gpus, size, seconds, spread = row
            sweep = (str(collective), int(hosts), int(gpus))
            found.append((sweep, (float(size), float(seconds), float(spread))))
        except (TypeError, ValueError):
            continue
    return found


def _called(key: str, provenance: Mapping[str, object]) -> str:
    value = plain(str(provenance.get(key, "") or "none"))
    return f"the {key} {value}" if key != "threads" else f"{value} threads"


def _dates(known: Mapping[str, object], provenance: Mapping[str, str]) -> str:
    first, last = str(known.get("date", "")).split(" ")[0], provenance["date"]
    return last if first in ("", last) else f"{first} to {last}"


def _spread_column(document: Mapping[str, Any]) -> list[float]:
    columns, rows = list(document.get("columns", [])), document.get("rows", [])
    if "spread" not in columns:
        return [0.0] * len(rows)
    place = columns.index("spread")
    return [float(row[place]) if isinstance(row[place], int | float) else 0.0 for row in rows]


def _shape_of(work: Any) -> Shape:
    return Shape(
        operation=work.operation,
        samples=int(work.samples),
        channels=int(work.channels),
        filters=int(work.filters),
        in_extents=tuple(int(n) for n in work.in_extents),
        out_extents=tuple(int(n) for n in work.out_extents),
        kernel=work.kernel,
        stride=work.stride,
        groups=int(work.groups),
        visible=float(work.visible),
    )


def _left_out_rows(part: object) -> list[tuple[tuple[Shape, str], str]]:
    """What could not be measured; rows that are not understood are tried again."""
    found = []
    rows = part.get("rows", []) if isinstance(part, dict) else []
    for row in rows if isinstance(rows, list) else []:
        try:
            *cells, precision, reason = row
            named: dict[str, Any] = dict(zip(SHAPE_COLUMNS, cells, strict=True))
            for name in ("in_extents", "out_extents", "kernel", "stride"):
                named[name] = tuple(int(part) for part in named[name].split("x") if part)
            found.append(((Shape(**named), str(precision)), str(reason)))
        except (TypeError, ValueError, AttributeError):
            continue
    return found
