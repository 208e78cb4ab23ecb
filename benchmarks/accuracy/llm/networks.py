"""The network of a measured row: a config as the planner reads them.

Whether the MLP is gated, norms have biases and positions are learned is what the model's name or
the framework says; where the name states parameters, the closest of the forms that its sizes allow
counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from benchmarks.accuracy.llm.measurement import Configuration, Sizes, framework_entry
from benchmarks.accuracy.llm.words import entry_of
from costmodels.graph import Network, build_graph
from planner.models.configs import transformer

_SCALES = {"m": 1e6, "b": 1e9, "t": 1e12}


def llm_network(of: Configuration) -> Network:
    """The network of a configuration."""
    entry = framework_entry(of)
    # strategies of one model pad its vocabulary differently
    multiple = int(entry.get("padding", 1)) * of.tp
    padded = -(-of.sizes.vocabulary // multiple) * multiple
    return _network(
        replace(of.sizes, vocabulary=padded),
        str(entry["family"]),
        float(entry.get("dropout", 0.0)),
        bool(entry["fused_attention"]),
        entry.get("tied"),
    )


def stated_parameters(name: str) -> float | None:
    """Parameters that the name of a model states, such as "GPT 3.6B". [items]"""
    found = re.search(r"(?<![\w.])(\d+(?:\.\d+)?) ?([mbt])\b", name.lower())
    return float(found[1]) * _SCALES[found[2]] if found else None


@lru_cache(maxsize=512)
def _network(sizes: Sizes, family: str, dropout: float, fused: bool, tied: bool | None) -> Network:
    named = entry_of("models", sizes.name.lower())
    family = str(named["family"]) if named else family
    if sizes.tied is not None:
        tied = sizes.tied
    forms = [_config(sizes, family, gated, tied) for gated in _gated_forms(sizes, family)]
    stated = stated_parameters(sizes.name)
    fixed = {"fused": fused, "attention_dropout": dropout > 0.0 and not fused, "dropout": dropout}
    networks = [_network_form(form, sizes, fixed) for form in forms]
    if stated is None or len(networks) == 1:
        return networks[0]
    return min(networks, key=lambda network: abs(parameters_of(network) / stated - 1.0))


def _gated_forms(sizes: Sizes, family: str) -> tuple[bool, ...]:
    """Whether the MLP may be gated, the likelier first."""
    if not sizes.ffn:
        return (family == "llama",)
    return (True, False) if family == "llama" else (False, True)


def _config(sizes: Sizes, family: str, gated: bool, tied: bool | None) -> dict[str, Any]:
    ffn = sizes.ffn or (8 * sizes.hidden // 3 if gated else 4 * sizes.hidden)
    if family == "gpt2":
        return {
            "model_type": "gpt2",
            "n_embd": sizes.hidden,
            "n_layer": sizes.layers,
            "n_head": sizes.heads,
            "n_inner": ffn,
            "n_positions": sizes.sequence,
            "vocab_size": sizes.vocabulary,
            "fixed": {"gated": gated, "kv_heads": sizes.kv_heads, "tied": tied is not False},
        }
    return {
        "model_type": "mixtral" if sizes.experts else "llama",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "intermediate_size": ffn,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": sizes.sequence,
        "num_local_experts": sizes.experts or None,
        "num_experts_per_tok": sizes.top_k or (2 if sizes.experts else None),
        "fixed": {"gated": gated, "tied": bool(tied)},
    }


def _network_form(config: Mapping[str, Any], sizes: Sizes, fixed: Mapping[str, object]) -> Network:
    said = {name: value for name, value in config.items() if name != "fixed" and value is not None}
    built = transformer(
        said, sizes.name, name=sizes.name, source="a row", fixed={**config["fixed"], **fixed}
    )
    return built.build(sizes.name, sizes.sequence)


def parameters_of(network: Network) -> float:
    """Trainable numbers of a network. [items]"""
    layers = build_graph(network, 1).layers.values()
    return float(sum(layer.parameters for layer in layers if not layer.shares_weight_with))
