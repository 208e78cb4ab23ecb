"""Runtimes from files: the built-in ones, `data/runtimes.toml`, and a file of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import resources
from typing import Any

import msgspec
from msgspec.structs import replace

from costmodels.errors import InputError, closest
from costmodels.simulation.runtimes import Runtime
from costmodels.units import parse_bandwidth, parse_bytes, parse_seconds
from costmodels.units.tables import FieldFault, parse_toml, read_text, refuse_faults

_PARSE: Mapping[str, Callable[..., float]] = {
    "launch_time": partial(parse_seconds, allow_zero=True),
    "outside_layers": parse_seconds,
    "bucket": parse_bytes,
    "first_bucket": parse_bytes,
    "fusion": parse_bytes,
    "cycle": parse_seconds,
    "negotiation_base": parse_seconds,
    "negotiation_per_rank": parse_seconds,
    "server_rate": parse_bandwidth,
    "stack_bandwidth": parse_bandwidth,
    "cpu_bandwidth": parse_bandwidth,
    "check_near": parse_seconds,
    "check_far": parse_seconds,
    "communicator": parse_bytes,
    "communicator_of_two": parse_bytes,
    "switch_buffer": parse_bytes,
    "switch_tree": parse_bytes,
    "logit_kept": parse_bytes,
    "logit_scratch": parse_bytes,
}


@cache
def built_in_runtimes() -> dict[str, Runtime]:
    """All runtimes by name."""
    path = resources.files("costmodels.simulation") / "data" / "runtimes.toml"
    return _parse_runtimes(path.read_text(encoding="utf-8"), "runtimes.toml")


def _parse_runtimes(text: str, file: str) -> dict[str, Runtime]:
    """Runtimes from the tables of a file; quantities carry their units and are converted here."""
    rows = parse_toml(text, file)
    names = tuple(name for name in Runtime.__struct_fields__ if name != "name")
    tables: dict[str, Mapping[str, Any]] = {}
    for name, row in rows.items():
        if not isinstance(row, dict):
            raise InputError(
                f"{file} must hold tables, one a runtime, but has the value '{name}'; put it "
                "below the name of a runtime, such as [mine]"
            )
        tables[name] = row
    unknown = {name: tuple(k for k in row if k not in names) for name, row in tables.items()}
    refuse_faults(
        file,
        (
            FieldFault(place=f"runtime {name}", missing=(), unknown=keys, known=names)
            for name, keys in unknown.items()
            if keys
        ),
    )
    return {name: build_runtime(name, row, f"{file}: {name}") for name, row in tables.items()}


def build_runtime(name: str, row: Mapping[str, object], label: str) -> Runtime:
    """A runtime from a table.

    Parameters
    ----------
    name
        What it is called.
    row
        Its fields; quantities are text with units.
    label
        What errors call the table.
    """
    values: dict[str, Any] = {"name": name}
    for key, value in row.items():
        if key in _PARSE and not isinstance(value, str):
            raise InputError.rule(
                f"{label}.{key}",
                "be text, a quantity with its unit",
                value,
                'write it like "25 MiB"',
            )
        values[key] = _PARSE[key](value, what=f"{label}.{key}") if key in _PARSE else value
    try:
        return msgspec.convert(values, Runtime)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        reason = str(error).replace("`", "'").replace(" - at '$.", " in '")
        raise InputError(f"{label}: {reason[0].lower()}{reason[1:]}; correct it") from None


def _read_runtime(path: str) -> Runtime:
    """The one runtime of a user's own file."""
    text = read_text(path, f"the runtime file {path}")
    found = _parse_runtimes(text, f"the runtime file {path}")
    if len(found) != 1:
        raise InputError(
            f"the runtime file {path} must hold one runtime but holds {len(found)}; give each a "
            "file of its own"
        )
    return next(iter(found.values()))


def load_runtime(name: str, **changes: object) -> Runtime:
    """A runtime, with other figures where they are given.

    Parameters
    ----------
    name
        A built-in runtime, or a TOML file with the table of one.
    changes
        Fields of `Runtime` to replace.

    Raises
    ------
    InputError
        When there is none of that name, the file is wrong, or there is no such figure.
    """
    known = built_in_runtimes()
    if name.endswith(".toml"):
        known = {name: _read_runtime(name)}
    if name not in known:
        raise InputError.rule(
            "the runtime",
            f"be one of {closest(name, list(known))}",
            f"'{name}'",
            "choose one",
        )
    names = set(Runtime.__struct_fields__)
    for key in changes:
        if key not in names:
            raise InputError(
                f"a runtime has the figures {', '.join(sorted(names))} but not '{key}'; correct it"
            )
    values: dict[str, Any] = dict(changes)
    return replace(known[name], **values)
