"""What a path stands for: a plan, a strategy or a network. A file is opened and read once.

JSON files hold plans or networks, TOML files hold strategies or networks; what they say tells them
apart. Anything else is a name.
"""

from __future__ import annotations

import os

from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.units.tables import parse_toml, read_text
from planner.models import is_config, network_of_tables
from planner.plan import Plan
from planner.plan.plan import read_plan_file
from planner.request.strategy_tables import FORMAT, StrategyFile, strategy_file_of


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


def named_in(path: str) -> tuple[str, ...]:
    """Paths and names that the file of a strategy refers to; none where it is no such file."""
    try:
        found = read_source(path, networks=False) if path.endswith(".toml") else None
    except InputError:
        return ()  # said where it is used
    if not isinstance(found, StrategyFile):
        return ()
    return tuple(name for name in (found.model, found.cluster) if name is not None)


def file_of_another_kind(path: str) -> str | None:
    """What a file is that is no network, None where it is none of what the planner reads."""
    try:
        found = read_source(path, networks=False)
    except InputError:
        return None
    if isinstance(found, Plan):
        return f"a plan, for {found.model}"
    return "a strategy file" if isinstance(found, StrategyFile) else None


def _read_json(path: str, input_size: int | None, networks: bool) -> Plan | Network | None:
    document = read_plan_file(path)
    if is_config(document):
        return network_of_tables(document, path, input_size) if networks else None
    if not isinstance(document, dict):
        raise InputError.rule(
            path, "be a plan, a network or a model's config", "none of them", "give another file"
        )
    if "format" in document or "name" not in document:
        return Plan.of_document(document, where=path)
    if not networks:
        return None
    return network_of_tables(document, path, input_size)


def _read_toml(path: str, input_size: int | None, networks: bool) -> StrategyFile | Network | None:
    text = read_text(path, f"the file {path}")
    tables = parse_toml(text, f"the file {path}")
    if tables.get("format") == FORMAT:
        try:
            return strategy_file_of(tables, text)
        except InputError as error:
            raise InputError(f"the strategy file {path}: {error}") from None
    if not networks:
        return None
    return network_of_tables(tables, path, input_size)
