"""Fitted coefficients of the device families, and which of them a device may use.

Each file of `data/` holds one family: dense surfaces and shares of the memory bandwidth, each with
the measurements that it was fitted to and its error on rows that the fit did not see. They are
written by `python -m benchmarks.fitting`. A device belongs to the family whose name its own name
contains. Where a family lacks something, the coefficients of a sibling precision or of an akin
family stand in for it, and the answer is marked as derived.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from costmodels.compute.surface import Surface
from costmodels.errors import InputError

_DATA: Final = Path(__file__).parent / "data"

# Precisions whose coefficients may stand in for one another: tensor cores of one device.
_SIBLINGS: Final = {
    "fp32": ("fp32",),
    "tf32": ("tf32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16", "fp16"),
}
# Operations whose coefficients stand in for those of others: they move bytes, or multiply, alike.
_STAND_INS: Final = {"matmul": ("linear",), "fused_add": ("add",), "bias": ("activation",)}
# Families for a device that has none: vector units are best known on V100, tensor cores on A100.
_DEFAULT_AKIN: Final = {"fp32": ("v100", "a100")}
_DEFAULT_AKIN_TENSOR: Final = ("a100", "v100")


class Fit(Struct, frozen=True, kw_only=True):
    """A coefficient or surface, and where it is from.

    Attributes
    ----------
    value
        Coefficients of a dense surface, or the share of the memory bandwidth.
    derived
        Whether it was transferred from measurements of something akin.
    note
        Source, rows used and held-out error, in one line for a report.
    """

    value: Surface | float
    derived: bool
    note: str


class Family(Struct, frozen=True, kw_only=True):
    """Everything fitted for one device family, by (operation, direction, precision).

    A bandwidth share has the empty precision; a surface for all directions has "any".
    """

    name: str
    akin: tuple[str, ...]
    fits: Mapping[tuple[str, str, str], Fit]


def family_names() -> tuple[str, ...]:
    """Names of the families that have fitted coefficients."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.toml")))


def family_of(device_name: str) -> str | None:
    """Family whose name the device's name contains; the longest such name.

    Parameters
    ----------
    device_name
        Name of a device such as "Tesla V100-SXM2-16GB".
    """
    found = []
    for name in family_names():
        pattern = r"[\s_()-]*".join(re.escape(part) for part in name.split("_"))
        before = "[a-z]" if name[0].isalpha() else "[0-9]"
        if re.search(rf"(?<!{before}){pattern}(?![0-9])", device_name.lower()):
            found.append(name)
    return max(found, key=len, default=None)


@cache
def load_family(name: str) -> Family:
    """Coefficients of one family.

    Parameters
    ----------
    name
        One of `family_names()`.
    """
    path = _DATA / f"{name}.toml"
    if name not in family_names():
        raise InputError.rule(
            "the device family",
            f"be one of {', '.join(family_names())}",
            f"'{name}'",
            "name the closest one",
        )
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    fits: dict[tuple[str, str, str], Fit] = {}
    for entry in document.get("surface", ()):
        key = (entry["operation"], entry["direction"], entry["precision"])
        value = Surface(**entry["coefficients"])
        fits[key] = Fit(value=value, derived=entry["derived"], note=_note(name, entry))
    for entry in document.get("bandwidth", ()):
        key = (entry["operation"], entry["direction"], "")
        fits[key] = Fit(value=entry["share"], derived=False, note=_note(name, entry))
    return Family(name=name, akin=tuple(document.get("akin", ())), fits=fits)


def find_fit(family: str | None, operation: str, direction: str, precision: str) -> Fit | None:
    """The best fit for an operation on a device of a family, or None.

    Parameters
    ----------
    family
        Family of the device; None for a device that has none.
    operation, direction
        Of a `Work`.
    precision
        Precision that is computed in; empty for the share of the memory bandwidth.
    """
    own = (family,) if family else ()
    akin = load_family(family).akin if family else ()
    names = dict.fromkeys(own + akin + _DEFAULT_AKIN.get(precision, _DEFAULT_AKIN_TENSOR))
    for name in names:
        fits = load_family(name).fits
        for stand_in in _SIBLINGS.get(precision, (precision,)):
            for kind in (operation, *_STAND_INS.get(operation, ())):
                for way in (direction, "any"):
                    fit = fits.get((kind, way, stand_in))
                    if fit is None:
                        continue
                    if name == family and stand_in == precision and kind == operation:
                        return fit
                    what = f"{name} {kind} {stand_in}".rstrip()
                    note = f"transferred from {what}: {fit.note}"
                    return Fit(value=fit.value, derived=True, note=note)
    return None


def _note(family: str, entry: Mapping[str, Any]) -> str:
    parts = [entry["comment"]] if entry.get("comment") else []
    for source in entry["sources"]:
        part = f"{source['name']} ({source['licence']}; {source['software']})"
        if source.get("held_out_rows"):
            part += (
                f", mean error {source['held_out_error']:.0%} on {source['held_out_rows']} "
                "held-out rows"
            )
        parts.append(part)
    return f"{family}: " + "; ".join(parts)
