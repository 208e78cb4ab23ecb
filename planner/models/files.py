"""Networks in TOML and JSON files, as `docs/network-files.md` describes them.

The fields of a layer are those of its kind in `costmodels.graph.kinds`: their names, types and
defaults are read from there, so that a file can say whatever a built-in network can.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from costmodels.errors import InputError, closest
from costmodels.graph import LayerSpec, Network, build_graph
from costmodels.graph.kinds import KINDS
from costmodels.units.tables import (
    FieldFault,
    field_faults,
    parse_json,
    parse_toml,
    read_text,
    refuse_faults,
)
from planner.models.configs import config_network, is_config
from planner.models.registry import BUILT_IN, build
from planner.models.repeats import Block, is_block, written_out

RESIZED_AXES = ("depth", "height", "width", "sequence")
SUFFIXES = (".toml", ".json")
_S = TypeVar("_S", bound=msgspec.Struct)


class _NetworkFile(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a network file; those of a layer depend on its kind."""

    name: str
    input: dict[str, int]
    layer: list[dict[str, Any]]
    source: str = ""
    notes: str = ""


@cache
def _layer_type(kind: str) -> type[msgspec.Struct]:
    """The fields of a layer of one kind; options that are not given stay unset."""
    function = KINDS[kind]
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("name", str), ("kind", str)]
    fields += [(p.name, hints[p.name]) for p in options if p.default is p.empty]
    optional = {"inputs": list[str], "frozen": bool | int}
    optional |= {p.name: hints[p.name] for p in options if p.default is not p.empty}
    fields += [(o, hint | msgspec.UnsetType, msgspec.UNSET) for o, hint in optional.items()]
    return msgspec.defstruct(kind, fields, forbid_unknown_fields=True)


def validation_reason(error: msgspec.ValidationError, expected: type[msgspec.Struct]) -> str:
    """What msgspec found wrong, without its path syntax, and what there is to choose from."""
    reason = str(error).replace("`", "'").replace(" - at '$.", " in '").replace(" - at '$'", "")
    value = re.search(r"enum value '(.*)' in '(\w+)'", reason)
    if value:
        parts = get_args(get_type_hints(expected)[value[2]])
        choices = [choice for part in parts for choice in get_args(part) if isinstance(choice, str)]
        return f"has the unknown {value[2]} '{value[1]}'; use one of {closest(value[1], choices)}"
    return f"has a value of the wrong type: {reason[0].lower()}{reason[1:]}; correct it"


def _label(row: Mapping[str, Any], number: int) -> str:
    """What error messages call a row."""
    name = row.get("name")
    if is_block(row):
        return f"block '{name}'" if isinstance(name, str) else f"block number {number}"
    label = f"layer '{name}'" if isinstance(name, str) else f"layer number {number}"
    return f"{label} of kind '{row['kind']}'" if isinstance(row.get("kind"), str) else label


def _row_faults(rows: Sequence[object], where: str) -> Iterator[FieldFault]:
    """Fields that are missing or unknown, in all layers and blocks."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            continue  # refused as a wrong type
        label, kind = _label(row, number), row.get("kind")
        if is_block(row):
            yield from field_faults(row, Block, label)
            inside = row.get("layer")
            yield from _row_faults(inside if isinstance(inside, list) else (), where)
        elif "kind" not in row:
            yield FieldFault(place=label, missing=("kind",), unknown=(), known=())
        elif not isinstance(kind, str) or kind not in KINDS:
            known = closest(kind if isinstance(kind, str) else "", list(KINDS))
            what = f"'{kind}'" if isinstance(kind, str) else f"{kind!r}, which is no string"
            label = label.split(" of kind ")[0]
            raise InputError(f"{where}: {label} has the unknown kind {what}; use one of {known}")
        else:
            yield from field_faults(row, _layer_type(kind), label)


def _check_blocks(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse blocks whose fields have values of a wrong type."""
    for number, row in enumerate(rows, start=1):
        if is_block(row):
            _converted(row, Block, f"{where}: {_label(row, number)}")
            _check_blocks(row["layer"], where)


def _converted(row: object, expected: type[_S], label: str) -> _S:
    try:
        return msgspec.convert(row, expected)
    except msgspec.ValidationError as error:
        raise InputError(f"{label} {validation_reason(error, expected)}") from None


