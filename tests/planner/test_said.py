"""What was chosen and what a result rests on is said, whatever is shown of it."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

import planner
from planner.cli.command import planner_command
from planner.report import figures

WORDS = ["alexnet", "--gpus", "4", "--cluster", "lassen"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(planner_command, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("command", ["optimize", "evaluate", "simulate"])
def test_one_line_names_a_batch_that_was_chosen(command):
    extra = ["--cap", "8"] if command == "optimize" else []
    assert ", global batch 128 (chosen)" in run(command, *WORDS, "-q", *extra)
    given = run(command, *WORDS, "-q", "--global-batch-size", "128", *extra)
    assert "chosen" not in given


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["--strong", "--weak"])
def test_scaling_says_the_batch_that_was_chosen(kind):
    words = ["scale", "alexnet", "--gpus", "2,4", "--cluster", "lassen", "--cap", "4", kind]
    text = run(*words)
    assert "Chosen at 2 GPUs, since not given" in text
    assert "  - global batch of 64 samples (32 a GPU)" in text
    sizes = json.loads(run(*words, "--json"))["sizes"]
    batch, share = (64, "16") if kind == "--strong" else (128, "32")
    assert f"global batch of {batch} samples ({share} a GPU)" in sizes[1]["defaults"]
    assert "global batch of" not in run(*words, "--global-batch-size", "64")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("paradl", "of the computation is estimated by"),
        ("paleo", "100.0% of the computation is estimated by one percentage of the peak"),
    ],
)
def test_closed_forms_say_what_they_rest_on(model, said):
    question = {"gpus": 4, "cluster": "lassen", "global_batch_size": 128}
    notes = planner.simulate("alexnet", model=model, **question).notes
    assert any(said in note for note in notes)
    assert said in " ".join(run("simulate", *WORDS, "--model", model).split())
    if model == "paradl":
        # a pipeline is another form
        degrees = planner.Degrees(pp=4, micro_batches=4)
        question = {**question, "degrees": degrees}
        notes = planner.simulate("alexnet", model=model, **question).notes
        assert any(said in note for note in notes)


def test_closed_forms_say_what_the_timeline_says() -> None:
    """The kinds of estimates are those that the plan of the same step names."""
    plan = planner.evaluate("resnet18", gpus=1, cluster="lassen", global_batch_size=8)
    notes = planner.simulate(
        "resnet18", gpus=1, cluster="lassen", global_batch_size=8, model="paradl"
    ).notes
    shares = {note for note in plan.fallbacks if "of the computation" in note}
    assert shares
    assert {note.split("%")[1] for note in shares} == {
        note.split("%")[1] for note in notes if "of the computation" in note
    }


@pytest.mark.parametrize("strategy", ["data", "data+filter"])
def test_the_command_of_an_evaluation_from_python_evaluates(strategy):
    question = {"gpus": 4, "cluster": "lassen", "global_batch_size": 128}
    plan = planner.evaluate("alexnet", strategy=strategy, **question)
    command, recorded = figures.command(plan)
    assert not recorded
    assert command.startswith("planner evaluate alexnet --gpus 4")
    facts = json.loads(run(*shlex.split(command)[1:], "--json"))
    assert facts["step_time_s"] == plan.step_time_s
    assert facts["solver"] == plan.search.solver
    again = planner.evaluate("alexnet", strategy=plan, **question)
    assert figures.command(again)[0].endswith(" --strategy plan.json")
    assert figures.command(planner.optimize("alexnet", cap=4, **question))[0].startswith(
        "planner optimize alexnet"
    )
