"""What is shown of plans with stages: in the terms of transformers, and shares of at most one."""

import re

import pytest

import planner
from planner.report.html import report_text
from planner.report.markdown import report_text as markdown_text
from planner.report.parallelism import parallelism, split_words
from planner.report.runs import folded_blocks, runs_of_plan
from planner.report.sentences import how
from planner.report.verdict import verdict


def evaluated(strategy, model="gpt2", **options):
    inputs = {"gpus": 16, "global_batch_size": 16, **options}
    return planner.evaluate(model, strategy=strategy, **inputs)


@pytest.fixture(scope="module")
def pipeline():
    return evaluated("megatron:tp=2,pp=4,chunks=3,sequence_parallel,micro_batch_size=1")


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        (
            "megatron:tp=4,pp=2,micro_batch_size=1,sequence_parallel",
            {},
            "data 2 x tensor 4 with sequence parallelism",
        ),
        ("megatron:tp=4,micro_batch_size=1", {}, "data 4 x tensor 4"),
        ("megatron:tp=2,cp=2,micro_batch_size=1", {}, "data 4 x context 2 x tensor 2"),
        (
            "megatron:tp=2,ep=4,micro_batch_size=1",
            {"model": "mixtral-8x7b", "cluster": "dgx-h100"},
            "data 8 x tensor 2 x expert 4",
        ),
        (
            "megatron:tp=2,ep=4,etp=1,sequence_parallel,micro_batch_size=1",
            {"model": "mixtral-8x7b", "cluster": "dgx-h100"},
            "data 8 x tensor 2 x expert 4 x expert tensor 1 with sequence parallelism",
        ),
        # the narrow layers of latent attention are whole
        (
            "megatron:tp=2,ep=8,sequence_parallel,micro_batch_size=1",
            {"model": "deepseek-v3", "cluster": "dgx-h100"},
            "data 8 x tensor 2 x expert 8 with sequence parallelism",
        ),
        ("fsdp:micro_batch_size=1", {}, "data 16"),
    ],
)
def test_splits_of_transformers_are_said_in_degrees(strategy, options, words):
    plan = evaluated(strategy, **options)
    assert parallelism(plan) == words
    assert words in how(plan)


def test_other_splits_are_said_by_their_dims():
    assert parallelism(evaluated("filter", model="resnet18")) == ""
    plan = evaluated("data", model="resnet18")
    assert split_words(plan) == "sample 16"


def test_shares_of_a_pipeline_are_parts_of_its_groups(pipeline):
    page = report_text(pipeline)
    shares = [float(found) for found in re.findall(r"([\d.]+) %</td></tr>", page)]
    assert len(shares) > 10
    assert max(shares) <= 100.0
    assert "The pipeline" in page
    for row in ("0 to 3", "4 to 7", "8 to 11", "12 to 15"):
        assert f">{row}</td>" in page


def test_pages_say_what_shares_of_groups_are_of(pipeline):
    sentence = "times of layers are parts of 4 times the step"
    for text in (report_text(pipeline), markdown_text(pipeline)):
        assert text.count(sentence) == 1
    assert "times the step" not in markdown_text(evaluated("data"))


def test_a_schedule_stands_in_brackets(pipeline):
    assert "a pipeline of 4 groups of 4 GPUs, 3 stages each (interleaved)" in how(pipeline)


@pytest.mark.slow
def test_the_moment_of_the_peak_names_few_stages(pipeline):
    assert "of stages 3, 7, 11" in pipeline.memory_moment
    deep = evaluated("megatron:pp=2,chunks=6,micro_batch_size=1", gpus=2)
    assert "a pipeline of 2 groups of 1 GPU, 6 stages each" in how(deep)
    assert re.search(r"of stages (0, 2, \.\.\., 10|1, 3, \.\.\., 11)$", deep.memory_moment)


def test_folding_keeps_every_layer_in_a_count(pipeline):
    runs = runs_of_plan(pipeline)
    drawn, counts = folded_blocks(runs)
    assert sum(counts.values()) == len(pipeline.layers)
    assert {layer.name for run in drawn for layer in run.layers} == set(counts)
    assert len(counts) < len(pipeline.layers) / 2


def test_usual_strategies_are_called_by_their_short_names():
    plan = planner.optimize("gpt2", gpus=16, global_batch_size=16, keep="tp=2")
    page = report_text(plan)
    assert "<td>megatron</td>" in page
    assert "sequence parallel" in page
    assert "tp=" not in verdict(plan)


@pytest.mark.parametrize(("model", "optimizer"), [("gpt2", "adam"), ("resnet18", "sgd")])
def test_networks_with_attention_are_trained_by_adam_unless_told(model, optimizer):
    plan = planner.evaluate(model, gpus=8, strategy="data")
    assert plan.training.optimizer == optimizer
    assert any(f"optimizer {optimizer}" in text for text in plan.defaults)
    given = planner.evaluate(model, gpus=8, strategy="data", optimizer="sgd")
    assert given.training.optimizer == "sgd"
    assert not any("optimizer" in text for text in given.defaults)
