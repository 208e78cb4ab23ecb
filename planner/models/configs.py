"""Transformers from configs: the built-in rows, and any Hugging Face config.json of a known family.

What a family is, and which fields of a config say what, stands in `data/families.toml`; the rows of
`data/transformers.toml` are configs, too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, get_type_hints

import msgspec

from costmodels.errors import InputError, closest
from costmodels.graph import Network
from planner.models.built_in import BuiltInNetwork
from planner.models.stacks import STACK_NOTES, STACKS
from planner.models.transformer import Transformer, check_transformer

_DATA = Path(__file__).parent / "data"
# Longer contexts than this are what models were stretched to, not what they are trained at.
MOST_TOKENS = 8192
# Names of activations in configs, where those of PyTorch differ.
_FUNCTIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu",
    "swish": "silu",
}


class TransformerFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A family of transformers, as `data/families.toml` describes it."""

    description: str
    stack: str
    size: str
    required: dict[str, str]
    optional: dict[str, str] = {}
    fixed: dict[str, Any] = {}


class ConfigRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A built-in transformer: a config, and fields of `Transformer` that no config says."""

    names: tuple[str, ...]
    description: str
    source: str
    config: dict[str, Any]
    notes: str = ""
    fixed: dict[str, Any] = {}


def _tables(name: str) -> dict[str, Any]:
    return tomllib.loads((_DATA / name).read_text(encoding="utf-8"))


@cache
def families() -> Mapping[str, TransformerFamily]:
    """All families by their `model_type`."""
    tables = _tables("families.toml")
    found: dict[str, TransformerFamily] = {}
    for name, table in tables.items():
        base = table.pop("like", None)
        if base is not None:
            known = msgspec.to_builtins(found[base])
            parts = ("required", "optional", "fixed")
            table |= {part: {**known[part], **table.get(part, {})} for part in parts}
            table = {**known, **table}
        table["optional"] = {k: v for k, v in table.get("optional", {}).items() if v}
        found[name] = msgspec.convert(table, TransformerFamily)
    return found


@cache
def config_rows() -> tuple[ConfigRow, ...]:
    """The built-in transformers."""
    return tuple(msgspec.convert(_tables("transformers.toml")["model"], list[ConfigRow]))


def family_of_config(config: Mapping[str, object], where: str) -> TransformerFamily:
    """The family of a config.

    Parameters
    ----------
    config
        Its fields.
    where
        What error messages call it.

    Raises
    ------
    InputError
        When it has no `model_type`, or an unknown one.
    """
    kind = config.get("model_type")
    said = repr(kind) if "model_type" in config else "missing"
    if not isinstance(kind, str) or kind not in families():
        known = closest(kind if isinstance(kind, str) else "", list(families()))
        raise InputError(
            f"{where}: model_type must be that of a supported family but is {said}; use one of "
            f"{known}"
        )
    return families()[kind]


@cache
def _known_fields() -> frozenset[str]:
    return frozenset(
        field for one in families().values() for field in (*one.required.values(), one.size)
    )


def is_config(tables: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the contents of a file look like a config.json, complete or not."""
    if not isinstance(tables, Mapping) or "format" in tables or "layer" in tables:
        return False
    return "model_type" in tables or not _known_fields().isdisjoint(tables)


def _special(config: Mapping[str, object]) -> dict[str, object]:
    """Fields that configs say in another way than by one field of their own."""
    found: dict[str, object] = {}
    projection = config.get("feed_forward_proj")
    if isinstance(projection, str):
        found["gated"] = projection.startswith("gated-")
        found["function"] = projection.removeprefix("gated-")
    labels = config.get("id2label")
    if isinstance(labels, Mapping) and labels:
        found["vocabulary"] = len(labels)
    return found


