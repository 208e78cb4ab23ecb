"""What is given is heeded, or refused: nothing is silently left aside."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import planner
from planner import Degrees
from planner.cli.command import planner_command
from planner.errors import ConflictError, InputError
from planner.models import build, resized

QUESTION = {"gpus": 4, "cluster": "lassen", "global_batch_size": 32}
WORDS = ["--gpus", "4", "--cluster", "lassen", "--global-batch-size", "32"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, list(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("heeded")
    planner.evaluate("alexnet", **QUESTION).save(place / "plan.json")
    (place / "strategy.toml").write_text(
        'format = "planner-strategy"\nmodel = "alexnet"\ngpus = 4\ncluster = "lassen"\n'
        "global_batch_size = 32\n"
    )
    return place


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "plan.json"],
        ["simulate", "strategy.toml"],
        ["simulate", "alexnet", *WORDS, "--strategy", "plan.json"],
        ["simulate", "alexnet", *WORDS, "--strategy", "strategy.toml"],
        ["simulate", "alexnet", *WORDS, "--dp", "4"],
        ["evaluate", "alexnet", *WORDS, "--strategy", "plan.json"],
    ],
    ids=" ".join,
)
def test_a_degree_is_refused_where_something_else_says_the_split(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert run(*words).exit_code == 0
    result = run(*words, "--degree", "2")
    assert result.exit_code == 2
    assert "--degree is of the strategies data+filter and data+spatial" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_degree_is_refused_from_python(folder):
    plan = planner.Plan.load(folder / "plan.json")
    for refused in (
        lambda: planner.simulate(plan, degree=2),
        lambda: planner.simulate("alexnet", degrees=Degrees(tp=2), degree=2, **QUESTION),
        lambda: planner.evaluate("alexnet", strategy=plan, degree=2, **QUESTION),
    ):
        with pytest.raises(ConflictError, match="--degree"):
            refused()


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("paradl", {"runtime": "ddp"}),
        ("paleo", {"servers": 2}),
        ("paradl", {"overlap_factor": 0.2}),
        ("plain", {"overlap_factor": 0.2}),
    ],
)
def test_a_step_model_refuses_what_it_would_not_heed(model, given):
    with pytest.raises(ConflictError, match=f"the step model {model} knows no --"):
        planner.simulate("alexnet", model=model, **given, **QUESTION)
    [(name, value)] = given.items()
    option = f"--{name.replace('_', '-')}"
    result = run("simulate", "alexnet", *WORDS, "--model", model, option, str(value))
    assert result.exit_code == 2
    assert result.stderr.endswith("use --model simulate; see 'planner simulate --help'\n")


def test_a_simulation_says_that_its_memory_is_not_that_of_a_formula():
    said = "not that of the formula"
    simulation = planner.simulate("alexnet", memory_model="paradl", **QUESTION)
    assert any(said in note for note in simulation.notes)
    usual = planner.simulate("alexnet", **QUESTION)
    assert usual.peak_memory == simulation.peak_memory
    assert not any(said in note for note in usual.notes)


def test_a_closed_form_writes_no_trace(tmp_path):
    trace = str(tmp_path / "trace.json")
    result = run("simulate", "alexnet", *WORDS, "--model", "paradl", "--trace", trace)
    assert result.exit_code == 2
    assert "the step model paradl knows no --trace" in result.stderr


def test_the_input_size_of_a_network_object_is_heeded():
    network = build("alexnet")
    plan = planner.evaluate(network, input_size=448, **QUESTION)
    assert dict(plan.input_shape) == {"channel": 3, "height": 448, "width": 448}
    assert plan == planner.evaluate(resized(network, 448), **QUESTION)
    with pytest.raises(InputError):
        planner.optimize(network, input_size=1, **QUESTION)


def test_a_plan_is_no_network():
    plan = planner.evaluate("alexnet", **QUESTION)
    for command in (planner.optimize, planner.evaluate):
        with pytest.raises(InputError, match=r"a network must be given but this is a plan"):
            command(plan, gpus=4)
    with pytest.raises(InputError, match=r"a network must be given but this is a plan"):
        next(planner.scale(plan, gpus=[4]))
    with pytest.raises(InputError, match=r"a network must be given but this is a plan"):
        planner.throughput(plan, workers=[1], models="coarse")


@pytest.mark.parametrize("name", ["gp\\u001bt2", "gp\\nt2", "", " ", "\\u202egpt2"])
@pytest.mark.parametrize("words", [["strategy.toml"], ["gpt2", "--strategy", "strategy.toml"]])
@pytest.mark.parametrize("field", ["model", "cluster", "precision"])
def test_names_in_a_strategy_file_can_be_read(name, words, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {"model": "gpt2", "cluster": "lassen", "precision": "fp16", field: name}
    lines = [f'{key} = "{value}"\n' for key, value in fields.items()]
    text = f'format = "planner-strategy"\ngpus = 4\nglobal_batch_size = 8\n{"".join(lines)}'
    Path("strategy.toml").write_text(text)
    given = ["--cluster", "lassen", "--precision", "fp16"]
    result = run("simulate", *words, *given)
    assert result.exit_code == 2
    assert f"'{field}' must be text on one line without control characters" in result.stderr


def test_both_commands_refuse_a_strategy_in_one_sentence():
    results = [
        run(command, "alexnet", *WORDS, "--strategy", "hope")
        for command in ("evaluate", "simulate")
    ]
    assert results[0].stderr == results[1].stderr
    assert results[0].exit_code == results[1].exit_code == 2
