"""Framework runtimes as data: what is reduced, in which pieces, when, and what is cut.

The compiler reads these fields; no runtime has code of its own. A new runtime is a table in
`data/runtimes.toml`, or a file with one such table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib import resources
from typing import Any

import msgspec

from costmodels.errors import InputError, require_between
from costmodels.strategy import MemoryConfig
from costmodels.units import parse_bandwidth, parse_bytes, parse_seconds
from costmodels.units.tables import FieldFault, parse_toml, read_text, refuse_faults

# Smaller pieces would make millions of messages. [B]
_SMALLEST = 65536
GRADIENTS = ("all_reduce", "reduce_scatter", "push_pull")


# What figures can be: the least, the most, the unit.
_RANGES = {
    "bucket": (1.0, 1e18, "B"),
    "first_bucket": (1.0, 1e18, "B"),
    "fusion": (1.0, 1e18, "B"),
    "cycle": (0.0, 60.0, "s"),
    "negotiation_base": (0.0, 60.0, "s"),
    "negotiation_per_rank": (0.0, 60.0, "s"),
    "launch_time": (0.0, 1.0, "s"),
    "outside_layers": (0.0, 60.0, "s"),
    "activation_copies": (0.0, 100.0, ""),
    "activation_waits": (0.0, 100.0, ""),
    "server_rate": (1e3, 1e18, "B/s"),
    "stack_bandwidth": (1e3, 1e18, "B/s"),
    "cpu_bandwidth": (1e3, 1e18, "B/s"),
    "servers": (0, 2**20, ""),
    "devices_per_cpu_link": (1, 2**20, ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How a framework runs a step.

    Parameters
    ----------
    name, title, source
        Its names, and where the figures come from.
    gradient
        What happens to gradients of the same weight: "all_reduce", "reduce_scatter", or
        "push_pull" to and from parameter servers.
    bucket, first_bucket
        Gradients travel together in buckets of about that size, the first one smaller; None for
        one bucket a unit of layers. [B]
    tunable
        Whether buckets have the size that a plan was tuned to, where there is a plan.
    fusion, cycle
        Buckets are formed while the step runs instead, of what is ready, once a cycle. [B], [s]
    negotiation_base, negotiation_per_rank
        Time to agree on what is ready, and what each rank adds to it. [s]
    shard
        What is cut over the ranks that hold the same weight: "state", "gradients", "weights".
    each_micro_batch
        Whether gradients are reduced after every micro-batch, instead of after the last.
    prefetch
        Units of layers whose weights are gathered ahead of their computation. [items]
    overlap
        Whether gradients are reduced while the backward pass goes on.
    synchronous
        Whether all workers take a step together.
    crosses_steps
        Whether the next forward pass begins as the weights of its layers come from the servers,
        instead of when all have come.
    local_reduce
        Whether the devices of a host add up their gradients before one of them pushes.
    servers
        Parameter servers on hosts of their own; 0 where the workers' hosts serve. [items]
    server_rate
        Gradients that a parameter server adds up in a second. [B/s]
    stack_bandwidth
        What the process that talks to parameter servers sends and receives together. [B/s]
    cpu_bandwidth, devices_per_cpu_link
        Bandwidth of a link between devices and their host's memory, and how many share it. [B/s]
    low_precision_gradients
        Whether gradients travel in the precision of activations, instead of that of weights.
    outside_layers
        What a step spends outside of layers, one after the other with them: input handed over,
        metrics, waiting for the host. [s]
    activation_copies, activation_waits
        Around each collective of activations and of their gradients: how often the framework reads
        and writes the tensor in device memory (pieces joined, sums made), and how often its host
        waits for the device, which then waits for the next launch. [items]
    launch_time
        Time in which the host launches an operation; None for that of `Training`. [s]
    winograd, always_cut, cuts_backward, corner_overlap, halo_overlap, memory_model
        As of `costmodels.step.Training`, where the framework decides it; None where it does not.
    """

    name: str
    title: str = ""
    source: str = ""
    gradient: str = "all_reduce"
    bucket: float | None = None
    first_bucket: float | None = None
    tunable: bool = False
    fusion: float | None = None
    cycle: float = 0.0
    negotiation_base: float = 0.0
    negotiation_per_rank: float = 0.0
    shard: tuple[str, ...] = ()
    each_micro_batch: bool = False
    prefetch: int = 0
    overlap: bool = True
    synchronous: bool = True
    crosses_steps: bool = False
    local_reduce: bool = False
    servers: int = 0
    server_rate: float = float("inf")
    stack_bandwidth: float = float("inf")
    cpu_bandwidth: float = 12e9
    devices_per_cpu_link: int = 2
    low_precision_gradients: bool = False
    outside_layers: float = 0.0
    activation_copies: float = 0.0
    activation_waits: float = 0.0
    launch_time: float | None = None
    winograd: bool | None = None
    halo_overlap: bool | None = None
    always_cut: bool | None = None
    cuts_backward: bool | None = None
    corner_overlap: bool | None = None
    memory_model: str | None = None

    def __post_init__(self) -> None:
        for field, (least, most, unit) in _RANGES.items():
            value = getattr(self, field)
            # rates are infinite where they set no limit
            unlimited = unit == "B/s" and value == float("inf")
            if value is not None and not unlimited:
                what = f"runtime {self.name}: {field}"
                require_between(what, value, (least, most), "correct it", unit=unit)
        if self.gradient not in GRADIENTS:
            raise InputError.rule(
                f"runtime {self.name}: gradient",
                f"be one of {', '.join(GRADIENTS)}",
                f"'{self.gradient}'",
                "choose one",
            )

        if self.crosses_steps and self.gradient != "push_pull":
            raise InputError(
                f"runtime {self.name}: steps can only cross with gradient 'push_pull' but it is "
                f"'{self.gradient}'; leave crosses_steps out"
            )
        if self.gradient == "push_pull" and self.bucket is not None and self.bucket < _SMALLEST:
            raise InputError(
                f"runtime {self.name}: pieces for parameter servers must be at least "
                f"{_SMALLEST} bytes but bucket is {self.bucket:g}; raise it"
            )

    @property
    def memory(self) -> MemoryConfig:
        """What it cuts of every layer."""
        return MemoryConfig(
            weights="weights" in self.shard,
            gradients="gradients" in self.shard,
            state="state" in self.shard,
        )

    @property
    def decided(self) -> dict[str, object]:
        """What it decides of a step's `Training`, by the names there."""
        values = {name: getattr(self, name) for name in _DECIDED}
        return {name: value for name, value in values.items() if value is not None}

    def negotiation(self, ranks: int) -> float:
        """Time to agree on what is ready. [s]"""
        return self.negotiation_base + self.negotiation_per_rank * ranks


