"""Plans as settings of frameworks that have one degree for each kind of parallelism."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from planner.models.files import toml_rows
from planner.plan import Plan
from planner.report.frameworks.uniform import UniformDegrees, uniform_degrees

# What a framework writes, and what of the plan that does not say.
Written = tuple[Mapping[str, str], tuple[str, ...]]

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}
# Activation checkpointing of torchtitan, by what is computed again.
_CHECKPOINTS: dict[str, dict[str, object]] = {
    "none": {"mode": "none"},
    "selective": {"mode": "none"},
    "operations": {"mode": "selective", "selective_ac_option": "op"},
    "full": {"mode": "full"},
}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}


def _whole(value: float) -> int:
    return max(1, round(value))


def _uneven(of: UniformDegrees) -> Iterator[str]:
    yield from of.others
    if of.micro_batch != _whole(of.micro_batch):
        yield (
            f"a micro-batch has {of.micro_batch:g} samples a rank; whole ones are written, so that "
            "the global batch is another"
        )


def torchtitan(plan: Plan) -> Written:
    """Tables of a torchtitan job file."""
    of = uniform_degrees(plan)
    shard = of.shard_size // of.cp if of.zero >= 2 else 1
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": of.dp // max(shard, 1),
        "data_parallel_shard_degree": max(shard, 1),
        "fsdp_reshard_after_forward": "always" if of.zero == 3 else "never",
        "tensor_parallel_degree": of.tp,
        "context_parallel_degree": of.cp,
        "expert_parallel_degree": of.ep,
        "pipeline_parallel_degree": of.pp,
        "pipeline_parallel_schedule": _SCHEDULES[plan.schedule.kind],
        "pipeline_parallel_microbatch_size": _whole(of.micro_batch),
    }
    training: dict[str, object] = {
        "global_batch_size": plan.global_batch_size,
        "local_batch_size": _whole(plan.global_batch_size / of.dp),
        "mixed_precision_param": _DTYPES[plan.training.precision],
        **({"seq_len": plan.input_shape["sequence"]} if "sequence" in plan.input_shape else {}),
    }
    tables: dict[str, dict[str, object]] = {
        "parallelism": parallelism,
        "training": training,
        "activation_checkpoint": _CHECKPOINTS[of.recompute],
    }
    text = "\n".join(f"[{name}]\n{toml_rows(rows)}" for name, rows in tables.items())
    cannot = list(_uneven(of))
    if of.recompute == "selective":
        cannot.append('attention alone computed again: torchtitan\'s "selective" keeps attention')
    if of.zero == 1:
        cannot.append("ZeRO 1: torchtitan cuts gradients with the state (ZeRO 2) or nothing")
    if plan.training.optimizer != "adam":
        cannot.append("the optimizer sgd: torchtitan has Adam and AdamW")
    return {"job.toml": text}, tuple(cannot)


def megatron(plan: Plan) -> Written:
    """Arguments of Megatron-LM's pretraining scripts."""
    of = uniform_degrees(plan)
    rows: list[tuple[str, object]] = [
        ("tensor-model-parallel-size", of.tp),
        ("pipeline-model-parallel-size", of.pp),
        ("context-parallel-size", of.cp),
        ("micro-batch-size", _whole(of.micro_batch)),
        ("global-batch-size", plan.global_batch_size),
        ("optimizer", plan.training.optimizer),
    ]
    rows += [("expert-model-parallel-size", of.ep)] if of.ep > 1 else []
    rows += [("num-virtual-stages-per-pipeline-rank", of.chunks)] if of.chunks > 1 else []
    if "sequence" in plan.input_shape:
        rows.append(("seq-length", plan.input_shape["sequence"]))
    switches = [plan.training.precision] if plan.training.precision in ("bf16", "fp16") else []
    switches += ["sequence-parallel"] if of.sequence_parallel else []
    switches += ["use-distributed-optimizer"] if of.zero else []
    if of.recompute in ("selective", "full"):
        rows.append(("recompute-granularity", of.recompute))
    lines = [f"--{name} {value}" for name, value in rows] + [f"--{name}" for name in switches]
    cannot = list(_uneven(of))
    if of.zero > 1:
        cannot.append(f"ZeRO {of.zero}: the distributed optimizer is ZeRO 1")
    if of.pp > 1 and plan.schedule.kind in ("gpipe", "zero-bubble"):
        cannot.append(f"the schedule {plan.schedule.kind}: Megatron-LM runs 1f1b or interleaved")
    if of.recompute == "operations":
        cannot.append("what is computed again (operations): Megatron-LM has modules of its own")
    if of.recompute == "full":
        cannot.append("which blocks are computed again: add --recompute-method and -num-layers")
    return {"arguments.txt": "\n".join(lines) + "\n"}, tuple(cannot)


