"""The first lines of a plan say what to do; model FLOPs utilisation stands beside throughput."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import planner
from costmodels.cluster import load_device
from costmodels.graph import build_graph
from planner import Plan
from planner.cli.command import planner_command
from planner.models import build
from planner.notes import NO_TIME
from planner.plan import Baseline
from planner.report.html import report_text as html_page
from planner.report.markdown import report_text as markdown_text
from planner.report.rivals import rival_sentence
from planner.report.verdict import verdict

QUESTION = {"gpus": 8, "cluster": "lassen", "global_batch_size": 256, "cap": 16}
WORDS = ["alexnet", "--gpus", "8", "--cluster", "lassen", "--global-batch-size", "256"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(planner_command, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def data() -> Plan:
    return planner.optimize("resnet18", **QUESTION)


@pytest.fixture(scope="module")
def split() -> Plan:
    return planner.optimize("mesh-1k", **{**QUESTION, "global_batch_size": 2, "cap": 64})


def with_search(plan: Plan, **changes) -> Plan:
    return dataclasses.replace(plan, search=replace(plan.search, **changes))


@pytest.mark.slow
def test_data_parallelism_is_called_so(data):
    known = with_search(data, gap=0.0123, lower_bound_s=1e-3, proven_optimal=False)
    assert verdict(known) == (
        "Use plain data parallelism: nothing in the searched space is more than 1.2 % faster"
    )
    far = with_search(known, gap=1.0 - 1.0 / 11.6)
    assert verdict(far).endswith("nothing in the searched space is more than 11.6x as fast")
    assert verdict(with_search(known, proven_optimal=True)).endswith("searched space is faster")
    alone = with_search(known, num_choices=0)
    assert "no other split of the layers is more than 1.2 % faster" in verdict(alone)
    assert verdict(with_search(known, lower_bound_s=0.0)).endswith("is not known")
    stopped = with_search(known, stopped_by="time limit")
    assert verdict(stopped).endswith("more than 1.2 % faster (stopped early by time limit)")
    assert verdict(dataclasses.replace(known, memory_capacity_bytes=1.0)).startswith(
        "This plan does not fit"
    )


def test_another_split_is_compared_with_the_best_usual_strategy(split):
    known = with_search(split, gap=0.02, lower_bound_s=1e-3, proven_optimal=False)
    rows = [
        Baseline(name=name, step_time_s=time, peak_memory_bytes=1.0, fits=fits)
        for name, time, fits in (
            ("data", 2.1 * split.step_time_s, True),
            ("filter", 1.4 * split.step_time_s, False),
            ("spatial", 3.0 * split.step_time_s, True),
        )
    ]
    text = verdict(dataclasses.replace(known, baselines=tuple(rows)))
    assert text.startswith("Split sample 2 x ")
    assert text.endswith(
        ": 2.10x as fast as data parallelism, within 2.0 % of the best in the searched space"
    )
    assert "none of the usual strategies can be used" in verdict(
        dataclasses.replace(known, baselines=())
    )
    # who stops a search is not told what nobody looked at
    useless = {"step_time_s": None, "peak_memory_bytes": None, "fits": False}
    late = Baseline(name="data", reason=NO_TIME, costed=False, **useless)
    small = Baseline(name="filter", reason="does not divide", **useless)
    for rows, sentence in (
        ((late, late), "the usual strategies were not compared"),
        ((late, small), "none of the usual strategies that were compared can be used"),
    ):
        assert sentence in verdict(dataclasses.replace(known, baselines=rows))
        assert rival_sentence(dataclasses.replace(known, baselines=rows)) == sentence


def test_where_nothing_is_split_it_says_so(data):
    whole = {name: replace(layer, degrees={}) for name, layer in data.layers.items()}
    assert verdict(dataclasses.replace(data, layers=whole)).startswith("Split nothing: ")
    alone = planner.optimize("alexnet", gpus=1, cluster="lassen", cap=8)
    assert verdict(alone).startswith("Split nothing: nothing in the searched space is ")


@pytest.mark.slow
def test_the_verdict_comes_first_wherever_a_plan_is_shown(data, tmp_path):
    path = tmp_path / "plan.json"
    data.save(path)
    for text in (run("report", str(path)), run("optimize", "resnet18", *WORDS[1:], "--cap", "16")):
        first = " ".join(text.split("\n\n")[0].split())
        assert first == verdict(data)
    assert verdict(data) in markdown_text(data)
    assert verdict(data) in html_page(data)
    # what was given is not advised
    given = run("evaluate", *WORDS)
    assert given.startswith("alexnet on 8 x v100-16gb of lassen")
    assert verdict(planner.evaluate("alexnet", gpus=2)) == ""


def test_utilisation_is_model_flops_over_the_peak_of_all_gpus():
    """By hand: 2 FLOPs a multiply-add, a backward pass of two forward passes (PaLM, appendix B)."""
    question = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 64}
    flops = 6.0 * build_graph(build("gpt2"), 64).macs
    hidden, blocks, tokens, words = 768, 12, 1024, 50257
    weights = tokens * (blocks * 12 * hidden**2 + words * hidden)
    assert flops == 6.0 * 64 * (weights + blocks * 2 * tokens**2 * hidden)
    for precision in ("bf16", "fp32"):
        peak = load_device("a100-80gb").peak_flops[precision]
        plan = planner.evaluate("gpt2", precision=precision, **question)
        assert plan.model_flops == flops
        assert plan.mfu == pytest.approx(flops / (plan.step_time * 8 * peak))
        step = planner.simulate("gpt2", precision=precision, **question)
        assert step.mfu == pytest.approx(flops / (step.step_time * 8 * peak))
        assert step.summary()["mfu"] == step.mfu
    # what is computed again is no work of the model
    again = planner.simulate("gpt2", degrees=planner.Degrees(tp=2, recompute=True), **question)
    assert again.summary()["model_flops"] == flops


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("command", ["optimize", "evaluate", "simulate"])
def test_utilisation_stands_beside_throughput(command):
    extra = ["--cap", "8"] if command == "optimize" else []
    facts = json.loads(run(command, *WORDS, *extra, "--json"))
    shown = f"MFU {100 * facts['mfu']:.1f} %"
    keys = list(facts)
    assert keys.index("mfu") == keys.index("throughput_samples_per_s") + 1
    line = next(row for row in run(command, *WORDS, *extra).splitlines() if "Throughput" in row)
    assert shown in line
    assert f" images/s, {shown}, " in run(command, *WORDS, *extra, "-q")


def test_utilisation_stands_in_reports_and_scaling(data, tmp_path):
    shown = f"MFU {100 * data.mfu:.1f} %"
    assert shown in markdown_text(data)
    assert shown in html_page(data)
    words = ["scale", "alexnet", "--gpus", "1,2", "--cluster", "lassen", "--cap", "4"]
    rows = [line.split() for line in run(*words).splitlines()]
    heading = next(row for row in rows if row[:1] == ["GPUs"])
    assert heading[heading.index("samples/s") + 1] == "MFU"
    sizes = json.loads(run(*words, "--json"))["sizes"]
    for size, row in zip(sizes, (row for row in rows if row[:1] in (["1"], ["2"])), strict=True):
        assert f"{100 * size['mfu']:.1f}" in row


def test_plans_of_before_have_no_utilisation(data, tmp_path):
    document = json.loads(data.to_json())
    del document["model_flops"], document["device_peak_flops"]
    old = Plan.from_json(json.dumps(document))
    assert old.mfu is None
    assert old.summary()["mfu"] is None
    (tmp_path / "old.json").write_text(json.dumps(document))
    for way in ([], ["-q"], ["-v"]):
        text = run("report", str(tmp_path / "old.json"), *way)
        assert "images/s" in text
        assert "MFU" not in text
    assert "MFU" not in markdown_text(old)
    assert "MFU" not in html_page(old)


@pytest.mark.parametrize("value", [-1.0, 0.5, 1e300])
@pytest.mark.parametrize("field", ["model_flops", "device_peak_flops"])
def test_absurd_rates_in_a_plan_are_refused(field, value, data):
    document = {**json.loads(data.to_json()), field: value}
    with pytest.raises(planner.InputError, match=field):
        Plan.from_json(json.dumps(document))
