"""Plans in the form of frameworks: their degrees, and what is said not to be expressed."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs
from questions import small_llama

import planner
from costmodels.errors import InputError
from planner.cli.command import planner_command
from planner.errors import ConflictError
from planner.joint import splits_alone
from planner.plan import Plan
from planner.planning.infeasible import stopped_error
from planner.report.frameworks import WRITERS, export_plan
from planner.report.frameworks.uniform import MOST_NAMED, uniform_degrees
from planner.request.frameworks import FRAMEWORKS, WayToTrain

# What plans are under that are for no framework.
USUAL = ("ddp", "fsdp")


def evaluated(model: str, strategy: str, gpus: int = 8, **more) -> Plan:
    question = {"cluster": "dgx-a100", "precision": "bf16", "optimizer": "adam", **more}
    return planner.evaluate(model, gpus=gpus, strategy=strategy, **question)


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {
        "tp": evaluated("gpt2", "megatron:tp=2,dp=4", global_batch_size=32),
        "fsdp": evaluated("gpt2", "fsdp", global_batch_size=32),
        "zero1": evaluated("gpt2", "zero1", global_batch_size=32),
        "pp": evaluated("gpt2", "megatron:tp=2,pp=2,dp=2", global_batch_size=32),
        "data": evaluated("resnet18", "data", global_batch_size=64),
        "mixed": planner.optimize("vgg16", gpus=64, cluster="abci", global_batch_size=2048, cap=16),
        "spatial": evaluated("mesh-1k", "spatial", gpus=4, global_batch_size=2),
    }


def files(plan: Plan, framework: str, folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    written, cannot = export_plan(plan, framework, folder)
    # most plans here are for no framework: that one has another runtime has a test of its own
    usual = tuple(f"step time and memory are those of the runtime {name}," for name in USUAL)
    cannot = tuple(sentence for sentence in cannot if not sentence.startswith(usual))
    return {Path(path).name: Path(path).read_text() for path in written}, cannot


@pytest.mark.parametrize(
    ("strategy", "runtimes"),
    [
        ("data", ("accelerate", "fsdp2", "jax")),
        ("fsdp", ("accelerate", "fsdp2", "jax")),
    ],
)
def test_a_plan_under_another_runtime_than_that_of_the_framework_says_so(
    strategy, runtimes, tmp_path
):
    """DeepSpeed needs 5.8 GiB where the usual runtime tells 4.3, and "Nothing." was said of it."""
    plan = evaluated("gpt2", strategy, global_batch_size=32)
    assert plan.runtime in USUAL
    for framework in WRITERS:
        _, cannot = export_plan(plan, framework, tmp_path / framework)
        said = any(f"those of the runtime {plan.runtime}" in sentence for sentence in cannot)
        assert said == (framework not in runtimes)


@pytest.mark.slow
def test_degrees_are_those_of_the_strategy(plans):
    rows = {
        name: (of.dp, of.tp, of.pp, of.zero)
        for name, of in ((name, uniform_degrees(plan)) for name, plan in plans.items())
    }
    assert rows["tp"] == (4, 2, 1, 0)
    assert rows["fsdp"] == (8, 1, 1, 3)
    assert rows["zero1"] == (8, 1, 1, 1)
    assert rows["pp"] == (2, 2, 2, 0)
    assert rows["data"] == (8, 1, 1, 0)
    for name in ("tp", "fsdp", "zero1", "pp", "data"):
        assert uniform_degrees(plans[name]).others == (), name
    for name in ("mixed", "spatial"):
        assert uniform_degrees(plans[name]).others, name


def test_torchtitan(plans, tmp_path):
    text, cannot = files(plans["pp"], "torchtitan", tmp_path)
    tables = tomllib.loads(text["job.toml"])
    of = tables["parallelism"]
    assert (of["tensor_parallel_degree"], of["pipeline_parallel_degree"]) == (2, 2)
    degrees = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel")
    degrees += ("context_parallel", "pipeline_parallel")
    total = 1
    for degree in degrees:
        total *= of[f"{degree}_degree"]
    assert total == 8
    assert tables["training"]["global_batch_size"] == 32
    assert cannot == ("tensor without sequence parallelism: torchtitan has both together",)
    text, _ = files(plans["fsdp"], "torchtitan", tmp_path)
    of = tomllib.loads(text["job.toml"])["parallelism"]
    assert (of["data_parallel_replicate_degree"], of["data_parallel_shard_degree"]) == (1, 8)
    assert of["fsdp_reshard_after_forward"] == "always"
    _, cannot = files(plans["zero1"], "torchtitan", tmp_path)
    assert any("ZeRO 1" in sentence for sentence in cannot)


def test_torchtitan_rotates_keys_and_values_as_plans_have_it(tmp_path):
    question = {"cluster": "dgx-a100", "gpus": 2, "global_batch_size": 2, "input_size": 4096}
    ring = planner.optimize("gpt2", keep="cp=2", forbid="all-to-all", **question)
    gathers = evaluated("gpt2", "megatron:cp=2", gpus=2, global_batch_size=2)
    gathers = dataclasses.replace(gathers, ring_attention=False)
    assert (ring.ring_attention, gathers.ring_attention) == (True, False)
    for plan, method in ((ring, "alltoall"), (gathers, None)):
        text, _ = files(plan, "torchtitan", tmp_path)
        of = tomllib.loads(text["job.toml"])["parallelism"]
        assert of["context_parallel_degree"] == 2
        assert of.get("context_parallel_rotate_method") == method


def test_megatron(plans, tmp_path):
    text, cannot = files(plans["pp"], "megatron", tmp_path)
    lines = text["arguments.txt"].splitlines()
    assert "--tensor-model-parallel-size 2" in lines
    assert "--pipeline-model-parallel-size 2" in lines
    assert "--global-batch-size 32" in lines
    assert "--bf16" in lines
    size = next(int(line.split()[1]) for line in lines if line.startswith("--micro-batch-size"))
    assert size * plans["pp"].schedule.micro_batches * 2 == 32
    assert cannot == ()
    text, _ = files(plans["zero1"], "megatron", tmp_path)
    assert "--use-distributed-optimizer" in text["arguments.txt"]
    _, cannot = files(plans["fsdp"], "megatron", tmp_path)
    assert any("ZeRO 3" in sentence for sentence in cannot)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"pp": 4, "schedule": "1f1b", "micro_batches": 2}, "fewer micro-batches (2) than groups"),
        ({"cp": 2, "shard_ranks": 8}, "weights cut over no ranks with context parallelism of 2"),
        ({"cp": 4, "zero": 3, "shard_ranks": 2}, "weights cut over 2 ranks with context"),
        ({"ep": 8, "shard_ranks": 8}, "expert parallelism of 8 ways: torchtitan has it within"),
        ({"ep": 8, "zero": 3, "shard_ranks": 4}, "the ranks that cut weights, here 4"),
        ({"tp": 2, "ep": 8, "etp": 2, "zero": 3, "shard_ranks": 4}, "weights, here 4"),
        ({"tp": 4, "ep": 8, "etp": 2, "zero": 3, "shard_ranks": 8}, "2 ways of tensor"),
    ],
)
def test_torchtitan_refuses_what_its_mesh_and_schedules_do_not_have(way, words):
    """Its `ParallelDims`, and PyTorch's `Schedule1F1B`, raise errors on these."""
    said = list(FRAMEWORKS["torchtitan"].lacks(WayToTrain(**way)))
    assert len(said) == 1
    assert words in said[0]


