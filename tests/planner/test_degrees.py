"""Strategies by degrees: what the command line and Python take, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import planner
from costmodels.errors import InputError
from costmodels.simulation import load_runtime
from planner import Degrees
from planner.cli.command import planner_command
from planner.request.named_degrees import named_degrees

CHOSEN = "micro-batch size of 1, of the samples of a replica (--micro-batch-size)"
QUESTION = {"gpus": 16, "cluster": "dgx-a100", "global_batch_size": 16, "input_size": 256}


def run(words: str):
    return CliRunner().invoke(planner_command, ["simulate", *words.split()])


def test_degrees_are_keywords_of_their_own():
    by_keywords = planner.simulate("gpt2", tp=2, pp=2, micro_batch_size=1, recompute=4, **QUESTION)
    degrees = Degrees(tp=2, pp=2, micro_batches=4, recompute="4")
    whole = planner.simulate("gpt2", degrees=degrees, **QUESTION)
    assert by_keywords.step_time == whole.step_time
    assert by_keywords.subject.strategy == whole.subject.strategy
    with pytest.raises(InputError, match="as a whole and one by one"):
        planner.simulate("gpt2", degrees=degrees, dp=4, **QUESTION)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(True, "full"), (False, "none"), ("full", "full"), ("3", 3), (2, 2), ("selective",) * 2],
)
def test_recomputation_is_said_in_several_ways(given, kept):
    assert Degrees(recompute=given).recompute == kept


def test_the_option_alone_means_full_recomputation():
    asked = "gpt2 --gpus 8 --global-batch-size 8 --seq-len 128 --tp 2 --json"
    alone, full, none = (
        run(f"{asked} {more}").output for more in ("--recompute", "--recompute full", "")
    )
    assert alone == full != none


def test_a_micro_batch_size_says_how_many_micro_batches_there_are():
    found = planner.simulate("gpt2", tp=2, pp=2, micro_batch_size=2, **QUESTION)
    assert found.subject.strategy.schedule.micro_batches == 16 // (4 * 2)
    with pytest.raises(InputError, match=r"4 x 3 = 12, but is 16; 12 or 24 would do"):
        planner.simulate("gpt2", tp=2, pp=2, micro_batch_size=3, **QUESTION)


def test_chunks_are_interleaved_unless_said_otherwise():
    assert Degrees(pp=2, chunks=2).schedule_kind == "interleaved"
    assert Degrees().schedule_kind == "1f1b"


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        ("megatron:tp=4,dp=4", Degrees(tp=4, dp=4)),
        ("megatron:tp=2,sequence-parallel", Degrees(tp=2, sequence_parallel=True)),
        ("megatron:tp=2,recompute=selective", Degrees(tp=2, recompute="selective")),
        ("fsdp:tp=2", Degrees(fsdp=True, tp=2)),
        ("zero1", Degrees(zero=1)),
        ("data", None),
    ],
)
def test_usual_strategies_have_names(text, degrees):
    assert named_degrees(text) == degrees


def test_a_named_strategy_is_what_its_degrees_are():
    named = planner.simulate("gpt2", strategy="megatron:tp=4,dp=4", **QUESTION)
    assert named.step_time == planner.simulate("gpt2", tp=4, **QUESTION).step_time
    costed = planner.evaluate("gpt2", strategy="megatron:tp=4,dp=4", **QUESTION)
    assert costed.layers["h.0.mlp.c_fc"].degrees["filter"] == (4, 1)
    assert planner.simulate("gpt2", strategy="fsdp", **QUESTION).runtime.name == "fsdp"
    assert planner.simulate("gpt2", fsdp=True, **QUESTION).runtime.name == "fsdp"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gpt2 --tp 8", "12 heads of 'h.0.attn'.*there are 8;.*1, 2, 3, 4, 6, 12"),
        ("gpt2 --pp 16", "has 12 blocks.*16 stages"),
        ("gpt2 --chunks 3", "several groups of GPUs, but --pp is 1; raise it"),
        ("mixtral-8x7b --ep 16 --dp 16", "8 experts.*ep of 16.*1, 2, 4, 8"),
        ("gpt2 --ep 2", "must have experts"),
        ("resnet50 --cp 2", "has no attention"),
        ("gpt2 --recompute half", "what is computed again.*'half'"),
        ("gpt2 --zero 4", "from 0 to 3"),
        ("gpt2 --offload disk", "activations, weights, optimizer"),
        ("gpt2 --tp 2 --global-batch-size 100", "multiple of dp, 8, but is 100; 96 or 104"),
        ("gpt2 --tp 2 --global-batch-size 100 --micro-batches 3", "8 x 3 = 24.*96 or 120"),
        ("gpt2 --axes tp,dp", "without cp, ep, pp"),
        ("gpt2 --cp-kind star", "ring, all-to-all"),
        ("gpt2 --shard-size 2", "--zero or --fsdp"),
        ("gpt2 --fsdp --zero 1", "--fsdp is --zero 3"),
        ("gpt2 --micro-batches 2 --micro-batch-size 2", "either"),
        ("gpt2 --strategy megatron:tp", "whole number"),
        ("gpt2 --strategy megatron:ways=2", "'ways=2'"),
        ("gpt2 --strategy megatron:tp=2 --tp 2", "either a strategy or degrees"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(words, said):
    result = run(f"{words} --gpus 16")
    assert result.exit_code != 0
    assert len(result.stderr.strip().splitlines()) == 1
    assert re.search(said, result.stderr), result.stderr


def test_axes_take_the_levels_of_the_cluster_in_their_order():
    def split(**more: object) -> dict[str, tuple[int, ...]]:
        found = planner.simulate("gpt2", tp=4, cp=2, sequence_parallel=True, **QUESTION, **more)
        return dict(found.subject.distributions["h.0.mlp.c_fc"].degrees)

    assert split() == {"sample": (1, 2), "sequence": (2, 1), "filter": (4, 1)}
    inside_out = split(axes="dp,cp,tp,ep,pp")
    assert inside_out == {"sample": (2, 1), "sequence": (2, 1), "filter": (2, 2)}
    experts = {"ep": 2, "gpus": 16, "cluster": "dgx-a100", "global_batch_size": 16}
    usual, around = (
        planner.simulate("mixtral-8x7b", input_size=256, axes=axes, **experts).subject
        for axes in (("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "dp", "ep", "pp"))
    )
    assert usual.distributions["layers.0.moe.up"].degrees["expert"] == (2, 1)
    assert around.distributions["layers.0.moe.up"].degrees["expert"] == (1, 2)


def test_pp_may_lie_inside_of_axes_of_one_way():
    asked = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 64}
    usual = planner.simulate("gpt2", tp=4, pp=2, **asked)
    inside = planner.simulate("gpt2", tp=4, pp=2, axes="tp,pp,dp,cp,ep", **asked)
    assert inside.step_time == usual.step_time
    # without a pipeline its place says nothing
    assert planner.simulate("gpt2", tp=4, axes="pp,tp,cp,ep,dp", **asked).step_time > 0.0
    with pytest.raises(InputError, match=r"dp of 4 ways lies outside of pp.*tp,pp,cp,ep,dp"):
        planner.simulate("gpt2", pp=2, axes="tp,pp,cp,ep,dp", **asked)


def test_stages_have_the_blocks_that_are_asked_for():
    def blocks(**more: object) -> list[int]:
        found = planner.simulate("gpt2", pp=4, micro_batches=4, **QUESTION, **more)
        return [
            len({n.split(".")[1] for n in s.layers if n[:2] == "h."})
            for s in found.subject.strategy.stages
        ]

    assert blocks() == [3, 3, 3, 3]
    assert blocks(stage_blocks="4,4,3,1") == [4, 4, 3, 1]
    assert blocks(stage_blocks=(4, 4, 4, 0)) == [4, 4, 4, 0]
    # the head is work, too
    equal, balanced = (
        planner.simulate(
            "gpt2",
            gpus=2,
            cluster="proteus-hc2",
            global_batch_size=8,
            pp=2,
            micro_batches=4,
            stage_blocks=rule,
        ).step_time
        for rule in ("equal", "balanced")
    )
    assert balanced < equal
    with pytest.raises(InputError, match=r"12 blocks.*4 stages.*4, 4, 4; correct"):
        blocks(stage_blocks="4,4,4")


def test_reductions_run_beside_the_backward_pass_of_weights_where_a_runtime_says_so():
    question = {"tp": 4, "sequence_parallel": True, "launch_time": 0.0, **QUESTION}
    before, beside = (
        planner.simulate("gpt2", runtime=replace(load_runtime("ddp"), weight_beside=w), **question)
        for w in (False, True)
    )
    (one,), (other,) = before.simulated.roles, beside.simulated.roles
    assert other.exposed < 0.9 * one.exposed
    assert other.busy["feature"] == pytest.approx(one.busy["feature"])
    assert other.received == pytest.approx(one.received)


def test_hybrid_sharding_holds_more_and_gathers_within_a_host():
    whole, inner = (
        planner.simulate("gpt2", fsdp=True, shard_size=size, **QUESTION) for size in (None, 8)
    )
    (all_of_it,), (part,) = whole.simulated.roles, inner.simulated.roles
    ratio = part.memory.holders["optimizer state"] / all_of_it.memory.holders["optimizer state"]
    assert ratio == pytest.approx(2.0)
    kinds = {task.kind for task in inner.simulated.task_times.graph.tasks if task.queue == 2}
    assert kinds == {"reduce_scatter", "all_reduce"}
    # a communicator of those that share weights, and one of those that hold the same part
    more = part.memory.holders["reserved"] - all_of_it.memory.holders["reserved"]
    assert more >= 392 * 2**20
    assert inner.simulated.roles[0].busy["parameter"] < whole.simulated.roles[0].busy["parameter"]


def test_sharding_of_zero_overrules_the_runtime():
    found = planner.simulate("gpt2", zero=0, runtime="fsdp", **QUESTION)
    plain = planner.simulate("gpt2", **QUESTION)
    states = [s.simulated.roles[0].memory.holders["optimizer state"] for s in (found, plain)]
    assert states[0] == states[1]


def test_what_goes_to_experts_and_back_is_an_all_to_all():
    step = planner.simulate(
        "mixtral-8x7b",
        gpus=16,
        cluster="dgx-a100",
        global_batch_size=16,
        input_size=256,
        tp=2,
        ep=8,
        runtime="ddp",
    )
    tasks = step.simulated.task_times.graph.tasks
    kinds = {
        task.kind for task in tasks if task.name.startswith("layers.3.moe") and task.transfer > 0.0
    }
    assert "all_to_all" in kinds
    assert "send_recv" not in kinds


@pytest.mark.parametrize(
    ("words", "micro_batches"),
    [
        ("mixtral-8x7b --gpus 64 --ep 8 --tp 2 --pp 2", 4),
        ("llama3-70b --cluster dgx-h100 --gpus 256 --tp 8 --cp 2 --fsdp --seq-len 32768", 16),
        ("gpt2 --gpus 8 --fsdp --global-batch-size 32", 1),
        ("resnet50 --gpus 8 --pp 2 --global-batch-size 32", 1),
        ("gpt2 --gpus 8 --dp 8 --global-batch-size 32", 1),
        ("gpt2 --gpus 8 --pp 2 --micro-batches 2 --global-batch-size 32", 2),
    ],
)
def test_micro_batches_that_nobody_asked_for(words, micro_batches):
    document = json.loads(run(f"{words} --json").output)
    assert document["micro_batches"] == micro_batches
    said = [line for line in document["notes"] if "micro-batch size" in line]
    chosen = micro_batches > 1 and "--micro-batches" not in words
    assert said == ([CHOSEN] if chosen else [])


def test_evaluating_takes_the_same_micro_batches():
    asked = {"gpus": 8, "global_batch_size": 32, "input_size": 256}
    plan = planner.evaluate("gpt2", strategy="megatron:pp=2", **asked)
    assert plan.schedule.micro_batches == 32 // 4
    assert CHOSEN in plan.defaults
    assert plan.step_time == planner.simulate("gpt2", pp=2, **asked).step_time


@pytest.mark.slow
def test_what_would_make_it_fit_is_said(tmp_path):
    words = "llama3-70b --cluster dgx-h100 --gpus 256 --tp 8 --cp 2 --fsdp --seq-len 32768"
    trace = tmp_path / "step.json"
    result = run(f"{words} --trace {trace}")
    assert result.exit_code == 0
    # before everything else
    first = result.output.partition("Where the time of a step goes")[0]
    assert "OUT OF MEMORY" in first
    assert "It would fit with --sequence-parallel: " in first
    assert json.loads(trace.read_text())["traceEvents"]
    assert "It would fit" not in run(f"{words} -q").output
    assert "OUT OF MEMORY" not in run(f"{words} --sequence-parallel").output
    # weights alone are too much
    assert "It would fit" not in run("llama3-405b --gpus 8 --tp 8 --seq-len 1024").output
