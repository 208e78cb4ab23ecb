"""One grammar: an option, a range and a file mean the same in every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import planner
from planner.cli.command import planner_command

QUESTION = {"gpus": 4, "cluster": "lassen", "global_batch_size": 32}
SIZES = ["--gpus", "1,2", "--cluster", "lassen", "--cap", "4", "--num-best", "1"]
# Options that several commands have with a meaning of their own, and why.
OWN_MEANING = {
    "--model": "the step model of simulate, the queueing models of throughput",
    "--servers": "throughput has one unless told otherwise",
    "--variation": "of devices in a step, and of the computation of a worker",
    "--seed": "of solvers, and of simulations",
    "--strategy": "evaluate costs no strategy of stages",
    "--precision": "throughput takes fp32 unless told otherwise",
    "--gpus": "one number or several",
    "--degree": "simulate points at evaluate",
    "--time-limit": "solve has one unless told otherwise",
    "--search": "solve shows its names",
    "--output": "each command writes its own result",
    "--input-size": "of a network, or of the one that is exported",
    "--export": "of networks or clusters",
    "--device": "a GPU of a worker, and what is measured",
    "--ranks": "of a plan that is verified, and of links that are measured",
    "--runtime": "under which a step is simulated, and under which plans are searched",
    "--input": "of a module that is traced, and of one whose plan is verified",
    "--storage": "of samples that a step loads, and of the answers of a study",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, list(arguments))


def test_options_of_a_name_are_described_alike():
    found: dict[str, set[str]] = {}
    for command in planner_command.commands.values():
        for option in command.params:
            if option.param_type_name == "option":
                found.setdefault(option.opts[-1], set()).add(option.help or "")
    assert {name for name, texts in found.items() if len(texts) > 1} <= set(OWN_MEANING)


def test_every_command_with_a_result_shows_and_writes_it_alike():
    for name in ("optimize", "evaluate", "simulate", "scale", "throughput", "solve", "report"):
        options = {one for p in planner_command.commands[name].params for one in p.opts}
        assert {"-o", "--output", "-q", "--quiet", "--json"} <= options, name
        if name not in ("throughput", "solve"):
            assert {"-v", "--verbose"} <= options, name


def test_networks_are_called_model_everywhere():
    for name in ("optimize", "evaluate", "simulate", "scale", "throughput"):
        [argument] = [
            one
            for one in planner_command.commands[name].params
            if one.param_type_name == "argument"
        ]
        assert argument.make_metavar(planner_command.make_context("planner", [name])) == "MODEL"
        text = " ".join((planner_command.commands[name].help or "").split())
        assert "MODEL is a built-in network (see 'planner models') or a network file" in text


@pytest.mark.parametrize("several", ["4-64", "4,16,64", "4 - 8"])
@pytest.mark.parametrize("command", ["optimize", "evaluate", "simulate"])
def test_a_command_for_one_number_of_gpus_says_so(command, several):
    result = run(command, "alexnet", "--gpus", several)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --gpus must be one whole number but is '{several}'; 'planner scale' takes "
        f"several; see 'planner {command} --help'\n"
    )


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("optimize", "--global-batch-size"),
        ("scale", "--global-batch-size"),
        ("scale", "--cap"),
        ("throughput", "--batch"),
        ("simulate", "--tp"),
    ],
)
def test_other_numbers_take_no_range(command, option):
    gpus = [] if command == "throughput" else ["--gpus", "4"]
    result = run(command, "alexnet", *gpus, option, "4-64")
    assert result.exit_code == 2
    assert f"{option} must be one whole number but is '4-64'; correct it" in result.stderr


@pytest.mark.parametrize(
    ("text", "gpus", "workers"),
    [("2-5", [2, 4], [2, 3, 4, 5]), ("1, 2,4", [1, 2, 4], [1, 2, 4]), ("4,8-9", [4, 8], [4, 8, 9])],
)
def test_ranges_are_written_alike(text, gpus, workers):
    """Every number on its own counts, of a range those that are possible: lassen has 4 a host."""
    result = run("scale", "alexnet", *SIZES[2:], "--gpus", text, "--json")
    assert [size["gpus"] for size in json.loads(result.stdout)["sizes"]] == gpus
    result = run("throughput", "alexnet", "--workers", text, "--model", "coarse", "--json")
    assert [row["workers"] for row in json.loads(result.stdout)["rows"]] == workers


@pytest.mark.parametrize("text", ["4-", "-4", "8-4", "x", "", "4,,8", "1.5", "4-8-9"])
def test_what_is_no_range_is_refused_alike(text):
    for words in (
        ["scale", "alexnet", "--gpus", text],
        ["throughput", "alexnet", "--workers", text],
    ):
        result = run(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "number" in result.stderr


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    planner.evaluate("alexnet", **QUESTION).save("plan.json")
    Path("strategy.toml").write_text('format = "planner-strategy"\nmodel = "alexnet"\n')
    return tmp_path


@pytest.mark.parametrize(
    ("file", "what"), [("plan.json", "a plan, for alexnet"), ("strategy.toml", "a strategy file")]
)
@pytest.mark.parametrize("command", ["optimize", "evaluate", "scale", "throughput"])
def test_a_file_that_is_no_network_is_called_what_it_is(command, file, what, files):
    result = run(command, file, *([] if command == "throughput" else ["--gpus", "4"]))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{file} is {what}; simulate it, or give its network" in result.stderr


@pytest.mark.slow
def test_scaling_is_shown_and_written_in_every_way(files):
    table = run("scale", "alexnet", *SIZES)
    assert table.exit_code == 0, table.output
    lines = run("scale", "alexnet", *SIZES, "-q").stdout.splitlines()
    for gpus, line in zip(("1", "2"), lines, strict=True):
        one = ["optimize", "alexnet", "--gpus", gpus, *SIZES[2:], "--global-batch-size"]
        assert line.startswith(run(*one, str(32 * int(gpus)), "-q").stdout.rstrip("\n"))
    figures = run("scale", "alexnet", *SIZES, "--json").stdout
    assert run("scale", "alexnet", *SIZES, "-o", "-").stdout == figures
    result = run("scale", "alexnet", *SIZES, "-o", "sizes.json")
    assert result.stdout == f"{table.stdout}\nfigures written to sizes.json\n"
    assert Path("sizes.json").read_text() == figures
    assert "fallbacks at 1 GPU" not in table.stdout
    assert "fallbacks at 1 GPU" in run("scale", "alexnet", *SIZES, "-v").stdout


def test_throughput_and_solutions_are_shown_and_written_in_every_way(files):
    words = ["throughput", "alexnet", "--workers", "1,2", "--model", "coarse"]
    figures = run(*words, "--json").stdout
    assert run(*words, "-o", "-").stdout == figures
    assert run(*words, "-o", "rows.json").stdout.endswith("figures written to rows.json\n")
    assert Path("rows.json").read_text() == figures
    line = run(*words, "-q").stdout
    assert line.startswith("alexnet, Sync-SGD, 2 workers, coarse ")
    assert line.count("\n") == 1
    dump = ["optimize", "alexnet", "--gpus", "2", "--cap", "8", "--dump-problem", "problem.json"]
    assert run(*dump, "-q").exit_code == 0
    facts = json.loads(run("solve", "problem.json", "--search", "elimination", "--json").stdout)
    assert facts["status"] == "optimal"
    assert facts["cost"] == facts["lower_bound"]
    assert facts["choices"] == json.loads(run("solve", "problem.json", "-o", "-").stdout)
    line = run("solve", "problem.json", "-q").stdout
    assert "proven optimal, cost " in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("pair", [("-q", "-v"), ("--json", "-v"), ("--json", "-q")])
@pytest.mark.parametrize(
    "words",
    [
        ["optimize", "alexnet", "--gpus", "4"],
        ["evaluate", "alexnet", "--gpus", "4"],
        ["simulate", "alexnet", "--gpus", "4"],
        ["scale", "alexnet", "--gpus", "4"],
        ["report", "plan.json"],
    ],
    ids=lambda words: words[0],
)
def test_ways_to_show_exclude_each_other(words, pair, files):
    result = run(*words, *pair)
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


def test_a_report_is_shown_in_every_way(files):
    plan = planner.Plan.load("plan.json")
    assert json.loads(run("report", "plan.json", "--json").stdout) == plan.summary()
    assert run("report", "plan.json", "-q").stdout.count("\n") == 1
    assert len(run("report", "plan.json", "-v").stdout) > len(run("report", "plan.json").stdout)
    result = run("report", "plan.json", "-q", "-o", "report.md")
    assert result.exit_code == 2
    assert not Path("report.md").exists()