@pytest.mark.parametrize(
    "way",
    [
        {"pp": 4, "schedule": "1f1b", "micro_batches": 4},
        {"pp": 4, "schedule": "gpipe", "micro_batches": 1},
        {"cp": 2, "zero": 3, "shard_ranks": 8},
        {"ep": 8, "zero": 3, "shard_ranks": 8},
        {"tp": 2, "ep": 8, "etp": 1, "zero": 2, "shard_ranks": 4},
    ],
)
def test_torchtitan_has_what_these_are(way):
    assert FRAMEWORKS["torchtitan"].runs(WayToTrain(**way))


@pytest.mark.slow
def test_ways_within_experts_are_written(tmp_path):
    # torchtitan has 1 where nothing is said, Megatron-LM all of them
    for strategy, within in (("ep=4", 2), ("ep=4,etp=1", 1)):
        strategy = f"megatron:tp=2,zero=2,sequence_parallel,{strategy}"
        plan = evaluated("mixtral-8x7b", strategy, global_batch_size=8, input_size=512)
        of = uniform_degrees(plan)
        # what experts hold alone is cut over nobody
        assert (of.tp, of.ep, of.etp, of.others) == (2, 4, within, ())
        text, cannot = files(plan, "torchtitan", tmp_path)
        assert cannot == ()
        assert (
            tomllib.loads(text["job.toml"])["parallelism"]["expert_tensor_parallel_degree"]
            == within
        )
        text, _ = files(plan, "megatron", tmp_path)
        assert f"--expert-tensor-parallel-size {within}" in text["arguments.txt"].splitlines()


