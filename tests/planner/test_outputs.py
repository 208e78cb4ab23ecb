"""What commands write never takes the place of what they read, or of each other."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from problem_files import GOOD

from planner.cli.command import planner_command
from planner.plan import Plan

STEP = ["--gpus", "2", "--global-batch-size", "8"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, list(arguments))


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network in a folder of its own, with links to it."""
    monkeypatch.chdir(tmp_path)
    layer = {"name": "fc", "kind": "linear", "inputs": ["input"], "filters": 4}
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"name": "net", "input": {"channel": 4}, "layer": [layer]}))
    (tmp_path / "soft.json").symlink_to("net.json")
    os.link(path, tmp_path / "hard.json")
    return path


def refused(result: Result, words: str) -> None:
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["net.json", "./net.json", "soft.json", "hard.json"])
@pytest.mark.parametrize("command", ["optimize", "evaluate", "simulate"])
def test_an_input_is_never_overwritten(network: Path, command: str, name: str) -> None:
    before = network.read_bytes()
    refused(run(command, "net.json", *STEP, "-o", name), "is read by this command, too")
    assert network.read_bytes() == before


def test_neither_are_clusters_strategies_and_what_these_name(network: Path) -> None:
    assert run("clusters", "--export", "lassen", "-o", "c.toml").exit_code == 0
    Path("s.toml").write_text('format = "planner-strategy"\nmodel = "net.json"\ngpus = 2\n')
    words = "is read by this command, too"
    simulate = ("simulate", "net.json", *STEP, "--cluster", "c.toml")
    refused(run(*simulate, "--dump-strategy", "c.toml"), words)
    refused(run("simulate", "s.toml", "--dump-strategy", "./s.toml"), words)
    refused(run("simulate", "s.toml", "--trace", "net.json"), words)
    refused(run("simulate", "net.json", "--strategy", "s.toml", "--trace", "hard.json"), words)
    refused(run("clusters", "--export", "./c.toml", "-o", "c.toml"), words)
    refused(run("models", "--export", "net.json", "-o", "soft.json"), words)


def test_two_outputs_are_two_files(network: Path) -> None:
    for first, second in (("a.json", "./a.json"), ("x/../b.json", "b.json")):
        Path("x").mkdir(exist_ok=True)
        both = ("-o", first, "--dump-problem", second)
        refused(run("optimize", "net.json", *STEP, *both), "must be different files")
    both = ("--report", "r.md", "--report", "./r.md")
    refused(run("optimize", "net.json", *STEP, *both), "must be different files")
    assert sorted(Path().glob("*.md")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "-o", "plan.md"),
        ("optimize", "-o", "plan"),
        ("optimize", "--dump-problem", "problem.txt"),
        ("simulate", "-o", "figures.html"),
        ("simulate", "--trace", "-"),
        ("optimize", "--report", "-"),
    ],
)
def test_the_suffix_fits_what_is_written(network: Path, arguments: tuple[str, ...]) -> None:
    command, *output = arguments
    refused(run(command, "net.json", *STEP, *output), "must end in")


def test_a_dash_is_standard_output(network: Path) -> None:
    assert run("optimize", "net.json", *STEP, "-q", "-o", "p.json").exit_code == 0
    result = run("optimize", "net.json", *STEP, "-o", "-")
    assert result.exit_code == 0
    shown = Plan.from_json(result.stdout)
    assert shown.layers == Plan.load("p.json").layers
    assert json.loads(run("simulate", "net.json", *STEP, "-o", "-").stdout)["gpus"] == 2
    assert "[[levels]]" in run("clusters", "--export", "lassen", "-o", "-").stdout
    assert "[[layer]]" in run("models", "--export", "alexnet", "-o", "-").stdout
    Path("problem.json").write_bytes(GOOD)
    assert isinstance(json.loads(run("solve", "problem.json", "-o", "-").stdout), list)
    for option in ("--json", "-q"):
        refused(run("optimize", "net.json", *STEP, "-o", "-", option), "leaves no place")
    assert not Path("-").exists()


def test_reports_may_be_repeated(network: Path) -> None:
    both = ("--report", "r.md", "--report", "r.html")
    result = run("evaluate", "net.json", *STEP, *both)
    assert result.exit_code == 0
    for name in ("r.md", "r.html"):
        assert Path(name).stat().st_size > 1000
        assert f"report written to {name}" in result.stdout


def test_no_report_is_written_where_another_one_cannot_be(network: Path) -> None:
    both = ("--report", "r.md", "--report", f"{'x' * 300}.html")
    refused(run("evaluate", "net.json", *STEP, *both), "cannot be written")
    assert not Path("r.md").exists()


def test_a_packed_problem_is_unpacked_up_to_a_limit(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.files.contest.LARGEST_FILE", 2**20)
    Path("bomb.json.gz").write_bytes(gzip.compress(b" " * 2**21))
    result = run("solve", "bomb.json.gz")
    assert result.exit_code == 1
    assert "gzip data must hold at most" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("simulate", "alexnet", *STEP, "--strategy", ""), "strategy"),
        (("evaluate", "alexnet", *STEP, "--strategy", ""), "strategy"),
        (("simulate", "alexnet", *STEP, "--runtime", ""), "the runtime must be one of"),
        (("simulate", "alexnet", *STEP, "--pp", "2", "--degree", "0"), "must be at least 1"),
        (("optimize", "alexnet", *STEP, "--cap", "9" * 400), "at most 2**53"),
        (("simulate", "alexnet", *STEP, "--loader", "native", "--cores", "9" * 99), "2**53"),
        (("simulate", "alexnet", *STEP, "--loader", "native", "--loader-rate", "1e-320"), "0.001"),
        (("throughput", "alexnet", "--servers", "9" * 400), "at most 2**53"),
        (("throughput", "alexnet", "--workers", f"1-{'9' * 5000}"), "workers"),
        (("throughput", "alexnet", "--host", "lassen"), "raise --gpus-per-host"),
        (("throughput", "alexnet", "--update-time", "1e308 s"), "from 0 to 3600 s"),
        (("throughput", "alexnet", "--variation", "1e-320"), "be 0 or at least"),
        (("throughput", "alexnet", "--bandwidth", "1e-30 GB/s"), "from 1000 to 1e+18 B/s"),
        (("throughput", "alexnet", "--flow-cap", "1e30 GB/s"), "from 1000 to 1e+18 B/s"),
        (("throughput", "alexnet", "--seed", str(2**32)), "less than 2**32"),
        (("optimize", "alexnet", *STEP, "--seed", "9" * 400), "less than 2**32"),
        (("optimize", "alexnet", *STEP, "--bucket-size", "1e-300 B"), "buckets must be from 1"),
        (("optimize", "alexnet", *STEP, "--launch-time", "1e308 s"), "from 0 to 1 s"),
        (("optimize", "alexnet", *STEP, "--memory", "1e290 GiB"), "memory must be from"),
    ],
)
def test_values_that_nobody_can_mean_are_refused(arguments: tuple[str, ...], words: str) -> None:
    refused(run(*arguments), words)
