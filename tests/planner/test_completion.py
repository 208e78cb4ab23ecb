"""Shells complete commands, options, names of what is built in, and files that fit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from costmodels.cluster import list_clusters
from planner.cli.command import planner_command
from planner.cli.completion import COMPLETERS
from planner.models import list_models
from planner.request.inputs import COMMANDS
from planner.request.usual_strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def completions(text: str) -> list[tuple[str, str]]:
    *words, begun = text.split(" ")
    shell = ShellComplete(planner_command, {}, "planner", "_PLANNER_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(words, begun)]


def words(text: str) -> list[str]:
    return [value for kind, value in completions(text) if kind == "plain"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    names = ("net.toml", "net.json", "table.csv", "notes.txt", "nets/deep.toml", "p.json.gz")
    for name in (*names, "odd\x1b.toml"):
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize("command", ["optimize", "evaluate", "simulate", "scale", "throughput"])
def test_models_and_network_files_are_known(command, folder):
    assert words(f"{command} resnet1") == ["resnet18", "resnet101", "resnet152"]
    assert words(f"{command} ") == [*list_models(), "net.json", "net.toml"]
    assert words(f"{command} nets/") == ["nets/deep.toml"]
    # folders and files of any name are found by the shell
    assert completions(f"{command} no") == [("file", "no")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimize alexnet --cluster ", ["auto", *list_clusters(), "net.toml"]),
        ("optimize alexnet --cluster dgx-h", ["dgx-h100", "dgx-h200"]),
        ("evaluate alexnet --strategy ", [*STRATEGIES, "net.json", "net.toml"]),
        ("simulate alexnet --runtime zer", ["zero1", "zero2", "zero3"]),
        ("optimize alexnet --table ", ["table.csv"]),
        ("optimize alexnet --search el", ["elimination"]),
        ("solve --search el", ["elimination"]),
        ("solve ", ["net.json", "p.json.gz"]),
        ("report ", ["net.json"]),
        ("models --export resnet10", ["resnet101"]),
        ("clusters --export las", ["lassen"]),
        ("simulate alexnet --model pa", ["paradl", "paleo"]),
        ("throughput alexnet --model co", ["coarse"]),
        ("throughput alexnet --device v100-3", ["v100-32gb"]),
        ("opt", ["optimize"]),
        ("optimize --global", ["--global-batch-size"]),
    ],
)
def test_what_can_stand_there_is_known(text, expected, folder):
    assert words(text) == expected


def test_words_behind_no_command_do_not_end_in_an_error(folder):
    assert words("opt re") == ["report"]


def test_every_completer_is_of_an_input_and_names_what_is_taken(folder):
    inputs = {one.name: one for command in COMMANDS.values() for one in command}
    assert set(COMPLETERS) <= set(inputs)
    for name, find in COMPLETERS.items():
        for item in find(None, None, ""):  # type: ignore[arg-type]
            known = inputs[name].rule
            # files are looked into later
            if item.type == "plain" and known is not None and "." not in item.value:
                known(item.value)


def test_a_shell_completes_as_the_readme_says(folder):
    """The line of the README for bash, in a bash."""
    [line] = re.findall(r'^eval "\$\(_PLANNER_COMPLETE=bash_source planner\)"', README, re.M)
    script = (
        f"{line}\nCOMP_WORDS=(planner optimize alexnet --cluster las)\nCOMP_CWORD=4\n"
        '_planner_completion planner\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("lassen\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_readme_names_every_shell(shell):
    lines = [shlex.split(line) for line in README.splitlines() if f"{shell}_source" in line]
    assert lines, shell
