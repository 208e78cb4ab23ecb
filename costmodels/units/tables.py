"""Files of users: texts, TOML and JSON are read here, and every failure is one sentence.

Names and sentences of a file are shown on terminals and pages, so they lose their control
characters here. Assumes that no file is large or nested deeply: what is would only hold a reader
up.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from costmodels.errors import InputError, closest, printable

# A network of ten thousand layers takes 2 MB, a plan for it 10 MB.
LARGEST_FILE = 2**28
DEEPEST = 64
_LARGEST_NUMBER = 2**63


def read_text(path: str | os.PathLike[str], what: str, advice: str = "check the path") -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Parameters
    ----------
    path
        The file.
    what
        What error messages call it.
    advice
        What to do next if it cannot be read.

    Raises
    ------
    InputError
        When it cannot be read, is too large, or is no text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            reason = f"it is larger than {LARGEST_FILE // 2**20} MiB"
        else:
            return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ValueError:
        reason = "no path holds such characters"
    raise InputError(f"{what} must be readable but is not ({reason}); {advice}")


def parse_toml(text: str, what: str, advice: str = "correct it there") -> dict[str, object]:
    """The tables of a TOML text.

    Parameters
    ----------
    text
        The text.
    what
        What error messages call it.
    advice
        What to do next if it is none.

    Raises
    ------
    InputError
        When it is no TOML, nested too deeply, or holds numbers of more than 64 bits.
    """
    tables: dict[str, object] = _parsed(lambda: tomllib.loads(text), "TOML", what, advice)
    return tables


def parse_json(text: str, what: str, advice: str = "correct it there") -> object:
    """What a JSON text holds.

    Parameters
    ----------
    text
        The text.
    what
        What error messages call it.
    advice
        What to do next if it is none.

    Raises
    ------
    InputError
        When it is no JSON, nested too deeply, says a field twice, or holds numbers of more than
        64 bits.
    """

    def parse() -> Any:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_fields_once)

    return _parsed(parse, "JSON", what, advice)


def _parsed(parse: Callable[[], Any], form: str, what: str, advice: str) -> Any:
    try:
        return _cleaned(parse(), DEEPEST)
    except RecursionError:
        reason = f"it is nested more than {DEEPEST} deep"
    except ValueError as error:
        # the interpreter's own limit comes with advice for programmers
        many = type(error) is ValueError and "digits" in str(error)
        reason = "a number has thousands of digits" if many else str(error)
    raise InputError(f"{what} must be valid {form} but is not: {reason}; {advice}")


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _fields_once(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields and their values; of one that stands there twice nobody knows which is meant."""
    found: dict[str, Any] = {}
    for key, value in fields:
        if key in found:
            raise ValueError(f"the field '{key}' stands there twice")
        found[key] = value
    return found


def _cleaned(value: Any, depth: int) -> Any:
    """A value whose texts have no control characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
        raise ValueError("a whole number takes more than 64 bits")
    if isinstance(value, dict | list) and depth == 0:
        raise RecursionError
    if isinstance(value, dict):
        # names may be alike without their control characters
        rows = ((printable(key), _cleaned(inner, depth - 1)) for key, inner in value.items())
        return _fields_once(rows)
    if isinstance(value, list):
        return [_cleaned(inner, depth - 1) for inner in value]
    return value


class FieldFault(Struct, frozen=True, kw_only=True):
    """Fields that a table of a file lacks, and those that it should not have.

    Parameters
    ----------
    place
        What error messages call the table; empty for the file itself.
    missing, unknown
        Names of the fields.
    known
        All that the table can have.
    """

    place: str
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    known: tuple[str, ...]

    def __str__(self) -> str:
        said = []
        if self.missing:
            said.append(f"lacks the {_fields_text(self.missing)}")
        if self.unknown:
            said.append(f"has the unknown {_fields_text(self.unknown)}")
        return " and ".join(said)


def _fields_text(names: tuple[str, ...]) -> str:
    *first, last = (f"'{name}'" for name in names)
    return f"fields {', '.join(first)} and {last}" if first else f"field {last}"


def field_faults(value: object, kind: type, place: str = "") -> Iterator[FieldFault]:
    """Fields that are missing or unknown, in a table and all tables inside.

    Values of a wrong type are passed over: `msgspec.convert` names the first of them.

    Parameters
    ----------
    value
        What a file holds.
    kind
        The `msgspec.Struct` that it should be.
    place
        What error messages call it; empty for the file itself.
    """
    yield from _faults_of_type(value, _type_info(kind), place)


# looked at once for each layer of a network
_type_info = cache(msgspec.inspect.type_info)


def _faults_of_type(value: object, kind: msgspec.inspect.Type, place: str) -> Iterator[FieldFault]:
    if isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _faults_of_type(value, one, place)
    elif isinstance(kind, msgspec.inspect.ListType) and isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _faults_of_type(inner, kind.item_type, f"{place}[{number}]")
    elif isinstance(kind, msgspec.inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field for field in kind.fields}
        missing = tuple(name for name, f in fields.items() if f.required and name not in value)
        unknown = tuple(name for name in value if name not in fields)
        if missing or unknown:
            yield FieldFault(place=place, missing=missing, unknown=unknown, known=tuple(fields))
        for name, field in fields.items():
            inner_place = f"{place}.{name}" if place else name
            yield from _faults_of_type(value.get(name), field.type, inner_place)


def refuse_faults(where: str, faults: Iterable[FieldFault]) -> None:
    """Refuse a file for all of its missing and unknown fields at once.

    Parameters
    ----------
    where
        What error messages call the file; empty where the places say it.
    faults
        What is wrong with its fields.

    Raises
    ------
    InputError
        When there are any.
    """
    found = list(faults)
    if not found:
        return
    if len(found) == 1:
        (one,) = found
        at = ": ".join(text for text in (where, one.place) if text)
        if one.unknown:
            advice = f"use one of {closest(one.unknown[0], one.known)}"
        else:
            advice = "add it" if len(one.missing) == 1 else "add them"
        raise InputError(f"{at} {one}; {advice}")
    text = "; ".join(f"{one.place or 'the file'} {one}" for one in found)
    raise InputError(f"{where}{': ' if where else ''}{text}; correct them")
