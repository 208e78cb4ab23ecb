"""How operations come to a device, as what it changes of a runtime: `data/executions.toml`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.simulation.runtime_files import build_runtime
from costmodels.simulation.runtimes import Runtime
from costmodels.units.tables import parse_toml

_FILE = "executions.toml"


@cache
def _execution_changes() -> dict[str, dict[str, Any]]:
    """Fields of a runtime that each way to execute changes, by its name."""
    path = resources.files("costmodels.simulation") / "data" / _FILE
    changes = {}
    for name, row in parse_toml(path.read_text(encoding="utf-8"), _FILE).items():
        assert isinstance(row, dict), "each is a table"
        changed = build_runtime(name, row, f"{_FILE}: {name}")
        changes[name] = {
            key: getattr(changed, key) for key in row if key not in ("title", "source")
        }
    return changes


def executed(runtime: Runtime, execution: str) -> Runtime:
    """A runtime whose operations come to the devices in another way than usual for it.

    Raises
    ------
    InputError
        When there is no such way.
    """
    known = _execution_changes()
    if execution not in known:
        raise InputError.rule(
            "the execution", f"be one of {', '.join(known)}", f"'{execution}'", "choose one"
        )
    return replace(runtime, **known[execution])
