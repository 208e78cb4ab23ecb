"""Every command and every output that the README shows is run, and must print what is shown.

In a block marked `console`, a line that starts with `$ ` is a command, what follows is its output;
a line `...` stands for any number of lines. Blocks marked `python` are run in the same folder.
Benchmark commands take minutes and are shown in blocks marked `sh`, which other tests smoke.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```(console|python)\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


def commands(block: str) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, list[str]]] = []
    for line in block.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            rows.append((line[2:], []))
        else:
            rows[-1][1].append(line)
    return rows


def matches(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return True
    if shown[0].strip() == "...":
        return any(matches(shown[1:], printed[i:]) for i in range(len(printed) + 1))
    if not printed:
        return False
    return shown[0].rstrip() == printed[0].rstrip() and matches(shown[1:], printed[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def run(argv: list[str] | str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1"}
    environment["PYTHONPATH"] = str(README.parent)
    return subprocess.run(
        argv,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        shell=isinstance(argv, str),
    )


def test_readme_shows_commands() -> None:
    assert sum(kind == "console" for kind, _ in BLOCKS) >= 3


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(number: int, folder: Path) -> None:
    kind, block = BLOCKS[number]
    if kind == "python":
        done = run([sys.executable, "-c", block], folder)
        assert done.returncode == 0, done.stderr
        return
    for command, shown in commands(block):
        done = run(command, folder)
        printed = (done.stdout + done.stderr).rstrip("\n").split("\n")
        while shown and not shown[-1].strip():
            shown.pop()
        assert matches(shown, printed) or not shown, "\n".join([command, *printed])
        assert done.returncode == 0 or any(line.startswith("error:") for line in shown), printed
