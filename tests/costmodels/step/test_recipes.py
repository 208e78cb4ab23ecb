"""Precision recipes: bytes a parameter as the frameworks publish them, and what ZeRO cuts."""

from __future__ import annotations

import pytest
from machines import cluster
from msgspec.structs import replace
from pipelines import chain, compile_job
from simulated_jobs import LAYERS, WEIGHT, dp

from costmodels.errors import InputError
from costmodels.simulation import load_runtime
from costmodels.step.recipes import recipe_families, recipe_of
from costmodels.step.training import Training
from costmodels.strategy import MemoryConfig

RANKS = 4
_PLAIN = cluster(RANKS)
PEAKS = {**_PLAIN.device.peak_flops, "bf16": 1e12}
WHERE = replace(_PLAIN, device=replace(_PLAIN.device, peak_flops=PEAKS))
CUTS = (
    MemoryConfig(),
    MemoryConfig(state=True),
    MemoryConfig(state=True, gradients=True),
    MemoryConfig(state=True, gradients=True, weights=True),
)


def per_parameter(runtime: str, precision: str, stage: int) -> float:
    """What a rank holds of a parameter throughout a step, without buckets. [B]"""
    g = chain(LAYERS)
    names = [layer.name for layer in g.compute_layers if layer.parameters]
    strategy = replace(dp(g, RANKS), memory=dict.fromkeys(names, CUTS[stage]))
    found = load_runtime(runtime)
    recipe = {} if found.recipe is None else {"recipe": found.recipe}
    compiler = compile_job(
        g, strategy, WHERE, runtime=found, optimizer="adam", precision=precision, **recipe
    )
    fixed = compiler.compile(1).roles[0].fixed_memory
    held = sum(fixed[name] for name in ("weights", "weight gradients", "optimizer state"))
    return held / (LAYERS * WEIGHT / 4)


D = RANKS


@pytest.mark.parametrize(
    ("runtime", "precision", "expected"),
    [
        # Megatron-LM, docs/source/distrib_optimizer.md
        ("megatron", "fp16", (20, 4 + 16 / D)),
        ("megatron", "bf16", (18, 6 + 12 / D)),
        ("megatron", "fp32", (16, 8 + 8 / D)),
        # Rajbhandari et al. 2020, figure 1, K = 12
        ("deepspeed", "fp16", (16, 4 + 12 / D, 2 + 14 / D, 16 / D)),
        # what of gradients is summed up in single precision is whole
        ("nanotron", "bf16", (18, 6 + 12 / D)),
        ("torchtitan", "bf16", (16, 8 + 8 / D, 4 + 12 / D, 16 / D)),
        ("ddp", "bf16", (18, 10 + 8 / D)),
    ],
)
def test_bytes_of_a_parameter(runtime: str, precision: str, expected: tuple[float, ...]) -> None:
    for stage, size in enumerate(expected):
        assert per_parameter(runtime, precision, stage) == pytest.approx(size), stage


@pytest.mark.parametrize("runtime", ["ddp", "megatron", "deepspeed", "fsdp", "nanotron"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_zero_never_holds_more(runtime: str, precision: str) -> None:
    sizes = [per_parameter(runtime, precision, stage) for stage in range(4)]
    assert sizes == sorted(sizes, reverse=True)


def test_nanotron_has_buckets_where_gradients_travel_in_them() -> None:
    g = chain(LAYERS)
    for cut, size in ((False, 2), (True, 0)):
        config = MemoryConfig(state=cut)
        names = [layer.name for layer in g.compute_layers if layer.parameters]
        strategy = replace(dp(g, RANKS), memory=dict.fromkeys(names, config))
        compiler = compile_job(
            g, strategy, WHERE, runtime="nanotron", recipe="nanotron", precision="bf16"
        )
        fixed = compiler.compile(1).roles[0].fixed_memory
        assert fixed["communication buffers"] == size * LAYERS * WEIGHT / 4


def test_all_recipes_say_where_they_are_from() -> None:
    for name, family in recipe_families().items():
        assert family.source, name


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InputError, match="the precision recipe must be one of autocast, megatron"):
        recipe_of("mine", "bf16")
    with pytest.raises(InputError, match="the precision recipe must be one of"):
        Training(recipe="mine")
