"""Writes fitted surfaces as the coefficient files of `costmodels/compute/data`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from benchmarks.fitting.fits import SourceError
from costmodels.compute.surface import Surface


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceEntry:
    """One surface, or one share of the memory bandwidth, of a family."""

    operation: str
    direction: str
    precision: str
    value: Surface | float
    errors: tuple[SourceError, ...]
    derived: bool = False
    comment: str = ""


def _toml_number(value: float) -> str:
    return f"{value:.4g}" if not isinstance(value, int) else str(value)


def family_toml(name: str, akin: Iterable[str], entries: Iterable[SurfaceEntry]) -> str:
    """The coefficient file of a family."""
    lines = [
        "# Written by benchmarks/fit_surface.py: fitted coefficients only, no measured rows.",
        f'family = "{name}"',
        f"akin = [{', '.join(repr(a) for a in akin)}]".replace("'", '"'),
    ]
    for entry in entries:
        dense = isinstance(entry.value, Surface)
        lines += ["", "[[surface]]" if dense else "[[bandwidth]]"]
        lines += [f'operation = "{entry.operation}"', f'direction = "{entry.direction}"']
        if isinstance(entry.value, Surface):
            lines += [f'precision = "{entry.precision}"', f"derived = {entry.derived}".lower()]
            used = {k: v for k, v in structs.asdict(entry.value).items() if v != _default(k)}
            cells = ", ".join(f"{key} = {_toml_number(value)}" for key, value in used.items())
            lines.append(f"coefficients = {{ {cells} }}")
        else:
            lines.append(f"share = {_toml_number(entry.value)}")
        if entry.comment:
            lines.append(f'comment = "{entry.comment}"')
        lines.append("sources = [")
        lines += [f"    {_source(error)}," for error in entry.errors]
        lines.append("]")
    return "\n".join(lines) + "\n"


def _default(name: str) -> object:
    return next(f.default for f in structs.fields(Surface) if f.name == name)


def _source(error: SourceError) -> str:
    source = error.source
    cells = {
        "name": f'"{source.name}"',
        "licence": f'"{source.licence}"',
        "software": f'"{source.software}"',
        "rows": str(error.rows),
        "held_out_rows": str(error.held_out_rows),
        "held_out_error": f"{error.held_out_error:.3f}",
        "held_out_bias": f"{error.held_out_bias:.3f}",
        "offset_us": f"{error.offset * 1e6:.1f}",
        "slower_by": f"{error.factor:.3f}",
    }
    return "{ " + ", ".join(f"{key} = {value}" for key, value in cells.items()) + " }"


def print_errors(name: str, entries: Iterable[SurfaceEntry]) -> None:
    """Print the held-out errors of a family, those of convolutions by output positions too."""
    for entry in entries:
        what = f"{name} {entry.operation} {entry.direction} {entry.precision}"
        for e in entry.errors:
            print(
                f"{what:42} {e.source.name.split(',')[0]:24} {e.rows:6} rows, held out "
                f"{e.held_out_rows:5}: |error| {e.held_out_error:6.1%} bias "
                f"{e.held_out_bias:+.3f} offset {e.offset * 1e6:6.1f} us x{e.factor:.2f}"
                + (" (derived)" if entry.derived else "")
            )
            if entry.operation == "conv" and not entry.derived:
                print(f"    held out by output positions: {_bins_text(e)}")


def _bins_text(error: SourceError) -> str:
    return "; ".join(
        f"to {b.most_positions:g} {b.rows} rows x{b.median_ratio:.2f} |{b.error:.0%}|"
        for b in error.bins
    )
