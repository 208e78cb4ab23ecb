from __future__ import annotations

import re

import pytest

from costmodels.errors import InputError
from costmodels.units.tables import parse_json, parse_toml, read_text

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [(f"{DEEP}{'' if closed else ']'}", "nested more than 64 deep") for closed in (True, False)]
    + [
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("9" * 5000, "thousands of digits"),
        (str(2**63), "more than 64 bits"),
        ("", "but is not"),
    ],
)
def test_what_no_parser_takes_is_refused_with_a_sentence(text, words):
    with pytest.raises(InputError, match=words):
        parse_json(text, "it")
    with pytest.raises(InputError, match=words if text else "valid TOML"):
        parse_toml(f"a = {text}", "it")


def test_constants_that_are_no_json_are_refused():
    with pytest.raises(InputError, match="NaN is no number"):
        parse_json("[NaN]", "it")


def test_names_lose_their_control_characters():
    assert parse_json('{"a\\u001b": ["\\u202eb\\ud800", 1.5, true]}', "it") == {
        "a": ["b", 1.5, True]
    }
    assert parse_toml('"a\\u0007" = "\\u009b31m"', "it") == {"a": "31m"}


@pytest.mark.parametrize(
    "text", ['{"a": {"b": 1, "c": 2, "b": 1}}', '{"b": 1, "\\u0062": 2}', '{"b": 1, "b\\u0007": 2}']
)
def test_fields_that_stand_there_twice_are_refused(text):
    with pytest.raises(InputError, match="the field 'b' stands there twice"):
        parse_json(text, "it")
    if "0007" in text:
        with pytest.raises(InputError, match="the field 'b' stands there twice"):
            parse_toml('b = 1\n"b\\u0007" = 2', "it")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfa\r\nb\r")
    assert read_text(tmp_path / "marked", "it") == "a\nb\n"
    for path, reason in (
        (tmp_path / "gone", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "bytes", "not UTF-8"),
        ("a\0b", "no path"),
        ("/dev/zero", "larger than 256 MiB"),
    ):
        with pytest.raises(InputError, match=f"must be readable but is not .*(?:{reason})"):
            read_text(path, "it")
    assert not re.search("\0", str(InputError("a\0b")))
