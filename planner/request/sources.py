"""What a path stands for: a plan, a strategy or a network. A file is opened and read once.

JSON files hold plans or networks, TOML files hold strategies or networks; what they say tells them
apart. Anything else is a name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from costmodels.errors import InputError
from costmodels.graph import Network
from planner.models import network_of, parse_network, resized
from planner.plan import Plan
from planner.request.strategy_tables import FORMAT, StrategyFile, strategy_file_of


class _Heading(msgspec.Struct):
    """The fields of a JSON file that tell networks from plans."""

    format: Any = msgspec.UNSET
    name: Any = msgspec.UNSET


def read_source(
    source: str | os.PathLike[str], input_size: int | None = None, *, networks: bool = True
) -> Plan | StrategyFile | Network | None:
    """What a path stands for, or None for a name.

    Parameters
    ----------
    source
        The path, or a name.
    input_size
        Extent of every spatial axis of a network, or of the sequence; its own by default. [items]
    networks
        Whether networks are wanted, else they are left unread.

    Raises
    ------
    InputError
        When the file is missing or wrong.
    """
    path = os.fspath(source)
    if path.endswith(".json"):
        return _read_json(path, input_size, networks)
    if path.endswith(".toml"):
        return _read_toml(path, input_size, networks)
    return None


def _read_json(path: str, input_size: int | None, networks: bool) -> Plan | Network | None:
    try:
        data = Path(path).read_bytes()
    except OSError:
        return Plan.load(path)  # says why it cannot be read
    try:
        heading = msgspec.json.decode(data, type=_Heading)
        is_network = heading.format is msgspec.UNSET and heading.name is not msgspec.UNSET
        text = data.decode("utf-8") if is_network else ""
    except (ValueError, RecursionError):
        is_network = False  # reading it as a plan says what is wrong
    if not is_network:
        return Plan.from_json(data, where=path)
    if not networks:
        return None
    network = parse_network(text, suffix=".json", where=f"the network file {path}")
    return resized(network, input_size)


def _read_toml(path: str, input_size: int | None, networks: bool) -> StrategyFile | Network | None:
    text, tables = _tables(path)
    if tables.get("format") == FORMAT:
        try:
            return strategy_file_of(tables, text)
        except InputError as error:
            raise InputError(f"the strategy file {path}: {error}") from None
    if not networks:
        return None
    return resized(network_of(tables, where=f"the network file {path}"), input_size)


def _tables(path: str) -> tuple[str, Mapping[str, object]]:
    """The text of a TOML file, and its tables."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # no UTF-8, no TOML, or numbers of thousands of digits
        reason = str(error)
    raise InputError(f"the file {path} cannot be read ({reason}); correct it")
