"""Quantities with units: what is read, what is refused and how it is said."""

from __future__ import annotations

import math

import pytest

from costmodels.errors import InputError
from costmodels.units import (
    format_bandwidth,
    format_bytes,
    format_items,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16 GiB", 16 * 2**30),
        ("80 GB", 80e9),
        ("80GB", 80e9),
        (" 1.5 MiB ", 1.5 * 2**20),
        ("16gib", 16 * 2**30),
        ("1e3 kB", 1e6),
        ("1,024 B", 1024),
        ("1_024 B", 1024),
    ],
)
def test_bytes_are_read_in_decimal_and_binary_units(text: str, expected: float) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12.5 GB/s", 12.5e9), ("100 Gbps", 12.5e9), ("100 Gb/s", 12.5e9), ("1 GiB/s", 2**30)],
)
def test_bandwidth_tells_bits_from_bytes(text: str, expected: float) -> None:
    assert parse_bandwidth(text) == expected


def test_case_that_changes_the_meaning_is_not_guessed() -> None:
    with pytest.raises(InputError, match="unknown unit"):
        parse_bandwidth("12.5 mb/s")


@pytest.mark.parametrize(
    ("text", "expected"), [("5 us", 5e-6), ("5 µs", 5e-6), ("3ms", 3e-3), ("2 min", 120.0)]
)
def test_seconds(text: str, expected: float) -> None:
    assert parse_seconds(text) == expected


def test_flops() -> None:
    assert parse_flops("15.7 TFLOP/s") == 15.7e12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("16 Gigs", ["Gigs", "GiB", "use one of"]),
        ("16", ["must have a unit", "GiB"]),
        ("GiB", ["number followed by a unit"]),
        ("", ["number followed by a unit"]),
        ("0 GiB", ["greater than zero", "0 GiB"]),
        ("-1 GiB", ["greater than zero", "-1 GiB"]),
        ("nan GiB", ["finite"]),
        ("inf", ["finite"]),
        ("-infinity B", ["finite"]),
        ("1e400 GiB", ["finite"]),
        ("1e999999999999999999 GiB", ["finite"]),
        ("1e-999 GiB", ["greater than zero"]),
    ],
)
def test_a_refusal_is_one_sentence_that_says_what_to_write(text: str, says: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes(text, what="the memory limit")
    message = str(caught.value)
    assert message.startswith("the memory limit ")
    assert not message.endswith(".")
    assert "\n" not in message
    assert ". " not in message.replace("...", "")
    for part in says:
        assert part in message


def test_zero_is_allowed_only_where_it_has_a_meaning() -> None:
    assert parse_seconds("0 s", allow_zero=True) == 0
    with pytest.raises(InputError, match="must not be negative"):
        parse_seconds("-1 s", allow_zero=True)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (format_bytes(16 * 2**30), "16 GiB"),
        (format_bytes(14.9 * 2**30), "14.9 GiB"),
        (format_bytes(1023.9), "1 KiB"),
        (format_bytes(0), "0 B"),
        (format_bytes(-(2**20)), "-1 MiB"),
        (format_seconds(3.123e-3), "3.12 ms"),
        (format_seconds(0.99999), "1 s"),
        (format_seconds(123.4), "123 s"),
        (format_seconds(0), "0 s"),
        (format_bandwidth(12.5e9), "12.5 GB/s"),
        (format_seconds(math.inf), "inf"),
    ],
)
def test_quantities_are_written_for_people(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize("value", [1.0, 999.4, 1e-7, 3.25e-3, 59.0])
def test_what_is_written_reads_back_to_three_digits(value: float) -> None:
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=6e-3)


def test_one_thing_is_said_as_one() -> None:
    assert format_items(1, "GPU") == "1 GPU"
    assert format_items(1024, "GPU") == "1,024 GPUs"
    assert format_items(2, "micro-batch") == "2 micro-batches"
