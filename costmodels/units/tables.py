"""Files of users: texts, TOML and JSON are read here, and every failure is one sentence.

Names and sentences of a file are shown on terminals and pages, so they lose their control
characters here. Assumes that no file is large or nested deeply: what is would only hold a reader
up.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from typing import Any

from costmodels.errors import InputError, printable

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
        When it is no JSON, nested too deeply, or holds numbers of more than 64 bits.
    """
    return _parsed(lambda: json.loads(text, parse_constant=_refuse), "JSON", what, advice)


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


def _cleaned(value: Any, depth: int) -> Any:
    """A value whose texts have no control characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
        raise ValueError("a whole number takes more than 64 bits")
    if isinstance(value, dict | list) and depth == 0:
        raise RecursionError
    if isinstance(value, dict):
        return {printable(key): _cleaned(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cleaned(inner, depth - 1) for inner in value]
    return value
