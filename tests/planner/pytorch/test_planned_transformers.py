"""Transformers train under plans as in one process: in gradients, and not in the loss alone."""

from __future__ import annotations

import json
import random

import pytest
import torch_extra

torch_extra.require("torch", "transformers")

import small_transformers as small

import planner
from costmodels.cluster import load_cluster
from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from planner.torch.verify.ranks import on_ranks
from planner.torch.verify.staged import not_kept
from planner.torch.verify.transformers import (
    transformer_charges,
    transformer_training,
    verify_transformer,
)
from planner.torch.verify.verify import verify_plan

TOLERANCE = 1e-12


def evaluate(model, strategy, gpus, batch=8):
    if model.startswith("small_transformers"):
        source = getattr(small, model.partition(":")[2])
        return planner.evaluate(
            source,
            inputs="2,16:int64",
            gpus=gpus,
            strategy=strategy,
            cluster="dgx-a100",
            global_batch_size=batch,
        )
    return planner.evaluate(
        model, gpus=gpus, strategy=strategy, cluster="dgx-a100", global_batch_size=batch
    )


def module_of(model):
    return model if ":" in model else ""


def is_apart(outcome):
    return any(not apart <= TOLERANCE * largest for apart, largest in outcome.gradients)


# By the name of a model: strategies, each on so many ranks.
CASES = [
    ("llama3-8b", "megatron:tp=2,dp=2,sequence_parallel=yes", 4),
    ("llama3-8b", "megatron:tp=2,dp=2,pp=2,micro_batches=2", 8),
    ("gpt2", "megatron:tp=2,pp=2,micro_batches=4,schedule=zero-bubble,recompute=full", 4),
    ("small_transformers:llama", "megatron:tp=2,dp=1,cp=2", 4),
    ("small_transformers:Plain", "megatron:tp=2,dp=2,zero=2,micro_batches=2", 4),
    ("small_transformers:mixtral", "megatron:tp=1,dp=2,ep=2", 2),
    ("small_transformers:glm", "megatron:tp=2", 2),
]
SLOW = [
    ("small_transformers:glm", "megatron:tp=2,sequence_parallel=yes,zero=3,dp=2", 4),
    ("small_transformers:gemma2", "megatron:tp=2", 2),
    ("small_transformers:mixtral", "megatron:tp=1,dp=4,ep=2,zero=1,micro_batches=2", 4),
    ("small_transformers:gpt2", "megatron:tp=2,sequence_parallel=yes", 2),
    ("small_transformers:bert", "zero3:shard_size=2", 4),
    ("small_transformers:Plain", "megatron:pp=2,schedule=interleaved,chunks=1,micro_batches=2", 2),
    ("small_transformers:mistral", "megatron:tp=2,dp=2", 4),
    ("small_transformers:bert", "megatron:tp=2,dp=2", 4),
    (
        "small_transformers:qwen",
        "megatron:tp=2,dp=2,sequence_parallel=yes,zero=3,recompute=selective,micro_batches=2",
        4,
    ),
    ("small_transformers:qwen", "megatron:tp=2,sequence_parallel=yes", 4),
    ("small_transformers:phi", "megatron:tp=2,sequence_parallel=yes", 2),
    ("small_transformers:glm", "megatron:cp=2", 2),
    ("llama3-8b", "megatron:tp=2,pp=2,micro_batches=4,schedule=gpipe,recompute=selective", 4),
    ("llama3-8b", "megatron:pp=2,chunks=2,schedule=interleaved,micro_batches=4,dp=2", 4),
    ("gpt2", "megatron:tp=2,pp=2,dp=2,sequence_parallel=yes,micro_batches=2,zero=3", 8),
]


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("model", "strategy", "ranks"),
    [
        *CASES,
        *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW),
    ],
)
def test_plans_train_as_one_process_does(model, strategy, ranks):
    plan = evaluate(model, strategy, ranks)
    found = verify_plan(plan, ranks=ranks, module=module_of(model))
    assert found.faults == []
    assert found.ranks == ranks
    assert found.checked > 50 * ranks
    assert len(found.gradients) == 3


@pytest.mark.parametrize(
    ("strategy", "parts"),
    [
        ("megatron:tp=2,dp=2,micro_batches=2,recompute=full,sequence_parallel=yes", 0.3),
        ("megatron:tp=2,dp=2,micro_batches=2,zero=3", 0.3),
        ("megatron:tp=2,dp=2,micro_batches=2", 3.0),
    ],
)
def test_sizes_that_no_design_explains_have_no_reason(strategy, parts):
    task = transformer_training(
        evaluate("small_transformers:bert", strategy, 4), 4, module="small_transformers:bert"
    )
    topology = Topology.of(load_cluster("dgx-a100"), task.plan.shape)
    charged = {key: said for key, _, said, _ in transformer_charges(task, {}, topology)}
    assert len(charged) > 20
    times = {key: 1 if key[1] == "gradient" else 2 for key in charged}
    received = {key: parts * times[key] * said for key, said in charged.items()}
    found = transformer_charges(task, received, topology)
    assert {key for key, *_ in found} == set(charged)
    assert [row for row in found if row[3]] == []


