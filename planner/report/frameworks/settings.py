"""Plans as settings of frameworks that have one degree for each kind of parallelism."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from costmodels.units import format_items
from planner.models.files import toml_rows
from planner.plan import Plan
from planner.report.frameworks.uniform import (
    UniformDegrees,
    attends,
    blocks_of_stages,
    uniform_degrees,
    way_of_plan,
)
from planner.request.frameworks import FRAMEWORKS

# What a framework writes, and what of the plan that does not say.
Written = tuple[Mapping[str, str], tuple[str, ...]]

# Activation checkpointing of torchtitan, by what is computed again.
_CHECKPOINTS: dict[str, dict[str, object]] = {
    "none": {"mode": "none"},
    "selective": {"mode": "none"},
    "operations": {"mode": "selective", "selective_ac_option": "op"},
    "full": {"mode": "full"},
}
# What torchtitan computes in; it reads no other name.
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
_REDUCED = ("bf16", "fp16")


def _left_out(plan: Plan, of: UniformDegrees, framework: str) -> tuple[str, ...]:
    """What of a plan one degree for each kind, and the framework, do not say."""
    lacks = FRAMEWORKS[framework].lacks(way_of_plan(plan, of))
    return (*of.others, *_uneven(plan, of), *_of_stages(plan), *lacks)


def _of_stages(plan: Plan) -> Iterator[str]:
    """What of stages no framework is told."""
    stages = blocks_of_stages(plan)
    times = Counter(block for blocks in stages for block in blocks)
    cut = [str(block) for block, count in times.items() if count > 1]
    if cut:
        yield (
            f"stages that begin within a block: each of {', '.join(cut)} is written to all the "
            "stages that have a part of it"
        )
    most = plan.schedule.max_in_flight
    if most is not None and len(plan.stages) > 1:
        yield (
            f"at most {format_items(most, 'micro-batch')} in flight: the schedules of frameworks "
            "have limits of their own"
        )


def _uneven(plan: Plan, of: UniformDegrees) -> Iterator[str]:
    """That whole samples make another global batch."""
    if of.global_batch != plan.global_batch_size:
        yield (
            f"a micro-batch of the plan has {plan.global_batch_size / of.parts:g} samples a rank "
            f"on average: with {of.micro_batch:,} the global batch is {of.global_batch:,} "
            f"instead of {plan.global_batch_size:,}"
        )


def torchtitan(plan: Plan) -> Written:
    """Tables of a job file of torchtitan, up to 0.2; later ones take the same names as options."""
    of = uniform_degrees(plan)
    shard = of.shard_size // of.cp if of.zero >= 2 else 1
    schedules = FRAMEWORKS["torchtitan"].schedules
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": of.dp // max(shard, 1),
        "data_parallel_shard_degree": max(shard, 1),
        "fsdp_reshard_after_forward": "always" if of.zero == 3 else "never",
        "tensor_parallel_degree": of.tp,
        "context_parallel_degree": of.cp,
        # keys and values go around the ranks; by default it gathers all of them at once
        **({"context_parallel_rotate_method": "alltoall"} if plan.ring_attention else {}),
        "expert_parallel_degree": of.ep,
        # theirs is 1 by default
        **({"expert_tensor_parallel_degree": of.etp} if of.ep > 1 else {}),
        "pipeline_parallel_degree": of.pp,
        "pipeline_parallel_schedule": schedules.get(plan.schedule.kind, "1F1B"),
        "pipeline_parallel_microbatch_size": of.micro_batch,
    }
    stages = [[f"layers.{block}" for block in blocks] for blocks in blocks_of_stages(plan)]
    if len(stages) > 1:
        stages[0].insert(0, "tok_embeddings")
        stages[-1] += ["norm", "output"]
        parallelism["module_fqns_per_model_part"] = stages
    training: dict[str, object] = {
        "global_batch_size": of.global_batch,
        # pipelines cut that into micro-batches; without one as many of it make a step as are needed
        "local_batch_size": of.global_batch // of.dp if of.pp > 1 else of.micro_batch,
        "mixed_precision_param": _DTYPES.get(plan.training.precision, "bfloat16"),
        **({"seq_len": plan.input_shape["sequence"]} if "sequence" in plan.input_shape else {}),
    }
    tables: dict[str, dict[str, object]] = {
        "parallelism": parallelism,
        "training": training,
        "activation_checkpoint": _CHECKPOINTS.get(of.recompute, _CHECKPOINTS["none"]),
    }
    text = "\n".join(f"[{name}]\n{toml_rows(rows)}" for name, rows in tables.items())
    return {"job.toml": text}, _left_out(plan, of, "torchtitan")


def megatron(plan: Plan) -> Written:
    """Arguments of Megatron-LM's pretraining scripts."""
    of = uniform_degrees(plan)
    rows: list[tuple[str, object]] = [
        ("tensor-model-parallel-size", of.tp),
        ("pipeline-model-parallel-size", of.pp),
        ("context-parallel-size", of.cp),
        ("micro-batch-size", of.micro_batch),
        ("global-batch-size", of.global_batch),
        ("optimizer", plan.training.optimizer),
    ]
    if of.ep > 1:
        rows.append(("expert-model-parallel-size", of.ep))
        rows.append(("expert-tensor-parallel-size", of.etp))
    if of.cp > 1 and not plan.ring_attention:
        # by default keys and values go around a ring
        rows.append(("cp-comm-type", "all_gather"))
    stages = [len(blocks) for blocks in blocks_of_stages(plan)]
    if len(set(stages)) > 1:
        # neither quotes nor stars, which shells take otherwise in a file than on a line
        layout = "|".join("t" * count for count in stages)
        rows.append(("pipeline-model-parallel-layout", f"E{layout}L"))
    elif of.chunks > 1:
        rows.append(("num-virtual-stages-per-pipeline-rank", of.chunks))
    if "sequence" in plan.input_shape:
        rows.append(("seq-length", plan.input_shape["sequence"]))
    switches = [plan.training.precision] if plan.training.precision in _REDUCED else []
    switches += ["sequence-parallel"] if of.sequence_parallel else []
    switches += ["use-distributed-optimizer"] if of.zero else []
    # what the usual runtimes do, and not the one that is called after it
    switches += ["overlap-grad-reduce"] if plan.runtime != "megatron" else []
    if of.zero and (ranks := of.dp * of.cp) % of.shard_size == 0 and ranks > of.shard_size:
        rows.append(("num-distributed-optimizer-instances", ranks // of.shard_size))
    if of.recompute in ("selective", "full"):
        rows.append(("recompute-granularity", of.recompute))
    if of.recompute == "full":
        rows += [("recompute-method", "uniform"), ("recompute-num-layers", 1)]
    lines = [f"--{name} {value}" for name, value in rows] + [f"--{name}" for name in switches]
    return {"arguments.txt": "\n".join(lines) + "\n"}, _left_out(plan, of, "megatron")


def deepspeed(plan: Plan) -> Written:
    """A configuration of DeepSpeed."""
    of = uniform_degrees(plan)
    precision = plan.training.precision
    document = {
        "train_batch_size": of.global_batch,
        "train_micro_batch_size_per_gpu": of.micro_batch,
        "gradient_accumulation_steps": plan.schedule.micro_batches,
        "zero_optimization": {"stage": of.zero},
        **({precision: {"enabled": True}} if precision in _REDUCED else {}),
    }
    text = json.dumps(document, indent=1) + "\n"
    return {"deepspeed.json": text}, _left_out(plan, of, "deepspeed")


def accelerate(plan: Plan) -> Written:
    """A configuration of accelerate with FSDP."""
    of = uniform_degrees(plan)
    precision = plan.training.precision
    hosts = max(1, plan.gpus // _gpus_of_host(plan))
    rows: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if of.zero >= 2 else "MULTI_GPU",
        "mixed_precision": precision if precision in _REDUCED else "no",
        "num_machines": hosts,
        "num_processes": plan.gpus,
        "use_cpu": False,
    }
    # layers of what has no blocks are gathered one by one, and not the whole network at once
    wrapped: dict[str, object] = (
        {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        if attends(plan)
        else {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 0}
    )
    inner: dict[str, object] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": of.zero == 3,
        **wrapped,
        "fsdp_activation_checkpointing": of.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    lines = [f"{name}: {_yaml(value)}" for name, value in rows.items()]
    if of.zero >= 2:
        lines += ["fsdp_config:", *(f"  {name}: {_yaml(value)}" for name, value in inner.items())]
    text = "\n".join(lines) + "\n"
    return {"accelerate.yaml": text}, _left_out(plan, of, "accelerate")


def _gpus_of_host(plan: Plan) -> int:
    size = 1
    for name, members in zip(plan.level_names, plan.shape, strict=True):
        size *= members
        if name == plan.host_level:
            break
    return size


def _yaml(value: object) -> str:
    return json.dumps(value)