# Fields of `Training` that a framework may decide.
_DECIDED = (
    "launch_time",
    "winograd",
    "halo_overlap",
    "always_cut",
    "cuts_backward",
    "corner_overlap",
    "memory_model",
)

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
}


@cache
def built_in_runtimes() -> dict[str, Runtime]:
    """All runtimes by name."""
    path = resources.files("costmodels.simulation") / "data" / "runtimes.toml"
    return _parse_runtimes(path.read_text(encoding="utf-8"), "runtimes.toml")


def _parse_runtimes(text: str, file: str) -> dict[str, Runtime]:
    """Runtimes from the tables of a file; quantities carry their units and are converted here."""
    rows = parse_toml(text, file)
    names = tuple(item.name for item in fields(Runtime) if item.name != "name")
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
    return {name: _build_runtime(name, row, f"{file}: {name}") for name, row in tables.items()}


def _build_runtime(name: str, row: Mapping[str, Any], label: str) -> Runtime:
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
            f"be one of {', '.join(known)}",
            f"'{name}'",
            "choose one",
        )
    names = {item.name for item in fields(Runtime)}
    for key in changes:
        if key not in names:
            raise InputError(
                f"a runtime has the figures {', '.join(sorted(names))} but not '{key}'; correct it"
            )
    values: dict[str, Any] = dict(changes)
    return replace(known[name], **values)