FAULTS = [
    (small.gradients_not_summed, "small_transformers:Plain", "megatron:tp=1,dp=2"),
    (
        small.norms_miss_an_axis,
        "small_transformers:Plain",
        "megatron:tp=2,dp=2,sequence_parallel=yes",
    ),
    (small.bias_added_by_all, "small_transformers:Plain", "megatron:tp=2,dp=1"),
    (small.inputs_not_summed, "small_transformers:Plain", "megatron:tp=2,dp=1"),
    (small.mask_starts_at_zero, "small_transformers:Plain", "megatron:cp=2,dp=1"),
    (small.experts_keep_gradients, "small_transformers:mixtral", "megatron:tp=1,dp=2,ep=2"),
]


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(("fault", "model", "strategy"), FAULTS)
def test_faults_are_found_in_gradients(fault, model, strategy):
    ranks = 4 if "dp=2,s" in strategy else 2
    plan = evaluate(model, strategy, ranks)
    _, outcomes = verify_transformer(plan, ranks, module=module_of(model), steps=1, fault=fault)
    assert is_apart(outcomes[0])
    unchanged = (small.gradients_not_summed, small.norms_miss_an_axis, small.inputs_not_summed)
    unchanged += (small.experts_keep_gradients,)
    if fault in unchanged:  # the loss alone would not have told
        assert outcomes[0].losses[0] < 1e-12


@pytest.mark.slow
def test_a_checkpoint_of_one_plan_loads_under_another(tmp_path):
    model = "small_transformers:Plain"
    tasks = [
        transformer_training(evaluate(model, strategy, 4), 4, module=model)
        for strategy in ("megatron:tp=2,dp=2", "zero3")
    ]
    first, second = on_ranks(small.save_and_load, 4, tasks, str(tmp_path))[0]
    assert first[1].keys() == second[0].keys()
    assert all((first[1][name] == second[0][name]).all() for name in first[1])
    # with the moments of the optimizer: the next step is that of the first plan
    assert second[2] < first[2]


@pytest.mark.slow
def test_larger_plans_keep_their_kinds_of_splits_on_fewer_ranks():
    plan = evaluate("llama3-8b", "megatron:tp=4,dp=4,pp=4,micro_batches=8", 64, batch=64)
    task = transformer_training(plan, 8)
    assert task.plan.gpus == 8
    assert len(task.plan.stages) == 2
    assert task.plan.layers["layers.0.attn.qkv.query"].distribution.degree("filter") == 2
    assert task.plan.layers["layers.0.attn.qkv.query"].distribution.degree("sample") == 2


def test_stages_of_one_group_are_one_and_said_not_to_be_run():
    """Two stages that took turns on one group failed at an axis of the mesh that was not there."""
    plan = evaluate("gpt2", "megatron:tp=2,pp=2,schedule=interleaved,chunks=2,micro_batches=2", 8)
    task = transformer_training(plan, 2)
    assert (task.plan.num_groups, len(task.plan.stages)) == (1, 1)
    assert list(not_kept(plan, plan)) == []
    said = list(not_kept(plan, task.plan))
    assert said[-1] == "layers into 2 groups of stages"
    assert "linear by filter" in said or "linear by sample" in said


def test_plans_of_other_modules_and_unknown_ones_are_refused():
    plan = evaluate("small_transformers:Plain", "megatron:tp=2,dp=1", 2)
    with pytest.raises(InputError, match="module must have the layers of the plan"):
        verify_plan(plan, ranks=2, module="small_transformers:llama")
    with pytest.raises(InputError, match="name it with --module"):
        verify_plan(plan, ranks=2)
    with pytest.raises(InputError, match="at most as many ranks"):
        verify_plan(plan, ranks=8, module="small_transformers:Plain")


def test_a_plan_of_a_config_asks_for_a_module_that_computes_it(tmp_path):
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2}
    path.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    plan = evaluate(str(path), "megatron:tp=2,dp=1", 2)
    with pytest.raises(InputError, match="llama of a file, which is no module; name one that"):
        verify_plan(plan, ranks=2)


def random_strategy(rng):
    """Degrees of a plan on 4 ranks, with all that may go with them."""
    parts = rng.choice([{"tp": 2, "dp": 2}, {"tp": 2, "cp": 2}, {"tp": 2, "pp": 2}, {"dp": 4}])
    parts = dict(parts) if rng.random() < 0.8 else {"dp": 2, "pp": 2}
    if parts.get("tp", 1) > 1 and "cp" not in parts and rng.random() < 0.5:
        parts["sequence_parallel"] = "yes"
    parts["micro_batches"] = rng.choice([1, 2, 4]) if "pp" not in parts else rng.choice([2, 4])
    parts["recompute"] = rng.choice(["none", "selective", "full"])
    if "pp" in parts:
        parts["schedule"] = rng.choice(["gpipe", "1f1b", "zero-bubble"])
    else:
        parts["zero"] = rng.choice([0, 1, 2, 3])
    return "megatron:" + ",".join(f"{key}={value}" for key, value in parts.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 14))]
)
def test_random_plans_of_a_small_llama_train_as_one_process_does(seed):
    strategy = random_strategy(random.Random(seed))
    plan = evaluate("llama3-8b", strategy, 4, batch=16)
    found = verify_plan(plan, ranks=4, seed=seed)
    assert found.faults == [], strategy


@pytest.mark.parametrize("model", ["t5-11b", "vit-b"])
def test_what_is_not_written_out_is_named(model):
    """Of t5-11b a small network that is no part of it could not be traced."""
    asked = {"gpus": 4, "cluster": "lassen", "global_batch_size": 8}
    plan = planner.evaluate(model, strategy="zero3", **asked)
    with pytest.raises(InputError, match=f"must be of a network that is written .* of {model}"):
        verify_plan(plan, ranks=4)
