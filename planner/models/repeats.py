"""Repeated blocks of a network file: a row with `repeat` stands for its layers, several times.

The layers of the block `h` become `h.0.NAME`, `h.1.NAME` and so on. Inside a block, `input` is what
the block reads: for the first time what `inputs` of the block names, else the layer before it, and
then the last layer of the time before. A name means a layer of the same block first. Outside, the
name of a block stands for the last layer of its last time. Blocks may hold blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from costmodels.errors import InputError, require_name

Row = Mapping[str, Any]

# More than the largest networks have, and few enough to look at each. [items]
MOST_LAYERS = 2**16


class Block(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a block; those of its layers depend on their kinds."""

    name: str
    repeat: int
    layer: list[dict[str, Any]]
    inputs: list[str] | msgspec.UnsetType = msgspec.UNSET


def is_block(row: Row) -> bool:
    """Whether a row of a network file is a block of layers."""
    return "repeat" in row or "layer" in row


def written_out(rows: Sequence[Row], where: str) -> list[Row]:
    """All layers that rows stand for, each with what it reads.

    Parameters
    ----------
    rows
        Layers and blocks, whose fields are checked.
    where
        What error messages call the file.

    Raises
    ------
    InputError
        When a block has no layers, more than one input, a name twice, or is repeated too often.
    """
    count = _count(rows, where)
    if count > MOST_LAYERS and any(map(is_block, rows)):
        raise InputError(
            f"{where}: a network with repeated blocks must have at most {MOST_LAYERS:,} layers but "
            f"has {count:,}; lower 'repeat'"
        )
    return _written_out(rows, "", {}, "input", where)[0]


def _count(rows: Sequence[Row], where: str) -> int:
    """How many layers rows stand for. [items]"""
    total = 0
    for row in rows:
        if not is_block(row):
            total += 1
            continue
        label, repeat = f"{where}: block '{row['name']}'", row["repeat"]
        if not 1 <= repeat <= MOST_LAYERS:
            rule = f"be from 1 to {MOST_LAYERS:,}"
            raise InputError.rule(f"{label}: repeat", rule, repeat, "correct it")
        if not row["layer"]:
            raise InputError(f"{label} must have layers but has none; add one")
        if len(row.get("inputs", ["input"])) != 1:
            raise InputError(
                f"{label} must read one layer but reads {len(row['inputs'])}; name one in 'inputs'"
            )
        total += repeat * _count(row["layer"], where)
    return total


def _written_out(
    rows: Sequence[Row], prefix: str, outside: Mapping[str, str], entry: str, where: str
) -> tuple[list[Row], str]:
    """The layers of some rows, and the name of the last one.

    Parameters
    ----------
    rows
        Layers and blocks.
    prefix
        What the names of the layers begin with.
    outside
        Full names of the layers around the block, by the names that are used there.
    entry
        Full name of what the rows read as `input`.
    where
        What error messages call the file.
    """
    own: dict[str, str] = {}
    for row in rows:
        name = row.get("name")
        if not isinstance(name, str):
            continue  # refused as a wrong type
        require_name(f"{where}: the name of a layer", name)
        if name in own or name == "input":
            raise InputError(
                f"{where}: layer names must be unique and not 'input' but '{name}' is taken; "
                "rename the layer"
            )
        own[name] = prefix + _last(row)
    names = {**outside, **own, "input": entry}
    found: list[Row] = []
    before = entry
    for row in rows:
        reads = _renamed(row.get("inputs", [before]), names if "inputs" in row else {})
        if is_block(row):
            (before,) = reads
            for number in range(row["repeat"]):
                inside = f"{prefix}{row['name']}.{number}."
                layers, before = _written_out(row["layer"], inside, names, before, where)
                found += layers
            continue
        owner = row.get("share")
        share = {"share": names.get(owner, owner)} if isinstance(owner, str) else {}
        name = row["name"]
        before = prefix + name if isinstance(name, str) else before
        full = {"name": before} if isinstance(name, str) else {}
        found.append({**row, **share, **full, "inputs": reads})
    return found, before


def _last(row: Row) -> str:
    """The name of a layer, or of the last layer of a block, in the block around it."""
    name = str(row["name"])
    return f"{name}.{row['repeat'] - 1}.{_last(row['layer'][-1])}" if is_block(row) else name


def _renamed(inputs: Any, names: Mapping[str, str]) -> Any:
    """Full names of what a layer reads; what is no list of names is refused later."""
    if not isinstance(inputs, list):
        return inputs
    return [names.get(name, name) if isinstance(name, str) else name for name in inputs]
