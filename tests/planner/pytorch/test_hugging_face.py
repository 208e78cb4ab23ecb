"""Models of Hugging Face with random weights: what is traced is what their configs say."""

from __future__ import annotations

import pytest
import torch_extra

torch_extra.require("torch", "transformers")

import small_transformers
import torch
import transformers

from costmodels.graph import build_graph
from planner.models.configs import config_network
from planner.torch.source import network_of_source

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
# By name: the class of the model, its config, its inputs without samples, the tokens or pixels of
# the network that its config describes, if the planner reads such configs.
MODELS = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100},
        {"input_ids": (16,)},
        16,
    ),
    "bert": ("BertForMaskedLM", "BertConfig", SMALL, {"input_ids": (16,)}, 16),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, {"input_ids": (16,)}, 16),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**GROUPED, "sliding_window": 8},
        {"input_ids": (16,)},
        16,
    ),
    "qwen": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, {"input_ids": (16,)}, 16),
    "qwen3": (
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**GROUPED, "head_dim": 16},
        {"input_ids": (16,)},
        16,
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**GROUPED, "num_local_experts": 4},
        {"input_ids": (16,)},
        16,
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {**SMALL, "image_size": 32, "patch_size": 8, "num_labels": 10},
        {"pixel_values": (3, 32, 32)},
        32,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 64,
            "num_layers": 2,
            "num_heads": 4,
            "d_ff": 128,
            "d_kv": 16,
            "vocab_size": 100,
        },
        {"input_ids": (16,), "decoder_input_ids": (16,)},
        16,
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1]},
        {"pixel_values": (3, 64, 64)},
        0,
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": [16, 32, 64, 128],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 4, 8],
            "decoder_hidden_size": 32,
        },
        {"pixel_values": (3, 64, 64)},
        0,
    ),
}


@pytest.mark.slow
def test_scores_that_are_capped_are_those_of_attention():
    network = network_of_source(small_transformers.gemma2, {"input_ids": (2, 16)})
    kinds = [row.kind for row in network.layers]
    assert "opaque" not in kinds
    assert (kinds.count("attention"), kinds.count("rotary")) == (2, 4)


# Of each head a part is turned, as halves or as neighbours, or all of it as neighbours.
@pytest.mark.parametrize("name", ["phi", "glm", "gptj"])
def test_rotary_positions_of_a_part_of_each_head_are_split_by_heads_and_tokens(name):
    model = getattr(small_transformers, name)
    network = network_of_source(model, {"input_ids": (2, 16)})
    kinds = [row.kind for row in network.layers]
    assert "opaque" not in kinds
    assert "rearrange" not in kinds
    assert (kinds.count("rotary"), kinds.count("attention")) == (4, 2)
    # queries and keys: each is one layer, on whole heads of 8 features
    for layer in build_graph(network, 2).compute_layers:
        if layer.kind == "rotary":
            assert layer.inputs[0].extent("hidden") == layer.dims["head"] * 8
            assert {"sample", "sequence", "head"} <= layer.splittable


@pytest.mark.parametrize("name", MODELS)
def test_models_come_in_with_all_of_their_weights_and_no_opaque_layer(name):
    model, config, options, inputs, size = MODELS[name]
    described = getattr(transformers, config)(**options)
    kind = getattr(transformers, model)
    # what is called ids is of whole numbers
    shapes = {key: (2, *shape) for key, shape in inputs.items()}
    network = network_of_source(lambda: kind(described), shapes)
    graph = build_graph(network, 2)
    kinds = [layer.kind for layer in graph.compute_layers]
    assert "opaque" not in kinds
    with torch.device("meta"):
        weights = sum(one.numel() for one in kind(described).parameters())
    assert graph.parameters == weights
    if not size:
        return
    # the planner's own network of the same config
    known = config_network({**described.to_dict(), "architectures": [model]}, name, size)
    expected = build_graph(known, 2)
    assert graph.macs == expected.macs
    count = [layer.kind for layer in expected.compute_layers].count("attention")
    assert kinds.count("attention") == count
    for one, other in zip(
        [row for row in graph.compute_layers if row.kind == "attention"],
        [row for row in expected.compute_layers if row.kind == "attention"],
        strict=True,
    ):
        assert one.dims == other.dims
        assert [p.columns for p in one.products] == [p.columns for p in other.products]
