"""Activations of a block are those of Korthikanti et al. 2022, "Reducing Activation Recomputation
in Large Transformer Models", equations 1, 2 and 4, term by term."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from costmodels.graph import Network
from planner.models.configs import transformer
from planner.simulation.result import Simulation

S, B, H, HEADS = 512, 2, 256, 8
UNFUSED = {"fused": False, "attention_dropout": True}


def network(blocks: int, **fixed: object) -> Network:
    config = {
        "model_type": "gpt2",
        "n_embd": H,
        "n_head": HEADS,
        "n_layer": blocks,
        "n_positions": S,
        "vocab_size": 8192,
    }
    described = transformer(config, "a test", name="test", source="a test", fixed=fixed)
    return described.build("test")


def held(simulation: Simulation) -> float:
    """Activations that a device holds when it holds most: at the end of the forward pass. [B]"""
    assert simulation.simulated is not None
    return simulation.simulated.peak.memory.holders["activations"]


def of_a_block(**question: object) -> float:
    """What a further block adds to the activations. [B]"""
    fixed = question.pop("fixed", UNFUSED)
    three, four = (
        held(planner.simulate(network(n, **fixed), precision="fp16", **question)) for n in (3, 4)
    )
    return four - three


def test_a_block_on_one_device() -> None:
    per_block = of_a_block(gpus=1, global_batch_size=B)
    norms, qkv, out = 2 * 2 * S * B * H, (2 + 6) * S * B * H, (2 + 1) * S * B * H
    scores = (2 + 1 + 2) * HEADS * S**2 * B
    mlp = (2 + 8 + 8 + 1) * S * B * H
    assert per_block == norms + qkv + scores + out + mlp
    # equation 1
    assert per_block == S * B * H * (34 + 5 * HEADS * S / H)


def test_a_fused_kernel_keeps_its_output_and_no_scores() -> None:
    per_block = of_a_block(gpus=1, global_batch_size=B, fixed={})
    assert per_block == S * B * H * 34


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_tensor_parallelism_divides_what_is_between_its_linear_layers(ways: int) -> None:
    degrees = planner.Degrees(tp=ways)
    per_block = of_a_block(gpus=ways, global_batch_size=B, degrees=degrees)
    # equation 2
    expected = S * B * H * (10 + 24 / ways + 5 * HEADS * S / (H * ways))
    assert per_block == pytest.approx(expected, rel=1e-12)


def sequence_parallel(ways: int, blocks: int, folder: Path) -> Path:
    """Norms, dropout and additions by the sequence; all else as in tensor parallelism."""
    parts = {
        "sequence": ("ln_1", "ln_2", "attn.dropout", "mlp.dropout", "add_1", "add_2"),
        "filter": ("attn.c_attn", "mlp.c_fc"),
        "channel": ("attn.c_proj", "mlp.c_proj", "mlp.gelu"),
        "head": ("attn",),
    }
    rows = ['format = "planner-strategy"', f"gpus = {ways}"]
    for block in range(blocks):
        for dim, names in parts.items():
            for name in names:
                rows.append(
                    f'[[layer]]\nname = "h.{block}.{name}"\npartition = {{ {dim} = {ways} }}'
                )
    rows.append(f'[[layer]]\nname = "embedding.dropout"\npartition = {{ sequence = {ways} }}')
    path = folder / f"sequence{blocks}.toml"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize(("runtime", "whole"), [("megatron", 0), ("ddp", 4)])
def test_sequence_parallelism_divides_all_but_what_a_framework_keeps_gathered(
    ways: int, runtime: str, whole: int, tmp_path: Path
) -> None:
    three, four = (
        held(
            planner.simulate(
                network(n, **UNFUSED),
                precision="fp16",
                gpus=ways,
                global_batch_size=B,
                runtime=runtime,
                strategy=sequence_parallel(ways, n, tmp_path),
            )
        )
        for n in (3, 4)
    )
    # equation 4: Megatron gathers the inputs of both column-parallel layers again in the backward
    # pass, others keep what they gathered
    expected = S * B * H * (whole + (34 - whole) / ways + 5 * HEADS * S / (H * ways))
    assert four - three == pytest.approx(expected, rel=1e-12)


def of_a_megatron_block(ways: int, recompute: str, sequence_parallel: bool = True) -> float:
    """What a further block adds under Megatron's runtime. [B]"""
    degrees = planner.Degrees(tp=ways, sequence_parallel=sequence_parallel, recompute=recompute)
    return of_a_block(gpus=ways, global_batch_size=B, degrees=degrees, runtime="megatron")


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_megatron_by_degrees_is_equation_4(ways: int) -> None:
    expected = S * B * H * (34 / ways + 5 * HEADS * S / (H * ways))
    assert of_a_megatron_block(ways, "none") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ways", [2, 4])
def test_selective_recomputation_leaves_no_square(ways: int) -> None:
    # equation 6, and section 5 without sequence parallelism
    sequence = of_a_megatron_block(ways, "selective")
    assert sequence == pytest.approx(S * B * H * 34 / ways, rel=1e-12)
    tensor = of_a_megatron_block(ways, "selective", sequence_parallel=False)
    assert tensor == pytest.approx(S * B * H * (10 + 24 / ways), rel=1e-12)


def test_full_recomputation_keeps_what_a_block_reads() -> None:
    # table 2: 2 s b h, whole without sequence parallelism
    assert of_a_megatron_block(2, "full", sequence_parallel=False) == 2 * S * B * H


def logits(runtime: str, ways: int, vocabulary: int) -> float:
    """Activations at the peak, which logits of a large vocabulary make. [B]"""
    config = {
        "model_type": "gpt2",
        "n_embd": H,
        "n_head": HEADS,
        "n_layer": 1,
        "n_positions": S,
        "vocab_size": vocabulary,
    }
    described = transformer(config, "a test", name="test", source="a test", fixed=UNFUSED)
    simulation = planner.simulate(
        described.build("test"),
        precision="fp16",
        gpus=ways,
        global_batch_size=B,
        degrees=planner.Degrees(tp=ways),
        runtime=runtime,
    )
    assert simulation.simulated is not None
    holders = simulation.simulated.peak.memory.holders
    return holders["activations"] + holders["workspace"] + holders["activation gradients"]


@pytest.mark.parametrize("ways", [1, 2])
def test_logits_are_kept_in_single_precision(ways: int) -> None:
    """Korthikanti et al. 2022, section 4.3: 4 s b v, beside the logits and one more cast."""
    small, large = (logits("megatron", ways, v) for v in (65536, 131072))
    assert large - small == pytest.approx(S * B * 65536 / ways * (4 + 4 + 2), rel=1e-9)
