"""Transformers have the published counts, and configs of their families stand for them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import planner
from costmodels.errors import InputError
from costmodels.graph import Graph, build_graph
from planner.cli.command import planner_command
from planner.models import build, families, load_network, padded_vocabulary
from planner.models.configs import config_rows

# Parameters. Of models on the Hugging Face hub: `num_parameters()` of the model class in
# parentheses, which the files of their weights have, too; BERT without its pooler, as the masked
# language model is. Vision transformers: torchvision's "num_params".
PUBLISHED = {
    "gpt2": 124_439_808,  # GPT2LMHeadModel
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_514_298,  # BertForMaskedLM
    "bert-large": 335_174_458,
    "t5-11b": 11_307_321_344,  # T5ForConditionalGeneration
    "llama2-7b": 6_738_415_616,  # LlamaForCausalLM
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,  # MistralForCausalLM
    "mixtral-8x7b": 46_702_792_704,  # MixtralForCausalLM
    "qwen2-0.5b": 494_032_768,  # Qwen2ForCausalLM
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,  # Qwen3ForCausalLM
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,  # Qwen3MoeForCausalLM
    "qwen3-235b-a22b": 235_093_634_560,
    # the main model of its weights' files, biases of the routers included
    "deepseek-v3": 671_026_419_200,
    "vit-b": 86_567_656,
    "vit-l": 304_326_632,
    "vit-h": 632_045_800,
}
# Brown et al. 2020, Table 2.1, and of the largest also Table D.1 (millions); Narayanan et al. 2021,
# Table 1. [billions]
ROUNDED = {
    "gpt3-125m": (0.125, 0.0005),
    "gpt3-350m": (0.356, 0.0005),
    "gpt3-760m": (0.760, 0.0005),
    "gpt3-1.3b": (1.3, 0.05),
    "gpt3-2.7b": (2.7, 0.05),
    "gpt3-6.7b": (6.7, 0.05),
    "gpt3-13b": (13, 0.5),
    "gpt3-175b": (174.600, 0.005),
    "megatron-1.7b": (1.7, 0.05),
    "megatron-3.6b": (3.6, 0.05),
    "megatron-7.5b": (7.5, 0.05),
    "megatron-18.4b": (18.4, 0.051),
    "megatron-39.1b": (39.1, 0.05),
    "megatron-76.1b": (76.1, 0.05),
    "megatron-145.6b": (145.6, 0.05),
    "megatron-310.1b": (310.1, 0.05),
    "megatron-529.6b": (529.6, 0.05),
    "megatron-1t": (1008.0, 0.05),
    # Qwen2 report, Table 1; MLPerf's 187,767,399 rows of 128 features and its MLPs
    "qwen2-57b-a14b": (57.4, 0.05),
    "dlrm-mlperf": (24.0, 0.05),
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, list(arguments))


def graph(name: str, batch: int = 1, size: int | None = None) -> Graph:
    return build_graph(build(name, size), batch)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert graph(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_are_those_of_the_tables(name: str) -> None:
    billions, within = ROUNDED[name]
    assert graph(name).parameters / 1e9 == pytest.approx(billions, abs=within)


def test_every_built_in_transformer_is_held_to_a_publication() -> None:
    told = {*PUBLISHED, *ROUNDED}
    assert all(told & set(row.names) for row in config_rows())


def test_dlrm_has_the_tables_of_its_configuration() -> None:
    rows, bottom = 33_762_577, (13 * 512 + 512 * 256 + 256 * 64 + 64 * 16) + 512 + 256 + 64 + 16
    top = (16 + 27 * 26 // 2) * 512 + 512 * 256 + 256 + (512 + 256 + 1)
    assert graph("dlrm").parameters == rows * 16 + bottom + top
    # Proteus (Duan et al. 2023), Table II: 516 M, of 2**20 each
    assert round(graph("dlrm").parameters / 2**20) == 516


@pytest.mark.parametrize("name", [n for n in ROUNDED if n.startswith("megatron")])
def test_megatron_has_the_formulas_of_its_paper(name: str) -> None:
    (row,) = [row for row in config_rows() if name in row.names]
    h, blocks, s, v = (row.config[k] for k in ("n_embd", "n_layer", "n_positions", "vocab_size"))
    batch = 3
    network = graph(name, batch)
    # equation 2, which leaves out the norm after the last block
    formula = 12 * blocks * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * blocks * h))
    assert network.parameters - 2 * h == pytest.approx(formula, rel=1e-12)
    # equation 3 with the blocks computed again, which the head is not: 4 passes instead of 3
    again = 96 * batch * s * blocks * h**2 * (1 + s / (6 * h) + v / (16 * blocks * h))
    head = batch * s * h * v
    assert 2 * (4 * (network.macs - head) + 3 * head) == pytest.approx(again, rel=1e-12)
    once = 72 * batch * s * blocks * h**2 * (1 + s / (6 * h) + v / (12 * blocks * h))
    assert 6 * network.macs == pytest.approx(once, rel=1e-12)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3.1-405b", "qwen2-7b", "qwen3-32b"])
def test_dense_decoders_take_six_flops_a_weight_and_those_of_attention(name: str) -> None:
    """As torchtitan counts them: 6 N + 12 l h q t a token (Chowdhery et al. 2022, appendix B)."""
    (row,) = [row for row in config_rows() if name in row.names]
    c, network = row.config, graph(name)
    width = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    tokens = c["max_position_embeddings"]
    multiplied = sum(layer.parameters for layer in network.compute_layers if layer.kind == "linear")
    attention = 12 * c["num_hidden_layers"] * c["num_attention_heads"] * width * tokens
    heads = c["num_attention_heads"] + 2 * c["num_key_value_heads"]
    biases = c["num_hidden_layers"] * heads * width if name.startswith("qwen2") else 0
    assert 6 * network.macs == tokens * (6 * (multiplied - biases) + attention)


def test_a_mixture_computes_with_the_experts_of_a_token_only() -> None:
    # 12.9 billion of the 46.7 see a token (Jiang et al. 2024, section 2.1)
    network = graph("mixtral-8x7b")
    attention = sum(la.macs for la in network.compute_layers if la.kind == "attention")
    active = (network.macs - attention) / 8192
    assert (active + 32000 * 4096) / 1e9 == pytest.approx(12.9, abs=0.05)
    # 37 billion of 671 (DeepSeek-AI 2024, abstract)
    network = graph("deepseek-v3")
    attention = sum(la.macs for la in network.compute_layers if la.kind == "attention")
    active = (network.macs - attention) / 4096
    assert (active + 129280 * 7168) / 1e9 == pytest.approx(37.5, abs=0.1)


def test_large_networks_are_built_while_one_waits() -> None:
    for name in ("llama3-405b", "deepseek-v3", "megatron-1t"):
        # the first one may be held up by the collection of other tests' garbage
        spent = []
        for _ in range(3):
            start = time.process_time()
            build_graph(build(name), 8)
            spent.append(time.process_time() - start)
        assert min(spent) < 0.3


@pytest.mark.slow
def test_blocks_of_a_network_share_their_costs() -> None:
    for name, kinds in (("llama3-405b", 14), ("deepseek-v3", 30)):
        layers = graph(name).compute_layers
        assert len({layer.signature for layer in layers}) <= kinds < len(layers)


# what the config.json of a model says, by the built-in network that it stands for
HUB: dict[str, dict[str, Any]] = {
    "gpt2-xl": {
        "model_type": "gpt2",
        "n_embd": 1600,
        "n_layer": 48,
        "n_head": 25,
        "n_ctx": 1024,
        "n_positions": 1024,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
        "n_inner": None,
    },
    "llama3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_scaling": {"rope_type": "llama3"},
        "torch_dtype": "bfloat16",
    },
    "qwen2-57b-a14b": {
        "model_type": "qwen2_moe",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 151936,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480,
        "decoder_sparse_step": 1,
        "use_sliding_window": False,
        "sliding_window": 65536,
    },
    "vit-l": {
        "model_type": "vit",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 16,
        "id2label": {str(i): f"label {i}" for i in range(1000)},
    },
}


def config(name: str = "llama3.1-8b", **changes: object) -> dict[str, Any]:
    return {key: value for key, value in {**HUB[name], **changes}.items() if value != "absent"}


def written(folder: Path, content: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", HUB)
def test_a_config_stands_for_its_network(name: str, tmp_path: Path) -> None:
    found = build_graph(load_network(written(tmp_path, HUB[name])), 2)
    assert found.parameters == graph(name).parameters
    assert len(found.layers) == len(graph(name).layers)


def test_a_config_says_the_tokens_of_a_sample(tmp_path: Path) -> None:
    path = written(tmp_path, config(max_position_embeddings=2048))
    assert load_network(path).input_shape == {"sequence": 2048}
    assert load_network(path, 512).input_shape == {"sequence": 512}
    # longer ones are what a model was stretched to
    long = written(tmp_path, config(max_position_embeddings=131072))
    assert load_network(long).input_shape == {"sequence": 8192}


def test_windows_grouped_heads_and_late_experts_are_heeded(tmp_path: Path) -> None:
    mistral = config(model_type="mistral", sliding_window=1024, max_position_embeddings=4096)
    whole = written(tmp_path, {**mistral, "sliding_window": None})
    before = build_graph(load_network(whole), 1).layers["layers.0.attn"]
    layer = build_graph(load_network(written(tmp_path, mistral)), 1).layers["layers.0.attn"]
    assert layer.macs * 4 == before.macs
    late = config("qwen2-57b-a14b", decoder_sparse_step=2, mlp_only_layers=[3])
    layers = build_graph(load_network(written(tmp_path, late)), 1).layers
    mixed = [i for i in range(28) if f"layers.{i}.moe.router" in layers]
    assert mixed == [i for i in range(28) if i % 2 == 1 and i != 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (config(model_type="lama"), "supported family but is 'lama'; use one of llama, "),
        (config(model_type="absent"), "supported family but is missing; use one of "),
        (config(model_type=3), "supported family but is 3; use one of "),
        (config(num_attention_heads="absent"), "lacks num_attention_heads; add"),
        (config(hidden_size=None, vocab_size=None), "lacks hidden_size, vocab_size; add"),
        (config(num_attention_heads=33), "must divide hidden_size but 33 does not divide 4096"),
        (config(num_key_value_heads=5), "num_key_value_heads must divide num_attention_heads but"),
        (config(hidden_size="wide"), "hidden_size has a value of the wrong type: expected `int`"),
        (config(num_hidden_layers=0), "num_hidden_layers must be at least 1 but is 0"),
        (config(num_hidden_layers=10**9), "num_hidden_layers must be at most 4,096 but is"),
        (config(vocab_size=2**60), "lower the batch or the input size"),
        (config(intermediate_size=-4), "intermediate_size must be at least 0 but is -4"),
        (config(max_position_embeddings="long"), "max_position_embeddings must be a whole number"),
        (config(max_position_embeddings=0), "must be a whole number of at least 1 but is 0"),
        (config(hidden_act="relu7"), "function must be one of"),
        (config("qwen2-57b-a14b", num_experts_per_tok=65), "num_experts_per_tok must be from 1 to"),
        (config("vit-l", patch_size=0), "patch_size must be at least 1 but is 0"),
        (config("vit-l", image_size=100), "must be a multiple of 16 and at least 16 pixels"),
    ],
)
def test_a_bad_config_is_one_sentence(content: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        build_graph(load_network(written(tmp_path, content)), 1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_commands_take_a_config_and_what_it_is_trained_with(tmp_path: Path) -> None:
    path = written(tmp_path, config(num_hidden_layers=2))
    result = run("simulate", str(path), "--gpus", "4", "--tp", "2", "--seq-len", "512", "--json")
    assert result.exit_code == 0, result.output
    padded = planner.simulate(path, gpus=4, input_size=512, vocab_padding=4096)
    embedding = padded.subject.graph.layers["token_embedding"]
    assert embedding.dims["channel"] == 131072 == padded.subject.graph.layers["head"].dims["filter"]
    for arguments in (
        ("simulate", str(path), "--gpus", "4", "--expert-capacity", "1.5"),
        ("simulate", "vit-l", "--gpus", "4", "--vocab-padding", "128"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert "it has none; leave --" in refused.output


def test_the_busiest_expert_is_a_stated_factor() -> None:
    even, uneven = (
        planner.simulate("qwen3-30b-a3b", gpus=4, global_batch_size=4, expert_capacity=f)
        for f in (None, 1.5)
    )
    layers = [one.subject.graph.layers for one in (even, uneven)]
    slots = [la["layers.0.moe.up"].dims["sequence"] for la in layers]
    assert slots == [4096 * 8 // 128, 4096 * 8 * 3 // 256]
    assert uneven.step_time > even.step_time


def test_a_padded_vocabulary_pads_all_that_is_tied_to_it() -> None:
    for name in ("gpt2", "bert-base", "t5-11b"):
        network = padded_vocabulary(build(name), 1024)
        found = build_graph(network, 1)
        whole = {la.dims["channel"] for la in found.compute_layers if la.name == "token_embedding"}
        heads = {la.dims["filter"] for la in found.compute_layers if la.name == "head"}
        assert whole == heads
        assert all(n % 1024 == 0 for n in whole)
        assert found.parameters > graph(name).parameters


def test_the_list_shows_families_and_what_a_config_may_say() -> None:
    text = " ".join(run("models").output.split())
    for name, family in families().items():
        assert name in text
        assert family.description in text
        assert all(field in text for field in (*family.required.values(), family.size))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama", "hidden_size": 4096', "correct it, or, where it is a plan, make"),
        ("[]", "must be a plan, a network or a model's config but is none of them; give another"),
    ],
)
def test_a_malformed_config_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    result = CliRunner().invoke(planner_command, ["simulate", str(path), "--gpus", "8"])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
