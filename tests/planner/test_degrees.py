"""Strategies by degrees: what the command line and Python take, and what is refused."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

import planner
from costmodels.errors import InputError
from planner import Degrees
from planner.cli.command import planner_command
from planner.request.named_degrees import named_degrees

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
    assert Degrees(chunks=2).schedule_kind == "interleaved"
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
        ("gpt2 --tp 8", "12 heads of 'h.0.attn'.*tp of 8.*1, 2, 3, 4, 6, 12"),
        ("gpt2 --pp 16", "has 12 blocks.*16 stages"),
        ("mixtral-8x7b --ep 16 --dp 16", "8 experts.*ep of 16.*1, 2, 4, 8"),
        ("gpt2 --ep 2", "must have experts"),
        ("resnet50 --cp 2", "has no attention"),
        ("gpt2 --recompute half", "what is computed again.*'half'"),
        ("gpt2 --zero 4", "from 0 to 3"),
        ("gpt2 --offload disk", "activations, weights, optimizer"),
        ("gpt2 --axes tp,dp", "without cp, ep, pp"),
        ("gpt2 --cp-kind star", "ring or all-to-all"),
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
