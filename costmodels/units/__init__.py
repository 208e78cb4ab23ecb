"""Quantities with units: parsed once where they are read, written once where they are shown.

Inside the code every quantity is a float in SI base units: bytes, seconds, FLOPs, bytes/s,
FLOP/s. Decimal prefixes are powers of 1000 (GB = 1e9 bytes), binary prefixes are powers of 1024
(GiB = 2**30 bytes); a small b is a bit (Gbps = Gb/s = 1e9 bits a second).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from decimal import Decimal

from costmodels.errors import InputError

_DECIMAL = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

BYTE_UNITS: Mapping[str, float] = {
    "B": 1.0,
    **{f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()},
}
SECOND_UNITS: Mapping[str, float] = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
}
BANDWIDTH_UNITS: Mapping[str, float] = {
    **{f"{unit}/s": factor for unit, factor in BYTE_UNITS.items()},
    **{f"{prefix}bps": factor / 8 for prefix, factor in _DECIMAL.items()},
    **{f"{prefix}b/s": factor / 8 for prefix, factor in _DECIMAL.items()},
}
FLOPS_UNITS: Mapping[str, float] = {
    "FLOP/s": 1.0,
    **{f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    **{f"{prefix}FLOPS": factor for prefix, factor in _DECIMAL.items()},
}

# A spelling that differs only in case is accepted where no other unit of the table shares it:
# "16gib" is clear, while "Mb/s" and "MB/s" are not the same thing.
_NUMBER_AND_UNIT = re.compile(
    r"([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)", re.DOTALL
)
_NOT_FINITE = re.compile(r"[+-]?(?:inf|infinity|nan)\b.*", re.IGNORECASE | re.DOTALL)


def parse_bytes(text: str, *, what: str = "the size", allow_zero: bool = False) -> float:
    """Read an amount of memory such as "16 GiB". [B]

    Parameters
    ----------
    text
        A number and a unit.
    what
        What error messages call it.
    allow_zero
        Whether zero is a value.
    """
    return _parse_quantity(text, BYTE_UNITS, what, example="16 GiB", allow_zero=allow_zero)


def parse_seconds(text: str, *, what: str = "the time", allow_zero: bool = False) -> float:
    """Read a duration such as "5 us". [s]

    Parameters
    ----------
    text
        A number and a unit.
    what
        What error messages call it.
    allow_zero
        Whether zero is a value.
    """
    return _parse_quantity(text, SECOND_UNITS, what, example="5 us", allow_zero=allow_zero)


def parse_bandwidth(text: str, *, what: str = "the bandwidth") -> float:
    """Read a rate of bytes such as "12.5 GB/s" or "100 Gbps". [B/s]"""
    return _parse_quantity(text, BANDWIDTH_UNITS, what, example="12.5 GB/s")


def parse_flops(text: str, *, what: str = "the compute rate") -> float:
    """Read a rate of floating-point operations such as "15.7 TFLOP/s". [FLOP/s]"""
    return _parse_quantity(text, FLOPS_UNITS, what, example="15.7 TFLOP/s")


def format_bytes(num_bytes: float) -> str:
    """Write an amount of memory with a binary prefix, such as "14.9 GiB"."""
    return _format(num_bytes, {"B": 1.0, **{f"{p}B": f for p, f in _BINARY.items()}})


def format_seconds(seconds: float) -> str:
    """Write a duration with the prefix that leaves one to three digits, such as "3.12 ms"."""
    return _format(seconds, {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0})


def format_bandwidth(bytes_per_second: float) -> str:
    """Write a rate of bytes with a decimal prefix, such as "12.5 GB/s"."""
    return _format(bytes_per_second, {"B/s": 1.0, **{f"{p}B/s": f for p, f in _DECIMAL.items()}})


def format_items(number: int, noun: str) -> str:
    """Write how many things there are, such as "1 GPU" or "1,024 micro-batches"."""
    several = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else several}"


def _parse_quantity(
    text: str,
    units: Mapping[str, float],
    what: str,
    *,
    example: str,
    allow_zero: bool = False,
) -> float:
    """Split the text into a number and a unit of the table, and multiply them."""
    stripped, advice = text.strip(), f'write it like "{example}"'
    match = _NUMBER_AND_UNIT.fullmatch(stripped)
    if match is None:
        if _NOT_FINITE.fullmatch(stripped):
            raise InputError.rule(what, "be finite", f'"{text}"', advice)
        raise InputError.rule(what, "be a number followed by a unit", f'"{text}"', advice)
    number, unit = match.groups()
    factor = _unit_factor(unit, units, what, text, example)
    try:
        # In decimal, so that "5 us" becomes the float nearest to 5e-6, as a reader expects.
        value = float(Decimal(number.replace(",", "").replace("_", "")) * Decimal(repr(factor)))
    except ArithmeticError:
        value = math.inf
    if not math.isfinite(value):
        raise InputError.rule(what, "be finite", f'"{text}"', advice)
    if value < 0 or (value == 0 and not allow_zero):
        rule = "not be negative" if allow_zero else "be greater than zero"
        raise InputError.rule(what, rule, f'"{text}"', advice)
    return value


def _unit_factor(
    unit: str, units: Mapping[str, float], what: str, text: str, example: str
) -> float:
    """Look the unit up, forgiving its case where that cannot change the meaning."""
    if unit in units:
        return units[unit]
    same_letters = {units[known] for known in units if known.lower() == unit.lower()}
    if len(same_letters) == 1:
        return same_letters.pop()
    allowed = ", ".join(known for known in units if known.isascii())
    if not unit:
        advice = f'add one of {allowed}, like "{example}"'
        raise InputError.rule(what, "have a unit", f'"{text}"', advice)
    guess = difflib.get_close_matches(unit, list(units), n=1, cutoff=0.5)
    hint = f', did you mean "{guess[0]}"' if guess else ""
    raise InputError(
        f'{what} has the unknown unit "{unit}" in "{text}"{hint}; use one of {allowed}'
    )


def _format(value: float, units: Mapping[str, float]) -> str:
    """Choose the largest unit that leaves at least one before the point; 3 significant digits."""
    if not math.isfinite(value):
        return str(value)
    names = list(units)
    chosen = names[0]
    for name in names:
        # 999.9 of one unit would print as "1e+03": step up where rounding reaches the next one.
        if abs(value) >= units[name] * 0.9995:
            chosen = name
    if value == 0:
        chosen = "s" if "s" in units else names[0]
    scaled = value / units[chosen]
    digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    number = f"{scaled:.{digits}f}"
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {chosen}"
