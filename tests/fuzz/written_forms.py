"""Nested data as JSON or TOML text, right or not: numbers that no float holds, keys given twice.

The writers of the standard library refuse what a fuzzer wants to say, and TOML has none at all.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True)
class Raw:
    """A value that is put into the text as it stands.

    Parameters
    ----------
    json, toml
        What is written in either form.
    """

    json: str
    toml: str


@dataclass(frozen=True)
class Table:
    """A file of a nested kind.

    Parameters
    ----------
    tree
        Its content.
    form
        "json" or "toml".
    """

    tree: Any
    form: str

    def text(self) -> str:
        """The content in its form."""
        return json_text(self.tree) if self.form == "json" else toml_text(self.tree)

    def data(self) -> bytes:
        """The same as bytes."""
        return self.text().encode("utf-8")


def json_text(value: Any, indent: str = "") -> str:
    """Nested data as JSON; what is no data is written as it stands."""
    if isinstance(value, Raw):
        return value.json
    deeper = indent + " "
    if isinstance(value, dict) and value:
        rows = [f"{deeper}{_quoted(str(k))}: {json_text(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list):
        return "[" + ", ".join(json_text(item, deeper) for item in value) + "]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def toml_text(tree: Any) -> str:
    """A mapping as TOML, with a header for each table and for each row of an array of tables."""
    if not isinstance(tree, dict):
        return f"value = {_inline(tree)}\n"
    plain = {k: v for k, v in tree.items() if not _is_table(v) and not _is_rows(v)}
    lines = [f"{_key(k)} = {_inline(v)}" for k, v in plain.items()]
    for key, value in tree.items():
        if key in plain:
            continue
        header = f"[[{_key(key)}]]" if _is_rows(value) else f"[{_key(key)}]"
        for row in value if _is_rows(value) else [value]:
            lines += ["", header, *(f"{_key(k)} = {_inline(v)}" for k, v in row.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_table(row) for row in value)


def _key(key: Any) -> str:
    return str(key) if _BARE.fullmatch(str(key)) else _quoted(str(key))


def _quoted(text: str) -> str:
    # JSON's escapes are all valid in TOML, but for half a surrogate pair, which neither can say
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(value: Any) -> str:
    if isinstance(value, Raw):
        return value.toml
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return '""'
    return _quoted(value) if isinstance(value, str) else repr(value)
