"""Values as a hostile or careless world writes them, for any place of a file."""

from __future__ import annotations

import copy
import random
from typing import Any

from written_forms import Raw

_DIGITS = "9" * 5000


def _same(text: str) -> Raw:
    return Raw(text, text)


NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63)),
    *(10, 1000, 10**6, 10**9, 10**18),
    *(0.0, -0.0, 0.5, 1.5, 1e-9, 1e9, 1e18, -1e308),
    *(_same("1e308"), _same("1e-320"), _same("1e400"), _same("-1e400"), _same(_DIGITS)),
    *(Raw("NaN", "nan"), Raw("Infinity", "inf"), Raw("-Infinity", "-inf")),
)

# Texts with a unit, where a file has such: typed well, absurd or not.
AMOUNTS = (
    *("5 s", "1e-30 GB/s", "1e30 GB/s", "0 GB/s", "-1 GB/s", "nan GB/s", "inf us", "1e308 us"),
    *("1e400 s", "-5 us", "0 us", "1e-320 s", "0 GiB", "-1 GiB", "1e300 TiB", "1e-300 B"),
    *("5 parsecs", "5", "5us", " 5  us ", "5 us us", "us", "", "5e us", "٣ us", "1_0 us", "1,5 us"),
    *("10 TFLOP/s", "1e-300 FLOP/s", "1e308 TFLOP/s", f"{_DIGITS} us", "0x10 GiB", "5 µs", "5 US"),
)

# What stands before a unit: typed well, and often absurd.
_QUANTITIES = (
    *("0", "-1", "1e-30", "1e-320", "1e-9", "0.001", "1", "5", "1000", "1e9", "1e30", "1e308"),
    *("1e400", "nan", "inf", _DIGITS),
)

# Every one of these moves a cursor, hides text or ends a line.
CONTROLS = (
    *("a\x1b]0;owned\x07b", "\x07", "nul\0nul", "a\rb", "a\nb", "a\tb", "\u202etfel", "\x9b31m"),
    *("\x1b[2J", "\u2028", "\u2066x\u2069", "\x7f", "\x85", "\x1b[31mred\x1b[0m", "\ufeff"),
)
MARKUP = (
    *("<script>alert(1)</script>", '"><script>x</script>', "<img src=x onerror=x>", "| a | b |"),
    *("`x`", "[x](javascript:alert(1))", "&lt;script&gt;", "</title><script>", "[bold]x[/bold]"),
    *("[/]", "{{ 7 * 7 }}", "{% raw %}", "%s%n", "$(id)", "{0}", "../../etc/passwd", "-->", "*_~#"),
)
NAMES = (
    *("", " ", "input", "a.b", ".", "..", "a..b", "*", "h.0-5", "[a", "x" * 300, "ein Name"),
    *("名前", "é", "e\u0301", "😀" * 10, "null", "0", "-o", "--help", "a/b", "loss", "ſ", "İ"),
)
HUGE = "N" * 1_000_000

WRONG_TYPES: tuple[Any, ...] = (
    *(None, True, False, [], {}, "", "text", [[]], [None], [1, "a"], {"a": {"b": []}}, "3", [3]),
    *([1, 2, 3], [1] * 9, {"": 0}, ["input"], Raw('"\\ud800"', '"\\ud800"'), _same("2020-01-01")),
)


def deep_brackets(rng: random.Random) -> Raw:
    """Many thousands of lists in one another, closed or not."""
    depth = rng.choice((500, 5_000, 100_000))
    closed = "[" * depth + "]" * depth
    opened = rng.choice(("[" * depth, '{"a":' * depth))
    return _same(rng.choice((closed, closed, opened)))


def any_text(rng: random.Random) -> str:
    """A text that somebody may not expect."""
    if rng.random() < 0.04:
        return HUGE
    return rng.choice(rng.choice((CONTROLS, MARKUP, NAMES)))


def _amount(rng: random.Random, like: str) -> str:
    """An amount with the unit of another one, mostly."""
    unit = like.partition(" ")[2]
    return f"{rng.choice(_QUANTITIES)} {unit}" if rng.random() < 0.8 else rng.choice(AMOUNTS)


def any_value(rng: random.Random, like: Any = None) -> Any:
    """A value for a place that holds `like`; mostly of the same type, so that it gets far."""
    draw = rng.random()
    if draw < 0.03:
        return deep_brackets(rng)
    if draw < 0.25:
        # a copy, lest later changes go into the list above
        return copy.deepcopy(rng.choice(WRONG_TYPES))
    if isinstance(like, str) and draw < 0.9:
        return _amount(rng, like) if like[:1].isdigit() and draw < 0.8 else any_text(rng)
    if isinstance(like, bool):
        return not like
    return rng.choice(NUMBERS) if draw < 0.95 else any_text(rng)
