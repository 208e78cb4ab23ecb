"""One request: fields, signatures, options and docstrings agree; files are opened once."""

from __future__ import annotations

import builtins
import inspect
import io
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import planner
from costmodels.errors import InputError
from costmodels.step.training import Training
from costmodels.throughput import UTILISATION_THRESHOLD, VARIATION
from planner import Degrees, Loading, Request
from planner.cli.command import planner_command
from planner.models import build, format_network
from planner.request.inputs import COMMANDS, AnyInput, field_inputs, part_inputs
from planner.request.inputs.question import BUCKET_BYTES, LAUNCH_TIME, TRAINING
from planner.request.inputs.simulating import OVERLAP_FACTOR
from planner.request.request import make_request
from planner.request.setting import find_cluster
from planner.simulation.run import OVERLAP_FACTOR as SIMULATED_FACTOR

# Options of commands that are no inputs of a request: what to write and to show.
SHOWING = {
    *("output", "report", "quiet", "verbose", "as_json", "trace", "dump_strategy", "help"),
}
QUESTION = {"gpus": 4, "cluster": "lassen", "global_batch_size": 32}


def test_the_fields_of_a_request_are_the_inputs_that_are_described():
    inputs = field_inputs()
    defaults = {one.name: one.default for one in fields(Request)}
    assert set(defaults) == set(inputs)
    for name, default in defaults.items():
        assert default is MISSING or default == inputs[name].default, name


@pytest.mark.parametrize(("part", "name"), [(Degrees, "degrees"), (Loading, "loading")])
def test_the_parts_of_a_request_are_the_inputs_that_are_described(part, name):
    assert {one.name: one.default for one in fields(part)} == {
        one.name: one.default for one in part_inputs(COMMANDS["simulate"], name)
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_signatures_are_the_inputs_that_are_described(command):
    parameters = inspect.signature(getattr(planner, command)).parameters
    inputs = {one.called: one for one in COMMANDS[command] if one.is_argument}
    assert set(parameters) == set(inputs)
    for name, parameter in parameters.items():
        needed = parameter.default is parameter.empty
        assert needed == inputs[name].required, name
        assert needed or parameter.default == inputs[name].default, name
        assert "Any" not in str(parameter.annotation)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_the_inputs_that_are_described(command):
    offered = {one.name: one for one in planner_command.commands[command].params}
    inputs = {one.called: one for one in COMMANDS[command] if one.option}
    arguments = {name for name, one in offered.items() if one.param_type_name == "argument"}
    assert set(offered) - SHOWING - arguments == set(inputs)
    assert len(arguments) == 1
    for name, described in inputs.items():
        named = (*offered[name].opts, *offered[name].secondary_opts)
        if described.aliases:
            assert named == (described.option, *described.aliases)
        else:
            assert "/".join(named) == described.option
        assert offered[name].help == described.help
        assert offered[name].required == described.required
        shown = offered[name].to_info_dict()["default"]
        assert shown in ((described.default,) if described.shown else (None, ())), name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_enough_to_use_a_function(command):
    text = inspect.getdoc(getattr(planner, command)) or ""
    for heading in ("Parameters", "Returns", "Raises"):
        assert f"{heading}\n{'-' * len(heading)}\n" in text
    for one in COMMANDS[command]:
        assert not one.is_argument or f"\n{one.called}\n    " in text
    assert max(map(len, text.splitlines())) <= 96


def test_what_is_given_by_default_is_what_the_models_take():
    for one in TRAINING:
        if one.usual is not None:
            assert one.usual == getattr(Training(), one.name), one.name
    assert OVERLAP_FACTOR.usual == SIMULATED_FACTOR
    assert field_inputs()["utilisation_threshold"].default == UTILISATION_THRESHOLD
    assert field_inputs()["computation_variation"].default == VARIATION
    assert find_cluster(None).name == field_inputs()["cluster"].usual


def test_quantities_are_numbers_or_text_with_a_unit():
    assert BUCKET_BYTES.quantity("25 MiB") == BUCKET_BYTES.quantity(25 * 2**20) == 25 * 2**20
    assert LAUNCH_TIME.quantity("25 us") == 25e-6


def test_only_what_is_given_replaces_defaults():
    request = make_request("simulate", {"source": "alexnet", "tp": 2, "cap": None, "tables": ()})
    assert request == Request(source="alexnet", degrees=Degrees(tp=2))
    assert make_request("evaluate", {"model": "alexnet"}).strategy == "data"
    assert make_request("throughput", {"model": "alexnet"}).precision == "fp32"
    assert replace(request, seed=3).completed(seed=4, memory=5.0).seed == 3


BAD: list[tuple[str, str, str, object]] = [
    ("optimize", "cap", "--cap", 0),
    ("optimize", "num_best", "--num-best", 0),
    ("optimize", "tune_trials", "--tune-trials", -1),
    ("optimize", "seed", "--seed", -1),
    ("optimize", "time_limit", "--time-limit", 0.0),
    ("optimize", "search", "--search", "magic"),
    ("optimize", "bucket_bytes", "--bucket-size", "25"),
    ("optimize", "launch_time", "--launch-time", "soon"),
    ("optimize", "memory", "--memory", "lots"),
    ("evaluate", "precision", "--precision", "fp7"),
    ("simulate", "overlap_factor", "--overlap-factor", 11.0),
    ("simulate", "variation", "--variation", 2.0),
    ("simulate", "congestion", "--congestion", 0.5),
    ("simulate", "runtime", "--runtime", "magic"),
    ("throughput", "batch", "--batch", 0),
    ("throughput", "seed", "--seed", -1),
    ("throughput", "rule", "--rule", "lifo"),
    ("throughput", "utilisation_threshold", "--utilisation-threshold", 1.5),
    ("throughput", "gpus_per_host", "--gpus-per-host", 0),
    ("throughput", "update_time", "--update-time", "soon"),
    ("throughput", "bandwidth", "--bandwidth", "0 Gbps"),
]


@pytest.mark.parametrize(("command", "keyword", "option", "value"), BAD)
def test_python_and_the_command_line_refuse_in_the_same_sentence(command, keyword, option, value):
    question = {} if command == "throughput" else {"gpus": 4}
    with pytest.raises(InputError) as raised:
        getattr(planner, command)("alexnet", **question, **{keyword: value})
    words = [command, "alexnet", *(() if command == "throughput" else ("--gpus", "4"))]
    result = CliRunner().invoke(planner_command, [*words, option, str(value)])
    assert result.exit_code == 2
    assert result.stderr == f"error: {str(raised.value).rstrip('.')}\n"


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (
            lambda: planner.simulate("alexnet", gpus=4, servers=2, runtime="ddp"),
            ["--servers", "2", "--runtime", "ddp"],
        ),
        (lambda: Loading(rate=9.0), ["--loader-rate", "9"]),
    ],
)
def test_inputs_that_exclude_each_other_are_refused_by_both(refused, words):
    result = CliRunner().invoke(planner_command, ["simulate", "alexnet", "--gpus", "4", *words])
    with pytest.raises(InputError) as raised:
        refused()
    assert result.stderr == f"error: {raised.value}; see 'planner simulate --help'\n"