def test_tensor_parallelism_of_a_small_network_is_found(tmp_path):
    """It has more norms and routers than layers that are cut."""
    sizes = {"model_type": "mixtral", "hidden_size": 2048, "intermediate_size": 4096}
    sizes |= {"num_attention_heads": 16, "num_hidden_layers": 2, "vocab_size": 8000}
    sizes |= {"num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 1024}
    question = {"cluster": "dgx-a100", "precision": "bf16", "optimizer": "adam"}
    question |= {"gpus": 8, "global_batch_size": 2, "keep": "tp=4,ep=8,zero=1"}
    plan = planner.optimize(small_llama(tmp_path, **sizes), **question)
    of = uniform_degrees(plan)
    assert (of.dp, of.tp, of.ep, of.etp, of.zero, of.others) == (2, 4, 8, 1, 1, ())


def test_stages_of_unequal_blocks_are_written(plans, tmp_path):
    # equal ones took 44 % longer than those of a plan that was exported without a word
    uneven = evaluated("gpt2", "megatron:pp=8", global_batch_size=16)
    text, cannot = files(uneven, "megatron", tmp_path)
    lines = text["arguments.txt"].splitlines()
    assert "--pipeline-model-parallel-layout Et|tt|tt|t|t|tt|tt|tL" in lines
    assert not any("virtual-stages" in line for line in lines)
    assert cannot == ()
    text, _ = files(uneven, "torchtitan", tmp_path)
    stages = tomllib.loads(text["job.toml"])["parallelism"]["module_fqns_per_model_part"]
    assert [len(stage) for stage in stages] == [2, 2, 2, 1, 1, 2, 2, 3]
    assert stages[0][:2] == ["tok_embeddings", "layers.0"]
    assert stages[-1][-3:] == ["layers.11", "norm", "output"]
    text, _ = files(plans["pp"], "megatron", tmp_path)
    assert "layout" not in text["arguments.txt"]


def test_torchtitan_accumulates_what_is_no_pipeline(tmp_path):
    # it takes the global batch by so many of these as make it: all at once ran out of memory
    plan = evaluated("gpt2", "zero2:micro_batches=4", global_batch_size=64)
    text, cannot = files(plan, "torchtitan", tmp_path)
    training = tomllib.loads(text["job.toml"])["training"]
    assert (training["global_batch_size"], training["local_batch_size"]) == (64, 2)
    (sentence,) = cannot
    assert sentence.startswith("step time and memory are those of the runtime zero2")
    assert "plan with --for torchtitan" in sentence


def test_torchtitan_has_no_zero_bubbles_of_one_stage_a_group(tmp_path):
    plan = evaluated("gpt2", "megatron:pp=2,schedule=zero-bubble", global_batch_size=16)
    _, cannot = files(plan, "torchtitan", tmp_path)
    assert cannot == ("the schedule zero-bubble: torchtitan runs gpipe or 1f1b or interleaved",)


def test_state_cut_over_some_of_the_replicas_is_written_for_megatron(plans, tmp_path):
    """It was written as cut over all of them, without a word."""
    text, _ = files(plans["zero1"], "megatron", tmp_path)
    assert "instances" not in text["arguments.txt"]
    layers = {
        name: structs.replace(layer, shard_size=2 if layer.sharded else None)
        for name, layer in plans["zero1"].layers.items()
    }
    some = dataclasses.replace(plans["zero1"], layers=layers)
    text, cannot = files(some, "megatron", tmp_path)
    assert "--num-distributed-optimizer-instances 4" in text["arguments.txt"].splitlines()
    assert not any("replicas" in sentence for sentence in cannot)


def test_what_no_schedule_of_a_framework_has_is_said(plans, tmp_path):
    plan = plans["pp"]
    first, last = plan.stages
    moved = (*first.layers, *last.layers[:2]), last.layers[2:]
    stages = tuple(
        structs.replace(stage, layers=layers)
        for stage, layers in zip(plan.stages, moved, strict=True)
    )
    schedule = structs.replace(plan.schedule, max_in_flight=2)
    edited = dataclasses.replace(plan, stages=stages, schedule=schedule)
    for framework in ("torchtitan", "megatron"):
        _, cannot = files(edited, framework, tmp_path)
        assert any(one.startswith("stages that begin within a block: each of 6") for one in cannot)
        assert any(one.startswith("at most 2 micro-batches in flight") for one in cannot)


def test_options_that_frameworks_do_not_have_by_themselves_are_left_to_set(plans, tmp_path):
    """A plan was tuned to buckets of 10 MiB, and NOTES.md said nothing of them."""
    training = plans["data"].training
    buckets = training.bucket_bytes
    assert buckets != 2.0**20
    tuned = structs.replace(
        training, bucket_bytes=2.0**20, all_reduce="ring", execution="compiled", precision="tf32"
    )
    plan = dataclasses.replace(plans["data"], training=tuned)
    for framework in WRITERS:
        notes = files(plan, framework, tmp_path)[0]["NOTES.md"]
        said = ("gradient buckets: 1 MiB", "all-reduce algorithm: ring", "execution: compiled")
        assert all(f"- {words}\n" in notes for words in (*said, "precision: tf32")), framework
        usual = structs.replace(training, bucket_bytes=25 * 2.0**20)
        plain = dataclasses.replace(plan, training=usual)
        notes = files(plain, framework, tmp_path)[0]["NOTES.md"]
        assert not any(words.partition(":")[0] in notes for words in said), framework


def test_gradients_leave_meanwhile_where_the_runtime_does_so(plans, tmp_path):
    text, _ = files(plans["zero1"], "megatron", tmp_path)
    assert "--overlap-grad-reduce" in text["arguments.txt"]
    late = dataclasses.replace(plans["zero1"], runtime="megatron")
    text, _ = files(late, "megatron", tmp_path)
    assert "--overlap-grad-reduce" not in text["arguments.txt"]


def test_the_distributed_optimizer_is_of_adam_alone(tmp_path):
    question = {"gpus": 4, "cluster": "dgx-h100", "global_batch_size": 32, "optimizer": "sgd"}
    plan = planner.optimize("gpt2", framework="megatron", **question)
    text, cannot = files(plan, "megatron", tmp_path)
    assert "distributed-optimizer" not in text["arguments.txt"]
    assert cannot == ()
    with pytest.raises(ConflictError, match="ZeRO 1 of sgd: Megatron-LM cuts that of adam"):
        planner.optimize("gpt2", framework="megatron", **question, keep="zero=1")


def test_deepspeed_and_accelerate(plans, tmp_path):
    text, cannot = files(plans["fsdp"], "deepspeed", tmp_path)
    document = json.loads(text["deepspeed.json"])
    assert document["zero_optimization"] == {"stage": 3}
    per_rank = document["train_micro_batch_size_per_gpu"] * document["gradient_accumulation_steps"]
    assert per_rank * 8 == document["train_batch_size"] == 32
    assert cannot == ()
    _, cannot = files(plans["tp"], "deepspeed", tmp_path)
    assert any("tensor parallelism of 2 ways" in sentence for sentence in cannot)
    text, cannot = files(plans["fsdp"], "accelerate", tmp_path)
    assert 'distributed_type: "FSDP"' in text["accelerate.yaml"]
    assert "fsdp_reshard_after_forward: true" in text["accelerate.yaml"]
    assert "num_processes: 8" in text["accelerate.yaml"]
    assert cannot == ()


def test_the_global_batch_is_what_whole_samples_make(plans, tmp_path):
    plan = dataclasses.replace(plans["data"], global_batch_size=62)
    for framework, name, said in (
        ("deepspeed", "deepspeed.json", '"train_batch_size": 64'),
        ("megatron", "arguments.txt", "--global-batch-size 64"),
        ("torchtitan", "job.toml", "global_batch_size = 64\nlocal_batch_size = 8\n"),
        ("accelerate", "accelerate.yaml", "num_processes: 8"),
    ):
        text, cannot = files(plan, framework, tmp_path)
        assert said in text[name]
        assert cannot[0] == (
            "a micro-batch of the plan has 7.75 samples a rank on average: with 8 the global "
            "batch is 64 instead of 62"
        )


@pytest.mark.parametrize("framework", ["fsdp2", "jax"])
def test_what_is_sharded_is_said_to_the_end(plans, framework, tmp_path):
    _, cannot = files(plans["zero1"], framework, tmp_path)
    assert any(sentence.endswith("over ranks that hold the same weight") for sentence in cannot)


@pytest.mark.parametrize("framework", ["torchtitan", "megatron", "deepspeed", "accelerate"])
def test_what_is_split_otherwise_is_named(plans, framework, tmp_path):
    plan = plans["mixed"]
    text, cannot = files(plan, framework, tmp_path)
    odd = {
        str(layer.distribution)
        for layer in plan.layers.values()
        if layer.distribution.degree("filter") > 1
    }
    assert odd
    for split in odd:
        assert any(f" split {split}" in sentence for sentence in cannot)
    assert all(f"- {sentence}" in text["NOTES.md"] for sentence in cannot)
    _, cannot = files(plans["spatial"], framework, tmp_path)
    assert any("height" in sentence or "width" in sentence for sentence in cannot)


def test_jax_gets_the_axes_that_cut_each_dim(plans, tmp_path):
    text, cannot = files(plans["mixed"], "jax", tmp_path)
    source = "\n".join(line for line in text["sharded.py"].splitlines() if "import" not in line)
    known: dict = {}
    exec(source, known)
    plan = plans["mixed"]
    sizes = dict(zip(known["MESH_NAMES"], known["MESH_SHAPE"], strict=True))
    assert list(known["MESH_SHAPE"]) == list(plan.mesh.shape)
    for name in plan.layers:
        placed = plan.placements(name)
        for weight in placed.weights:
            spec = known["WEIGHTS"][name][weight.name]
            for extent, local, axes in zip(weight.shape, weight.local_shape, spec, strict=True):
                ways = 1
                for axis in axes or ():
                    ways *= sizes[axis]
                assert -(-extent // ways) == local
    assert any("blocks that are not equal" in s for s in cannot) == any(
        extent % local
        for name in plan.layers
        for tensor in plan.placements(name).tensors
        for extent, local in zip(tensor.shape, tensor.local_shape, strict=True)
    )


def test_pipelines_are_no_single_mesh(plans, tmp_path):
    for framework in ("fsdp2", "jax"):
        with pytest.raises(InputError, match="plans of one stage but this has 2 groups") as caught:
            export_plan(plans["pp"], framework, tmp_path)
        assert str(caught.value).endswith("or use torchtitan or megatron")


def test_no_framework_that_cannot_train_a_network_is_advised_for_its_stages(tmp_path):
    """The scripts of torchtitan and Megatron-LM train stacks of blocks on tokens alone."""
    images = planner.optimize("alexnet", gpus=4, cluster="dgx-a100", keep="pp=2")
    for framework in ("fsdp2", "jax"):
        with pytest.raises(InputError, match=r"or use planner\.torch\.apply$"):
            export_plan(images, framework, tmp_path)


@pytest.mark.parametrize("framework", ["fsdp2", "jax"])
def test_gathers_that_placements_do_not_tell_are_said(plans, framework, tmp_path):
    """Of rings of keys and values, "not expressed" told nothing."""
    ring = dataclasses.replace(plans["tp"], gather_again=True, ring_attention=True)
    _, before = files(plans["tp"], framework, tmp_path)
    _, after = files(ring, framework, tmp_path)
    more = [sentence for sentence in after if sentence not in before]
    assert [sentence.split(":")[0] for sentence in more] == [
        "keys and values that come around a ring",
        "inputs that are gathered again for the backward pass",
    ]


def test_keys_and_values_come_around_a_ring_of_megatron_where_the_plan_has_one(tmp_path):
    """Its context parallelism has a ring by default, of plans that gather, too."""
    ring = evaluated("gpt2", "megatron:cp=2,dp=4", global_batch_size=32)
    assert ring.ring_attention
    text, _ = files(ring, "megatron", tmp_path)
    assert "--cp-comm-type" not in text["arguments.txt"]
    plan = dataclasses.replace(ring, ring_attention=False)
    text, _ = files(plan, "megatron", tmp_path)
    assert "--cp-comm-type all_gather\n" in text["arguments.txt"]


def test_torchtitan_is_told_no_precision_that_it_has_not(plans, tmp_path):
    """Its job file was refused for "float16", which no option switches on."""
    training = structs.replace(plans["fsdp"].training, precision="fp16")
    plan = dataclasses.replace(plans["fsdp"], training=training)
    text, cannot = files(plan, "torchtitan", tmp_path)
    assert tomllib.loads(text["job.toml"])["training"]["mixed_precision_param"] == "bfloat16"
    said = "the precision fp16: of the planner's, torchtitan has fp32, tf32, bf16"
    assert cannot == (said,)


def test_accelerate_shards_layers_of_images_one_by_one(plans, tmp_path):
    """It found no blocks in them, and gathered all weights at once."""
    images = evaluated("resnet18", "fsdp", global_batch_size=64, optimizer="sgd")
    text, _ = files(images, "accelerate", tmp_path)
    assert '  fsdp_auto_wrap_policy: "SIZE_BASED_WRAP"\n' in text["accelerate.yaml"]
    assert "  fsdp_min_num_params: 0\n" in text["accelerate.yaml"]
    text, _ = files(plans["fsdp"], "accelerate", tmp_path)
    assert '"TRANSFORMER_BASED_WRAP"' in text["accelerate.yaml"]


def test_gpus_without_work_are_said_where_a_file_tells_ranks(plans, tmp_path):
    text, _ = files(dataclasses.replace(plans["fsdp"], idle_gpus=8), "accelerate", tmp_path)
    assert "- ranks: 8; 8 more GPUs would have no work\n" in text["NOTES.md"]


def test_an_unknown_framework_is_said_before_a_folder_is_asked_for():
    result = CliRunner().invoke(planner_command, ["export", "plan.json", "--to", "bogus"])
    assert result.exit_code == 2
    assert "must be one of torchtitan, megatron" in result.stderr


def test_the_command_writes_files_and_says_what_they_do_not(plans, tmp_path):
    path = tmp_path / "plan.json"
    plans["mixed"].save(path)
    for framework in WRITERS:
        out = tmp_path / framework
        words = ["export", str(path), "--to", framework, "-o", str(out)]
        done = CliRunner().invoke(planner_command, words)
        assert done.exit_code == 0, done.output
        assert (out / "NOTES.md").exists()
        assert f"written to {out / 'NOTES.md'}" in done.output
    done = CliRunner().invoke(
        planner_command, ["export", str(path), "--to", "keras", "-o", str(tmp_path / "x")]
    )
    assert "must be one of torchtitan, megatron" in done.output + str(done.exception)
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(
        planner_command, ["export", str(path), "--to", "jax", "-o", str(tmp_path / "file")]
    )
    assert "cannot be made" in done.output + str(done.exception)


def test_exporting_overwrites_no_plan_and_writes_all_files_or_none(plans, tmp_path):
    path = tmp_path / "deepspeed.json"
    plans["data"].save(path)
    before = path.read_text()
    words = ["export", str(path), "--to", "deepspeed", "-o", str(tmp_path)]
    done = CliRunner().invoke(planner_command, words)
    assert "is read by this command, too" in done.output + str(done.exception)
    assert path.read_text() == before
    (tmp_path / "out" / "NOTES.md").mkdir(parents=True)
    with pytest.raises(InputError, match="it is a folder"):
        export_plan(plans["data"], "deepspeed", tmp_path / "out")
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["NOTES.md"]


FOR = [("alexnet", name, {"gpus": 8, "global_batch_size": 256}) for name in FRAMEWORKS]
FOR += [("gpt2", name, {"gpus": 8, "global_batch_size": 32}) for name in FRAMEWORKS]
FOR += [
    ("resnet50", "deepspeed", {"gpus": 4, "global_batch_size": 256}),
    ("vgg16", "jax", {"gpus": 8, "global_batch_size": 16}),
    ("vgg16", "fsdp2", {"gpus": 8, "global_batch_size": 16}),
    ("mesh-1k", "jax", {"gpus": 4, "global_batch_size": 2}),
    # three hosts: inputs with 256 channels of a layer that has 9,216
    ("alexnet", "jax", {"gpus": 12, "cluster": "abci", "global_batch_size": 12}),
    # six hosts: samples by twos and channels by threes, and the other way around
    ("alexnet", "fsdp2", {"gpus": 24, "cluster": "abci", "global_batch_size": 6}),
    ("alexnet", "accelerate", {"gpus": 4, "global_batch_size": 4096, "memory": "4 GiB"}),
    ("gpt2", "megatron", {"gpus": 8, "global_batch_size": 32, "keep": "tp=2,pp=2"}),
    ("gpt2", "torchtitan", {"gpus": 8, "global_batch_size": 32, "keep": "tp=2,zero=3"}),
]


@pytest.mark.slow
def test_stages_of_images_and_of_two_stacks_are_not_written_as_those_of_one_on_tokens(tmp_path):
    question = {"gpus": 4, "cluster": "dgx-a100", "global_batch_size": 8}
    for model in ("vit-b", "t5-11b"):
        plan = planner.evaluate(model, strategy="megatron:pp=2,tp=2", **question)
        for framework in ("torchtitan", "megatron"):
            _, cannot = files(plan, framework, tmp_path)
            assert any("one stack of blocks on tokens" in sentence for sentence in cannot)
            with pytest.raises(ConflictError, match="one stack of blocks on tokens"):
                planner.optimize(model, framework=framework, keep="pp=2", **question)


def test_layers_that_do_not_follow_each_other_are_named_one_by_one(tmp_path):
    question = {"gpus": 8, "cluster": "lassen", "global_batch_size": 256}
    plan = planner.optimize("alexnet", **question)
    _, cannot = files(plan, "megatron", tmp_path)
    apart = [sentence for sentence in cannot if "layers (" in sentence]
    assert apart
    for sentence in apart:
        names = sentence.partition("(")[2].partition(")")[0].split(", ")
        assert set(names) - {"..."} <= set(plan.layers)
        assert len(names) == min(int(sentence.split()[0]), MOST_NAMED)


@pytest.mark.ci_cases(5)
@pytest.mark.parametrize(("model", "framework", "question"), FOR)
def test_a_plan_for_a_framework_is_one_that_it_can_run(model, framework, question, tmp_path):
    question = {"cluster": "dgx-a100", **question}
    plan = planner.optimize(model, framework=framework, **question)
    text, cannot = files(plan, framework, tmp_path)
    assert cannot == ()
    assert "Nothing." in text["NOTES.md"]
    # what no file says is left to whoever starts it
    left = text["NOTES.md"].partition("are to set")[2]
    assert (f"- ranks: {plan.gpus:,}" in left) == (framework != "accelerate")
    assert ("- optimizer: " in left) == (framework != "megatron")
    # of these gpt2 alone is a stack of blocks on tokens
    assert ("- network: " in left) == (framework in ("torchtitan", "megatron") and model != "gpt2")
    assert ("- global batch: " in left) == (framework in ("accelerate", "fsdp2", "jax"))
    if model == "vgg16":
        assert len({str(layer.distribution) for layer in plan.layers.values()}) > 1
    if framework == "deepspeed":
        assert {dim for layer in plan.layers.values() for dim in layer.degrees} <= {"sample"}


@pytest.mark.slow
def test_a_plan_that_needs_several_meshes_after_all_says_so(monkeypatch):
    search, calls = splits_alone._plan_or_error, []

    def only_without_a_mesh(*question):
        calls.append(question)
        return search(*question) if len(calls) == 1 else stopped_error("time limit")

    monkeypatch.setattr(splits_alone, "_plan_or_error", only_without_a_mesh)
    question = {"gpus": 24, "cluster": "abci", "global_batch_size": 6, "framework": "fsdp2"}
    plan = planner.optimize("alexnet", **question)
    assert len(calls) == 3  # six hosts have two orders of their axes
    assert any("the layers need 2 meshes" in note for note in plan.fallbacks)
    assert plan.search.stopped_by == "time limit"


@pytest.mark.slow
def test_frameworks_that_need_equal_blocks_get_them():
    question = {"gpus": 24, "cluster": "dgx-a100", "global_batch_size": 24}
    plan = planner.optimize("alexnet", framework="jax", **question)
    for name in plan.layers:
        for tensor in plan.placements(name).tensors:
            for extent, local in zip(tensor.shape, tensor.local_shape, strict=True):
                assert extent % local == 0


@pytest.mark.parametrize(
    ("model", "framework", "more", "words"),
    [
        ("gpt2", "deepspeed", {"keep": "tp=2"}, "--keep tp=2 (tensor parallelism of 2 ways"),
        ("gpt2", "accelerate", {"keep": "zero=1"}, "--keep zero=1 (ZeRO 1: FSDP cuts"),
        ("gpt2", "megatron", {"keep": "schedule=gpipe"}, "runs 1f1b or interleaved"),
        ("vgg16", "megatron", {"keep": "tp=2"}, "one stack of blocks on tokens"),
        ("gpt2", "jax", {"keep": "pp=2"}, "pipeline parallelism of 2 ways"),
        ("gpt2", "jax", {"keep": "dp=4"}, "how each layer is split"),
        ("gpt2", "fsdp2", {"forbid": "tensor"}, "how each layer is split"),
        ("gpt2", "torchtitan", {"optimizer": "sgd"}, "torchtitan has adam"),
        ("gpt2", "keras", {}, "must be one of torchtitan"),
        ("gpt2", "deepspeed", {"keep": "dp=16"}, "leaves nothing"),
    ],
)
def test_what_contradicts_a_framework_is_said(model, framework, more, words):
    question = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 32}
    with pytest.raises(InputError) as error:
        planner.optimize(model, framework=framework, **question, **more)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
