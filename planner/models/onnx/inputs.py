"""The shapes of the inputs of an ONNX graph: those that it says, completed by what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from costmodels.errors import InputError
from planner.models.onnx.files import clean
from planner.models.traced.shapes import parse_shape

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

# Samples where the graph leaves their number open; a network is the same for any. [items]
SAMPLES = 2
_ADVICE = "give --input 8,3,224,224, or input_ids=8,128"


def input_shapes(
    graph: GraphProto, inputs: object, name: str
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """The shape of every input, and what the extents are that the graph only names.

    Parameters
    ----------
    graph
        The graph.
    inputs
        Shapes that were given, in order or by name; none for those of the graph.
    name
        What error messages call it.

    Raises
    ------
    InputError
        When an input is no tensor, has an extent that is not known, or was given another one.
    """
    weights = {one.name for one in graph.initializer}
    rows = [one for one in graph.input if one.name not in weights]
    given = _given_shapes(inputs, [one.name for one in rows])
    symbols: dict[str, int] = {}
    for one in rows:
        for extent, wanted in zip(_dims(one, name), given.get(one.name, ()), strict=False):
            if isinstance(extent, str) and extent:
                symbols.setdefault(extent, wanted)
    found = {one.name: _shape_of_input(one, given.get(one.name), symbols, name) for one in rows}
    batches = {shape[0] if shape else 0 for shape in found.values()}
    if len(batches) != 1 or 0 in batches:
        shapes = ", ".join(f"{clean(one)} {list(shape)}" for one, shape in found.items()) or "none"
        raise InputError(
            f"{name}: the first extent of all inputs must be the samples but inputs are {shapes}; "
            "correct them"
        )
    return found, symbols


def _dims(value: ValueInfoProto, name: str) -> list[int | str]:
    """Extents of an input: a number, a name, or nothing where neither is known."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        raise InputError(
            f"{name}: the input {clean(value.name)} must be a tensor of known rank but is none; "
            "export it again"
        )
    dims = value.type.tensor_type.shape.dim
    return [one.dim_value if one.HasField("dim_value") else one.dim_param for one in dims]


def _shape_of_input(
    value: ValueInfoProto, given: Sequence[int] | None, symbols: dict[str, int], name: str
) -> tuple[int, ...]:
    """The shape of one input.

    Parameters
    ----------
    value, given
        The input, and the shape that was asked for.
    symbols
        Extents that are known by name.
    name
        What error messages call the graph.
    """
    dims = _dims(value, name)
    called = f"the input {clean(value.name)} of {name}"
    written = [one if isinstance(one, int) else clean(one) or "?" for one in dims]
    if given is not None and len(given) != len(dims):
        raise InputError.rule(
            called, f"have {len(dims)} extents {written}", list(given), "correct --input"
        )
    found: list[int] = []
    for place, extent in enumerate(dims):
        wanted = given[place] if given is not None else None
        if isinstance(extent, int):
            if wanted not in (None, extent):
                raise InputError.rule(
                    called, f"be {written} as the file says", list(given or ()), "correct --input"
                )
            found.append(extent)
            continue
        known = wanted or symbols.get(extent) or (SAMPLES if place == 0 else None)
        if known is None:
            raise InputError.rule(
                called, "have known extents", written, _shape_advice(value.name, dims)
            )
        if extent and symbols.setdefault(extent, known) != known:
            raise InputError.rule(
                called, f"have {symbols[extent]} as {clean(extent)}", known, "correct --input"
            )
        found.append(known)
    if any(extent < 1 for extent in found):
        advice = "export it again" if given is None else "correct --input"
        raise InputError.rule(called, "have extents of at least 1", found, advice)
    return tuple(found)


def _shape_advice(name: str, dims: Sequence[int | str]) -> str:
    """What to give for an input with open extents: as many numbers as it has.

    Parameters
    ----------
    name, dims
        The input, and its extents: a number, or text where it is open.
    """
    usual = 224 if len(dims) > 3 else 128
    rest = (usual if isinstance(extent, str) else extent for extent in dims[1:])
    samples = 8 if isinstance(dims[0], str) else dims[0]
    shape = ",".join(map(str, (samples, *rest)))
    by_name = name.isascii() and name.isidentifier()
    return f"give --input {name}={shape}" if by_name else f"give --input {shape}"


def _given_shapes(inputs: object, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes that were asked for, by the names of the inputs."""
    found: dict[str, tuple[int, ...]] = {}
    rest = list(names)
    for name, shape in _shape_rows(inputs):
        called = name or (rest[0] if rest else "")
        if called not in rest:
            known = ", ".join(map(clean, names)) or "none"
            raise InputError.rule(
                "an input (--input)",
                f"be one of those of the model ({known}), each once",
                f"'{called}'" if called else "one more",
                "correct it",
            )
        rest.remove(called)
        found[called] = shape
    return found


def _shape_rows(inputs: object, name: str = "") -> list[tuple[str, tuple[int, ...]]]:
    if inputs is None:
        return []
    if isinstance(inputs, str):
        called, extents, _ = parse_shape(inputs)
        return [(called or name, extents)]
    if isinstance(inputs, Mapping):
        return [row for one, each in inputs.items() for row in _shape_rows(each, str(one))]
    shape = getattr(inputs, "shape", inputs)
    if isinstance(shape, Sequence):
        if shape and all(isinstance(n, int) and not isinstance(n, bool) for n in shape):
            return [(name, tuple(int(n) for n in shape))]
        return [row for one in shape for row in _shape_rows(one, name)]
    raise InputError.rule(
        "an input of an ONNX file", "be a shape", f"a {type(inputs).__name__}", _ADVICE
    )