@pytest.mark.parametrize("command", ["optimize", "evaluate", "scale"])
def test_the_command_line_names_the_option_that_is_missing(command):
    result = CliRunner().invoke(planner_command, [command, "alexnet"])
    assert result.exit_code == 2
    assert result.stderr == f"error: missing option '--gpus'; see 'planner {command} --help'\n"


def test_servers_can_be_given_from_python():
    found = planner.simulate("alexnet", servers=2, **QUESTION)
    assert (found.runtime.name, found.runtime.servers) == ("ps-sync", 2)


def test_the_face_of_the_package():
    assert set(planner.__all__) <= set(dir(planner))
    for name in planner.__all__:
        assert inspect.getdoc(getattr(planner, name)), name
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        planner.magic  # noqa: B018


STRATEGY = """format = "planner-strategy"
model = "net.toml"
gpus = 4
cluster = "lassen.toml"
global_batch_size = 32
"""
CASES = {
    "a plan": ["simulate", "plan.json", "--cluster", "lassen.toml"],
    "a strategy": ["simulate", "strategy.toml"],
    "a network": ["simulate", "net.toml", "--gpus", "4"],
    "a JSON network": ["simulate", "net.json", "--gpus", "4", "--input-size", "224"],
    "a network and a plan": ["simulate", "net.toml", "--strategy", "plan.json"],
    "a network and a strategy": ["simulate", "net.json", "--strategy", "strategy.toml"],
    "a search": ["optimize", "net.toml", "--gpus", "4", "--cluster", "lassen.toml", "--cap", "8"],
    "a given plan": ["evaluate", "net.json", "--gpus", "4", "--strategy", "plan.json"],
    "several sizes": ["scale", "net.toml", "--gpus", "1,2,4", "--cluster", "lassen.toml"],
    "a report": ["report", "plan.json"],
    "throughput": ["throughput", "net.toml", "--workers", "1", "--model", "coarse"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from costmodels.cluster import dump_cluster, load_cluster

    place = tmp_path_factory.mktemp("files")
    network = build("alexnet")
    (place / "net.toml").write_text(format_network(network))
    (place / "net.json").write_text(format_network(network, suffix=".json"))
    (place / "lassen.toml").write_text(dump_cluster(load_cluster("lassen")))
    (place / "strategy.toml").write_text(STRATEGY)
    planner.evaluate("alexnet", **QUESTION).save(place / "plan.json")
    return place


def counting(opened: Counter[str], function: Callable[..., object]) -> Callable[..., object]:
    def count(file: object, *arguments: object, **options: object) -> object:
        # built-in files have names that those of users may have, too
        if isinstance(file, str | os.PathLike) and Path(file).resolve().parent == Path.cwd():
            opened[Path(os.fspath(file)).name] += 1
        return function(file, *arguments, **options)

    return count


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_every_file_is_opened_once(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    opened: Counter[str] = Counter()
    count = counting(opened, io.open)
    monkeypatch.setattr(io, "open", count)
    monkeypatch.setattr(builtins, "open", count)
    result = CliRunner().invoke(planner_command, words)
    assert result.exit_code == 0, result.stderr
    named = {word for word in words if (folder / word).exists()}
    if "strategy.toml" in words:
        named |= {"lassen.toml"} | ({"net.toml"} if words[1] == "strategy.toml" else set())
    assert {name: opened[name] for name in named} == dict.fromkeys(named, 1)


def test_parts_are_told_from_fields():
    found: tuple[AnyInput, ...] = part_inputs(COMMANDS["simulate"], "degrees")
    assert [one.name for one in found][:3] == ["dp", "tp", "pp"]