def read_config(
    config: Mapping[str, object], where: str, fixed: Mapping[str, object] | None = None
) -> Transformer:
    """What a config says of a transformer.

    Parameters
    ----------
    config
        Its fields; those that the family does not know have no influence on its cost.
    where
        What error messages call it.
    fixed
        Fields of `Transformer` that go before those of the family.

    Raises
    ------
    InputError
        When the family is unknown, a field is missing or has a wrong value.
    """
    family = family_of_config(config, where)
    needed = tuple(dict.fromkeys(family.required.values()))
    missing = [field for field in needed if config.get(field) is None]
    if missing:
        kind = config["model_type"]
        raise InputError(
            f"{where}: a config of model_type {kind} must have {', '.join(needed)} but lacks "
            f"{', '.join(missing)}; add what is missing"
        )
    called = {**family.required, **family.optional}
    said = {name: config[f] for name, f in called.items() if config.get(f) is not None}
    values = {**family.fixed, **(_special(config) if family.stack != "decoder" else {}), **said}
    values |= fixed or {}
    hints = get_type_hints(Transformer)
    for name, value in values.items():
        try:
            values[name] = msgspec.convert(value, hints[name])
        except msgspec.ValidationError as error:
            reason = str(error)
            raise InputError(
                f"{where}: {called.get(name, name)} has a value of the wrong type: "
                f"{reason[0].lower()}{reason[1:]}; correct it"
            ) from None
    values["function"] = _FUNCTIONS.get(
        values.get("function", "silu"), values.get("function", "silu")
    )
    described = Transformer(**values)
    check_transformer(described, where, called)
    return described.completed()


def default_size(config: Mapping[str, object], where: str) -> int:
    """Tokens of a sample, or pixels a side, of a config where none are asked for. [items]

    Parameters
    ----------
    config
        Its fields.
    where
        What error messages call it.
    """
    family = family_of_config(config, where)
    said = config.get(family.size)
    if said is not None and (isinstance(said, bool) or not isinstance(said, int) or said < 1):
        rule = "be a whole number of at least 1"
        raise InputError.rule(f"{where}: {family.size}", rule, repr(said), "correct it")
    size = 512 if said is None else int(said)
    return size if family.stack == "image" else min(size, MOST_TOKENS)


def transformer(
    config: Mapping[str, object],
    where: str,
    *,
    name: str,
    description: str = "",
    source: str = "",
    notes: str = "",
    fixed: Mapping[str, object] | None = None,
) -> BuiltInNetwork:
    """The network of a config, at any number of tokens or pixels.

    Parameters
    ----------
    config
        Its fields.
    where
        What error messages call it.
    name, description, source, notes
        What is said of the network.
    fixed
        As of `read_config`.

    Raises
    ------
    InputError
        When the family is unknown, or a field is missing or wrong.
    """
    family = family_of_config(config, where)
    image = family.stack == "image"
    remarks = " ".join(text for text in (notes, STACK_NOTES.get(family.stack, "")) if text)

    def make(size: int) -> Network:
        net = STACKS[family.stack](read_config(config, where, fixed), size)
        return net.network(name, source=source, notes=remarks)

    patch = read_config(config, where, fixed).patch if image else 1
    return BuiltInNetwork(
        description=description,
        make=make,
        size=default_size(config, where),
        minimum=patch,
        multiple=patch,
        unit="pixels a side" if image else "tokens",
    )


def config_network(
    config: Mapping[str, object], where: str, input_size: int | None = None
) -> Network:
    """The network of a config.json.

    Parameters
    ----------
    config
        Its fields.
    where
        What error messages call it.
    input_size
        Tokens of a sample, or pixels a side; what the config says by default, but at most
        `MOST_TOKENS` tokens. [items]

    Raises
    ------
    InputError
        When the family is unknown, or a field is missing or wrong.
    """
    read_config(config, where)
    kind, path = str(config["model_type"]), config.get("_name_or_path")
    name = path.rstrip("/").rsplit("/", 1)[-1] if isinstance(path, str) else ""
    source = f"a Hugging Face config of model_type {kind}"
    return transformer(config, where, name=name or kind, source=source).build(where, input_size)
