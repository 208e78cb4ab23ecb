"""Networks in TOML and JSON files, as `docs/network-files.md` describes them.

The fields of a layer are those of its kind in `costmodels.graph.kinds`: their names, types and
defaults are read from there, so that a file can say whatever a built-in network can.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from costmodels.errors import InputError
from costmodels.graph import LayerSpec, Network, build_graph, closest
from costmodels.graph.kinds import KINDS
from costmodels.units.tables import parse_json, parse_toml, read_text
from planner.models.registry import BUILT_IN, build

RESIZED_AXES = ("depth", "height", "width", "sequence")
SUFFIXES = (".toml", ".json")


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
    optional = {"inputs": list[str]}
    optional |= {p.name: hints[p.name] for p in options if p.default is not p.empty}
    fields += [(o, hint | msgspec.UnsetType, msgspec.UNSET) for o, hint in optional.items()]
    return msgspec.defstruct(kind, fields, forbid_unknown_fields=True)


def validation_reason(error: msgspec.ValidationError, expected: type[msgspec.Struct]) -> str:
    """What msgspec found wrong, without its path syntax, and what there is to choose from."""
    reason = str(error).replace("`", "'").replace(" - at '$.", " in '").replace(" - at '$'", "")
    unknown = re.search(r"unknown field '(\w+)'", reason)
    if unknown:
        known = closest(unknown[1], expected.__struct_fields__)
        return f"has the unknown field '{unknown[1]}'; use one of {known}"
    missing = re.search(r"required field '(\w+)'", reason)
    if missing:
        return f"lacks the field '{missing[1]}'; add it"
    value = re.search(r"enum value '(.*)' in '(\w+)'", reason)
    if value:
        parts = get_args(get_type_hints(expected)[value[2]])
        choices = [choice for part in parts for choice in get_args(part) if isinstance(choice, str)]
        return f"has the unknown {value[2]} '{value[1]}'; use one of {closest(value[1], choices)}"
    return f"has a value of the wrong type: {reason[0].lower()}{reason[1:]}; correct it"


def _layer_spec(row: Mapping[str, Any], number: int, before: str, where: str) -> LayerSpec:
    name = row.get("name")
    label = f"layer '{name}'" if isinstance(name, str) else f"layer number {number}"
    kind = row.get("kind")
    if not isinstance(kind, str):
        raise InputError(
            f"{where}: {label} must have a field 'kind' that is a string but has {kind!r}; use "
            f"one of {', '.join(KINDS)}"
        )
    if kind not in KINDS:
        raise InputError(
            f"{where}: {label} has the unknown kind '{kind}'; use one of "
            f"{closest(kind, list(KINDS))}"
        )
    layer_type = _layer_type(kind)
    try:
        layer = msgspec.convert(row, layer_type)
    except msgspec.ValidationError as error:
        reason = validation_reason(error, layer_type)
        raise InputError(f"{where}: {label} of kind '{kind}' {reason}") from None
    fields = {f: v for f, v in msgspec.structs.asdict(layer).items() if v is not msgspec.UNSET}
    del fields["name"], fields["kind"]
    inputs = fields.pop("inputs", [before])
    options = {o: tuple(v) if isinstance(v, list) else v for o, v in fields.items()}
    return LayerSpec(name=str(name), kind=kind, inputs=tuple(inputs), options=options)


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
    try:
        file = msgspec.convert(tables, _NetworkFile)
    except msgspec.ValidationError as error:
        raise InputError(f"{where} {validation_reason(error, _NetworkFile)}") from None
    layers: list[LayerSpec] = []
    for number, row in enumerate(file.layer, start=1):
        before = layers[-1].name if layers else "input"
        layers.append(_layer_spec(row, number, before, where))
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
    """A built-in network by its name, or one from a file that ends in .toml or .json.

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
    text = read_text(path, f"the network file {path}")
    network = parse_network(text, suffix=path.suffix, where=f"the network file {path}")
    return resized(network, input_size)


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


def dump_network(network: Network, path: str | Path) -> None:
    """Write a network file, in TOML or JSON by the suffix of the path."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"a network file must end in {' or '.join(SUFFIXES)} but the path is {path}; rename it"
        )
    path.write_text(format_network(network, suffix=path.suffix), encoding="utf-8")
