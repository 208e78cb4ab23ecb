"""The usual strategies of transformers by name: `megatron:tp=4,dp=4`, `fsdp`, `zero1` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from costmodels.errors import InputError
from planner.errors import ConflictError
from planner.request.parts import Degrees
from planner.request.request import Request

# What a name says by itself; all else of `Degrees` may follow after a colon.
NAMED: Mapping[str, Degrees] = {
    "megatron": Degrees(),
    "zero1": Degrees(zero=1),
    "zero2": Degrees(zero=2),
    "zero3": Degrees(zero=3),
    "fsdp": Degrees(fsdp=True),
}
# Runtimes that go with a name, unless another one is asked for.
OWN_RUNTIMES = ("fsdp", "zero1", "zero2", "zero3")
_YES = {"yes": True, "true": True, "no": False, "false": False}


def named_degrees(text: str) -> Degrees | None:
    """The degrees that the name of a strategy stands for, None where it is another name.

    Raises
    ------
    InputError
        When what follows the name is no degrees.
    """
    name, _, rest = text.partition(":")
    known = NAMED.get(name)
    if known is None:
        return None
    # lists have commas of their own, and are said in options
    types = {one.name for one in fields(Degrees)} - {"offload", "axes", "stage_blocks"}
    given: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        field, equals, value = (piece.strip() for piece in part.partition("="))
        field = field.replace("-", "_")
        if field not in types or field in given or (equals and not value):
            raise InputError.rule(
                f"the strategy {name}",
                f"have degrees like tp=4,dp=4, each of {', '.join(sorted(types))} once",
                f"'{part}'",
                "correct it",
            )
        given[field] = _value(field, value if equals else "yes")
    return replace(known, **given)  # type: ignore[arg-type]  # checked by Degrees


def _value(field: str, text: str) -> object:
    """A value of the kind that a field takes."""
    if text in _YES and field in ("sequence_parallel", "uneven_heads", "fsdp", "recompute"):
        return _YES[text]
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    if field in ("schedule", "recompute", "cp_kind"):
        return text
    raise InputError.rule(f"{field} of a strategy", "be a whole number", f"'{text}'", "correct it")


def usual_runtime(strategy: str, degrees: Degrees) -> str | None:
    """The runtime that goes with a strategy, None where it is the usual one.

    Parameters
    ----------
    strategy, degrees
        The name of the strategy, with or without what follows it, and what it stands for.
    """
    name = strategy.partition(":")[0]
    if name in OWN_RUNTIMES:
        return name
    return "fsdp" if degrees.fsdp else None


def with_named_degrees(request: Request) -> Request:
    """A request whose strategy is said by degrees where a name stands for them.

    The runtime is that of fully sharded data parallelism where that is asked for, and no other is.

    Raises
    ------
    InputError
        When the name is followed by no degrees, or degrees are given besides.
    """
    strategy, degrees, runtime = request.strategy, request.degrees, request.runtime
    found = named_degrees(strategy) if isinstance(strategy, str) else None
    if found is not None:
        if degrees is not None and degrees.asked_for:
            raise ConflictError(
                "give either a strategy or degrees of data, tensor and pipeline parallelism, not "
                "both"
            )
        # by themselves they are data parallelism
        degrees = found
    if degrees is not None and runtime is None and request.servers is None:
        runtime = usual_runtime(str(strategy), degrees)
    strategy = strategy if found is None else None
    return replace(request, strategy=strategy, degrees=degrees, runtime=runtime)