def _layer_spec(row: Mapping[str, Any], number: int, where: str) -> LayerSpec:
    kind = row["kind"]
    layer = _converted(row, _layer_type(kind), f"{where}: {_label(row, number)}")
    fields = {f: v for f, v in msgspec.structs.asdict(layer).items() if v is not msgspec.UNSET}
    name, _, inputs = (fields.pop(key) for key in ("name", "kind", "inputs"))
    return LayerSpec(name=name, kind=kind, inputs=tuple(inputs), options=fields)


def parse_network(text: str, *, suffix: str, where: str = "the network") -> Network:
    """The network that a file's text describes.

    Parameters
    ----------
    text
        Contents of the file.
    suffix
        ".toml" or ".json".
    where
        What error messages call the file.

    Raises
    ------
    InputError
        When the text is malformed, a field, kind or layer is unknown, or shapes do not fit.
    """
    parse = parse_toml if suffix == ".toml" else parse_json
    return network_of(parse(text, where), where=where)


def network_of(tables: object, *, where: str = "the network") -> Network:
    """The network that the tables of a file describe.

    Parameters
    ----------
    tables
        Contents of the file, parsed.
    where
        What error messages call the file.

    Raises
    ------
    InputError
        When a field, kind or layer is unknown, or shapes do not fit.
    """
    rows = tables.get("layer") if isinstance(tables, dict) else None
    rows = rows if isinstance(rows, list) else []
    refuse_faults(where, [*field_faults(tables, _NetworkFile), *_row_faults(rows, where)])
    file = _converted(tables, _NetworkFile, where)
    _check_blocks(file.layer, where)
    layers = [
        _layer_spec(row, number, where)
        for number, row in enumerate(written_out(file.layer, where), start=1)
    ]
    network = Network(
        name=file.name,
        input_shape=file.input,
        layers=tuple(layers),
        source=file.source,
        notes=file.notes,
    )
    build_graph(network, 1)
    return network


def load_network(name_or_path: str | Path, input_size: int | None = None) -> Network:
    """A built-in network by its name, or one from a network file or a Hugging Face config.json.

    Parameters
    ----------
    name_or_path
        One of `BUILT_IN`, or a path.
    input_size
        Extent of every spatial axis, or of the sequence; the published one, or that of the file,
        by default. [items]

    Raises
    ------
    InputError
        When there is no such network, it cannot have that input size, or the file is wrong.
    """
    path = Path(name_or_path)
    if str(name_or_path) in BUILT_IN or path.suffix not in SUFFIXES:
        return build(str(name_or_path), input_size)
    text, where = read_text(path, f"the network file {path}"), f"the network file {path}"
    parse = parse_toml if path.suffix == ".toml" else parse_json
    return network_of_tables(parse(text, where), str(path), input_size)


def network_of_tables(tables: object, path: str, input_size: int | None = None) -> Network:
    """The network of a network file, or of a Hugging Face config.json.

    Parameters
    ----------
    tables
        Contents of the file, parsed.
    path
        Where it lies.
    input_size
        As of `load_network`. [items]

    Raises
    ------
    InputError
        When the file is wrong.
    """
    if is_config(tables):
        return config_network(tables, f"the config {path}", input_size)
    return resized(network_of(tables, where=f"the network file {path}"), input_size)


def resized(network: Network, input_size: int | None) -> Network:
    """A network of a file at an input size, its own by default. [items]"""
    if input_size is None:
        return network
    shape = {a: input_size if a in RESIZED_AXES else n for a, n in network.input_shape.items()}
    network = replace(network, input_shape=shape)
    build_graph(network, 1)
    return network


def toml_value(value: object) -> str:
    """Strings, numbers, booleans and arrays are written alike in TOML and JSON."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_rows(fields: Mapping[str, object]) -> str:
    """Lines of a TOML table."""
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in fields.items())


def format_network(network: Network, *, suffix: str = ".toml") -> str:
    """The text of a network file, which `parse_network` turns into an equal network."""
    remarks = {"source": network.source, "notes": network.notes}
    head = {"name": network.name, **{key: text for key, text in remarks.items() if text}}
    shape = dict(network.input_shape)
    layers = [
        {"name": spec.name, "kind": spec.kind, "inputs": list(spec.inputs), **spec.options}
        for spec in network.layers
    ]
    if suffix == ".json":
        return json.dumps({**head, "input": shape, "layer": layers}, indent=1) + "\n"
    tables = [toml_rows(head), "[input]\n" + toml_rows(shape)]
    tables += ["[[layer]]\n" + toml_rows(layer) for layer in layers]
    return "\n".join(tables)