def _not_of_data(of: UniformDegrees, framework: str) -> Iterator[str]:
    """What a configuration of data parallelism alone leaves to the model."""
    kinds = {"tensor": of.tp, "context": of.cp, "expert": of.ep, "pipeline": of.pp}
    for kind, ways in kinds.items():
        if ways > 1:
            yield f"{kind} parallelism of {ways} ways: {framework} leaves it to the model"
    if of.recompute != "none":
        yield f"what is computed again ({of.recompute}): {framework} leaves it to the model"


def deepspeed(plan: Plan) -> Written:
    """A configuration of DeepSpeed."""
    of = uniform_degrees(plan)
    precision = plan.training.precision
    document = {
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": _whole(of.micro_batch),
        "gradient_accumulation_steps": plan.schedule.micro_batches,
        "zero_optimization": {"stage": of.zero},
        **({precision: {"enabled": True}} if precision in ("bf16", "fp16") else {}),
    }
    cannot = [*_uneven(of), *_not_of_data(of, "DeepSpeed")]
    if of.zero and of.shard_size != of.dp * of.cp:
        cannot.append(f"weights cut over {of.shard_size} ranks: ZeRO cuts them over all")
    return {"deepspeed.json": json.dumps(document, indent=1) + "\n"}, tuple(cannot)


def accelerate(plan: Plan) -> Written:
    """A configuration of accelerate with FSDP."""
    of = uniform_degrees(plan)
    precision = plan.training.precision
    hosts = max(1, plan.gpus // _gpus_of_host(plan))
    rows: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if of.zero >= 2 else "MULTI_GPU",
        "mixed_precision": precision if precision in ("bf16", "fp16") else "no",
        "num_machines": hosts,
        "num_processes": plan.gpus,
        "use_cpu": False,
    }
    inner: dict[str, object] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": of.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": of.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    lines = [f"{name}: {_yaml(value)}" for name, value in rows.items()]
    if of.zero >= 2:
        lines += ["fsdp_config:", *(f"  {name}: {_yaml(value)}" for name, value in inner.items())]
    cannot = [*_uneven(of), *(s for s in _not_of_data(of, "accelerate") if "(full)" not in s)]
    if of.zero == 1:
        cannot.append("ZeRO 1: FSDP cuts gradients with the state (ZeRO 2) or nothing")
    if of.zero and of.shard_size != of.dp * of.cp:
        cannot.append(f"weights cut over {of.shard_size} ranks: this file cuts them over all")
    if plan.schedule.micro_batches > 1:
        cannot.append(
            f"{plan.schedule.micro_batches} micro-batches: give gradient_accumulation_steps to the "
            "Accelerator"
        )
    return {"accelerate.yaml": "\n".join(lines) + "\n"}, tuple(cannot)


def _gpus_of_host(plan: Plan) -> int:
    size = 1
    for name, members in zip(plan.level_names, plan.shape, strict=True):
        size *= members
        if name == plan.host_level:
            break
    return size


def _yaml(value: object) -> str:
    return json.dumps(value)
